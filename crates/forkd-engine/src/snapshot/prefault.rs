//! Prefault: the pages that children of a snapshot use first, found out once and told to its zygote.
//!
//! ```text
//!   made, on disk ──▶ quiet ──▶ a child: fork, identity, first code ──▶ which pages has it copied? ──▶ a file beside the manifest ──▶ the zygote
//!   loaded ─────────▶ the file ────────────────────────────────────────────────────────────────────────────────────────────────▶ the zygote
//! ```
//!
//! Between its first instruction and the first answer of an interpreter, every child of a snapshot writes the same pages: of 905, 902
//! were the same in two children. The child that they are learned from is hidden: it has a name that is not listed, is promised to no client and has no
//! network, and is removed when its pages have been read. A daemon that dies meanwhile leaves a record that is not promised, and the next
//! one removes it.
//!
//! Failures are not reported: a snapshot without a list is only slower to fork.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use forkd_net::Egress;
use forkd_proto::control::{Command, Prefault, Reply};
use forkd_proto::page_runs::PageRuns;
use forkd_store::{Digest, Kept, Layout};
use tokio::sync::oneshot;

use crate::blocking::in_place;
use crate::engine::{Engine, Shared};
use crate::error::EngineError;
use crate::eval::{Code, eval};
use crate::fault;
use crate::ids::SandboxId;
use crate::limits::admission::{self, AdmissionRequest};
use crate::limits::quota::WantedLimits;
use crate::network::NetworkOrder;
use crate::record::ZygoteRecord;
use crate::sandbox::create::{NewSandboxes, Source};
use crate::sandbox::forked::{Forked, Prepared};
use crate::sandbox::laps::Laps;
use crate::sandbox::lifetime::OnExpiry;
use crate::snapshot::Zygote;
use crate::snapshot::fault_trace::FaultTrace;

/// How long a snapshot must be unused, so that no fork is delayed.
const QUIET: Duration = Duration::from_secs(1);
/// A host that is never quiet is not waited for any longer: it gains most.
const MOST_WAITING: Duration = Duration::from_secs(30);
/// As much as the child gives way to others, where it has a cgroup.
const CPU_WEIGHT: u16 = 10;
/// A child that takes longer until it is ready is no example.
const READY: Duration = Duration::from_secs(30);
/// A child that is forked uses one of its interpreters, or two.
const MOST_INTERPRETERS: usize = 2;
/// Code that every interpreter answers at once, if only with an error.
const NOTHING: &str = "0";
/// A first child shows what memory they use that the zygote does not have, a second what they write in there.
const MOST_CHILDREN: usize = 2;
/// In pages.
const HUGE_PAGE: u64 = 512;
/// A zygote takes no longer to keep a list.
const TELLING: Duration = Duration::from_secs(5);

/// The learning of a list. Dropped, it is given up.
pub(crate) struct Learning {
    _wanted: oneshot::Sender<()>,
}

/// Tells a zygote the list that is kept with its snapshot. Says whether there is nothing left to be learned.
pub(crate) async fn tell_known(shared: &Shared, zygote: &Zygote) -> bool {
    if !shared.prefault || !can_have_list(&zygote.record) {
        return true;
    }
    match in_place(|| shared.store.prefault(&zygote.record.tag)) {
        Ok(Some(Kept { list: Some(list), .. })) => {
            tell(shared, zygote, list).await;
            true
        }
        Ok(Some(_)) => false,
        // What cannot be read now is not what a list could be kept with.
        Ok(None) | Err(_) => true,
    }
}

/// Whether a snapshot is one to have a list: what is frozen in it begins with taking an identity, and so does every child. In a
/// branch, programs run from the first moment, and a hidden child of it would do again what its parent does. A guest
/// without an agent is never ready.
fn can_have_list(record: &ZygoteRecord) -> bool {
    record.branched_from.is_none() && record.shape.devices.vsock.is_some()
}

/// Begins to learn a list, or to tell the one that is known, of a snapshot that is on disk.
pub(crate) fn begin(shared: &Arc<Shared>, zygote: &Arc<Zygote>) -> Option<Learning> {
    if !can_have_list(&zygote.record) {
        return None;
    }
    let (wanted, unwanted) = oneshot::channel();
    let (shared, zygote) = (Arc::clone(shared), Arc::downgrade(zygote));
    tokio::spawn(async move {
        match shared.prefault {
            // The failure is not reported.
            true => drop(learn(&shared, &zygote, unwanted).await),
            // A daemon before this one may have told it something.
            false => forget(&shared, &zygote).await,
        }
    });
    Some(Learning { _wanted: wanted })
}

async fn learn(
    shared: &Arc<Shared>,
    zygote: &Weak<Zygote>,
    unwanted: oneshot::Receiver<()>,
) -> Result<(), EngineError> {
    let mut stopping = shared.stopping.subscribe();
    let given_up = async {
        tokio::select! {
            _ = unwanted => {}
            _ = stopping.wait_for(|stopping| *stopping) => {}
        }
    };
    tokio::pin!(given_up);
    if let Some(zygote) = zygote.upgrade()
        && tell_known(shared, &zygote).await
    {
        return Ok(());
    }
    // One at a time, and without a lease until it begins.
    let turn = async {
        quiet(shared, MOST_WAITING).await;
        shared.learning.acquire().await
    };
    let _turn = tokio::select! {
        turn = turn => turn.map_err(|_| EngineError::Stopping)?,
        () = &mut given_up => return Ok(()),
    };
    let Some(zygote) = zygote.upgrade() else { return Ok(()) };
    let tag = &zygote.record.tag;
    let Ok(Some(Kept { digest, layout, list: None })) = in_place(|| shared.store.prefault(tag)) else {
        return Ok(());
    };
    let mut list = Prefault::default();
    for _ in 0..MOST_CHILDREN {
        let Some(used) = used_by_a_child(shared, &zygote, &layout, &mut given_up).await? else {
            return Ok(());
        };
        let fresh_before = list.fresh;
        list = Prefault { fresh: PageRuns::first_of(union(&fresh_before, &used.fresh)), ..used };
        if list.fresh == fresh_before {
            break;
        }
        // What a child writes in there is known when the zygote has it.
        tell(shared, &zygote, Prefault { fresh: list.fresh.clone(), ..Prefault::default() }).await;
    }
    keep(shared, &zygote, digest, list).await
}

/// Forks a child, and looks at what it uses. `None` if it is given up meanwhile.
async fn used_by_a_child(
    shared: &Arc<Shared>,
    zygote: &Zygote,
    layout: &Layout,
    given_up: impl Future<Output = ()>,
) -> Result<Option<Prefault>, EngineError> {
    // A host that does not tell leaves faults that could have been spared.
    let trace = in_place(|| FaultTrace::begin(zygote.process.pid)).ok();
    // Not cancelled: a started fork is completed, or its process would be lost.
    let mut child = child_of(shared, zygote).await?;
    tokio::select! {
        used = child.be_used(READY) => used?,
        () = given_up => return Ok(None),
    }
    fault::place("prefault.ready");
    let (fresh, written) = split(&child.own_pages().await?);
    let touched = match (trace, child.process()) {
        (Some(trace), Some(process)) => in_place(|| trace.addresses(process.pid)).unwrap_or_default(),
        _ => Vec::new(),
    };
    let pages: BTreeSet<u64> = touched.into_iter().filter_map(|address| layout.page_at(address)).collect();
    let touched = PageRuns::first_of(pages.into_iter().map(|page| page..page + 1));
    Ok(Some(Prefault { written, touched, fresh }))
}

/// A child's own pages: those of whole huge pages, which it got because that memory was unused (or, rarely, because it has
/// written all of it), and the others.
fn split(own: &PageRuns) -> (PageRuns, PageRuns) {
    let whole = |run: &Range<u64>| {
        let begin = run.start.next_multiple_of(HUGE_PAGE);
        begin..(run.end / HUGE_PAGE * HUGE_PAGE).max(begin)
    };
    let fresh = PageRuns::first_of(own.runs().map(|run| whole(&run)));
    let others = own.runs().flat_map(|run| match whole(&run) {
        whole if whole.is_empty() => [run, 0..0],
        whole => [run.start..whole.start, whole.end..run.end],
    });
    (fresh, PageRuns::first_of(others))
}

/// All pages of two lists, ascending.
fn union(one: &PageRuns, other: &PageRuns) -> Vec<Range<u64>> {
    let mut runs: Vec<_> = one.runs().chain(other.runs()).collect();
    runs.sort_by_key(|run| run.start);
    runs
}

/// Waits until no fork or branch runs, but no longer than this.
pub(super) async fn quiet(shared: &Shared, at_most: Duration) {
    let begun = Instant::now();
    loop {
        let before = shared.uses_so_far();
        tokio::time::sleep(QUIET).await;
        if shared.uses_so_far() == before || begun.elapsed() >= at_most {
            return;
        }
    }
}

/// A child as `create` makes them, except that it counts for no owner.
async fn child_of(shared: &Arc<Shared>, zygote: &Zygote) -> Result<Forked, EngineError> {
    let record = &zygote.record;
    // No other snapshot gives up its process for this one.
    let wanted = AdmissionRequest { sandboxes: 1, memory_bytes: record.shape.memory_bytes };
    admission::admit(wanted, shared.present()?, shared.limits)?;
    let snapshot = shared.snapshots.get(&record.tag).ok_or(EngineError::Removed)?;
    let id = SandboxId::random().map_err(EngineError::io("get random numbers"))?;
    let name = shared.unlisted.reserve(&id).ok_or(EngineError::Removed)?;
    let new = NewSandboxes {
        source: Source::Snapshot(snapshot),
        count: 1,
        partial: false,
        ttl: None,
        on_expiry: OnExpiry::default(),
        wake_on_traffic: false,
        metadata: BTreeMap::new(),
        about: serde_json::Map::new(),
        env: BTreeMap::new(),
        account: None,
        // Its programs must not reach others: it was not requested.
        network: NetworkOrder { egress: Some(Egress::Deny), bandwidth: None },
        limits: WantedLimits { cpu_weight: Some(CPU_WEIGHT), ..WantedLimits::default() },
        counted: false,
        owner: None,
    };
    let laps = Laps::since(Instant::now());
    Prepared::make(Arc::clone(shared), zygote, new, None, name, laps).await?.start(zygote).await
}

impl Forked {
    /// Gives a hidden child its identity, and its interpreters something to do. No event is sent.
    async fn be_used(&mut self, limit: Duration) -> Result<(), EngineError> {
        let identified = self.identify(0, BTreeMap::new(), None);
        let given = tokio::time::timeout(limit, identified).await.map_err(|_| EngineError::Timeout)??;
        let agent = self.agent();
        for context in given.resting.iter().take(MOST_INTERPRETERS) {
            let code = Code { code: NOTHING, context: Some(context), ..Code::default() };
            // Whatever comes of it, these are pages that it takes.
            let _ = eval(&agent, &code, limit).await;
        }
        Ok(())
    }

    /// The pages that it has alone so far.
    async fn own_pages(&self) -> Result<PageRuns, EngineError> {
        let process = self.process().ok_or(EngineError::Removed)?;
        process.give_page_table().await;
        match self.shared.call(process, Command::OwnPages, &[]).await?.0 {
            Reply::OwnPages(pages) => Ok(pages),
            other => Err(EngineError::Answer(other)),
        }
    }
}

/// On disk first, so that the next load of the snapshot finds it.
async fn keep(
    shared: &Arc<Shared>,
    zygote: &Zygote,
    digest: Digest,
    list: Prefault,
) -> Result<(), EngineError> {
    // Without it, it is learned again when the snapshot is loaded.
    let _ = in_place(|| shared.store.keep_prefault(&zygote.record.tag, &digest, &list));
    fault::place("prefault.kept");
    tell(shared, zygote, list).await;
    Ok(())
}

async fn forget(shared: &Shared, zygote: &Weak<Zygote>) {
    if let Some(zygote) = zygote.upgrade() {
        tell(shared, &zygote, Prefault::default()).await;
    }
}

/// A zygote of an older daemon knows no lists, and its children do without.
async fn tell(shared: &Shared, zygote: &Zygote, list: Prefault) {
    let told = shared.call(&zygote.process, Command::Prefault(list), &[]);
    let _ = tokio::time::timeout(TELLING, told).await;
}

impl Engine {
    /// Waits until no child is looked at that would outlive the daemon. None begins from then on.
    pub async fn settled(&self) {
        if let Ok(turn) = self.shared.learning.acquire().await {
            self.shared.learning.close();
            drop(turn);
        }
    }
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "a list may have one run")]
mod tests {
    use super::*;

    #[test]
    fn whole_huge_pages_are_told_apart() {
        for (own, fresh, written) in [
            (vec![], vec![], vec![]),
            (vec![0..3, 510..514], vec![], vec![0..3, 510..514]),
            (vec![512..1024], vec![512..1024], vec![]),
            (vec![0..5, 500..2000], vec![512..1536], vec![0..5, 500..512, 1536..2000]),
            (vec![1023..1537], vec![1024..1536], vec![1023..1024, 1536..1537]),
        ] {
            let [own, fresh, written] = [own, fresh, written].map(PageRuns::first_of);
            assert_eq!(split(&own), (fresh, written), "{own:?}");
        }
    }
}
