//! Sandboxes of calls: how many there may be, and how long they live.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forkd_api::sandbox::{CreateSandboxes, CreatedSandboxes, Limits, ListSandboxes, Sandbox, SandboxState};
use forkd_api::snapshot::SnapshotStatus;
use forkd_api::token::Scope;
use forkd_client::{Client, ClientError};
use futures_util::{StreamExt, stream};
use tokio::sync::{OwnedMutexGuard, oneshot};

use crate::ToolSet;
use crate::call::{Call, UNKNOWN};
use crate::failure::Failure;

/// The metadata of sandboxes that were made through MCP; its value is the caller's name.
pub(crate) const METADATA: &str = "mcp";
/// The snapshot that is taken before others when nothing else is said: the template of E2B's clients.
const USUAL_SNAPSHOT: &str = "code-interpreter-v1";
/// How often the time of a sandbox is renewed while a call uses it, within its time to live.
const RENEWALS_PER_TTL: u32 = 3;
/// How many sandboxes are renewed at once: one that does not answer does not keep the others from it.
const RENEWALS_AT_ONCE: usize = 8;
/// How many names an error lists.
const MAX_LISTED: usize = 20;

/// One caller makes sandboxes one call after another, so that two calls do not both take the last free place.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>);

impl Turns {
    async fn of(&self, caller: &str) -> OwnedMutexGuard<()> {
        let turn = {
            // Nothing is half done when a thread panics.
            let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
            Arc::clone(turns.entry(caller.to_owned()).or_default())
        };
        turn.lock_owned().await
    }
}

/// What sandboxes are made of.
#[derive(Debug, Default)]
pub(crate) struct New {
    /// A snapshot, or else a sandbox.
    pub source: String,
    pub n: u32,
    pub limits: Limits,
}

impl Call<'_> {
    /// Makes sandboxes, within the cap. A call that is given up while they are made removes them. A sandbox that they are made of is
    /// used by it, and has its full time to live again.
    pub(crate) async fn create(&self, new: New) -> Result<Vec<Sandbox>, Failure> {
        let New { source, n, limits } = new;
        let settings = &self.common.settings;
        let what = format!("Cannot make {n} sandbox{} of {source}", if n == 1 { "" } else { "es" });
        self.renew_by_id(&source).await;
        let turn = self.common.turns.of(&self.caller.name).await;
        let present = self.own().await.map_err(|error| self.failed(&what, &error))?;
        let most = settings.max_sandboxes;
        if present.len() + usize::try_from(n).unwrap_or(usize::MAX)
            > usize::try_from(most).unwrap_or(usize::MAX)
        {
            return Err(over_cap(&what, &present, most, settings.tools));
        }
        let metadata = BTreeMap::from([(METADATA.to_owned(), self.caller.name.clone())]);
        let wanted = CreateSandboxes {
            source: Some(source),
            n,
            ttl_secs: Some(settings.ttl_secs),
            metadata,
            limits,
            ..Default::default()
        };
        let (made, receiver) = oneshot::channel();
        tokio::spawn(create_to_the_end(self.client.clone(), wanted, turn, made));
        let created = receiver.await.map_err(|_| Failure::new(&what, "the task that makes them ended"))?;
        Ok(created.map_err(|error| self.failed(&what, &error))?.sandboxes)
    }

    /// The sandboxes that this caller has made through MCP and that exist.
    async fn own(&self) -> Result<Vec<Sandbox>, ClientError> {
        let wanted = ListSandboxes {
            metadata: Some(format!("{METADATA}={}", self.caller.name)),
            ..Default::default()
        };
        let mut sandboxes = self.client.sandboxes(&wanted).await?;
        // Metadata is anybody's who may make sandboxes, the owner is the daemon's word.
        let name = &self.caller.name;
        let is_own =
            |owner: &Option<String>| name == UNKNOWN || owner.as_ref().is_none_or(|owner| owner == name);
        sandboxes.retain(|sandbox| sandbox.state != SandboxState::Ended && is_own(&sandbox.owner));
        Ok(sandboxes)
    }

    /// Checks that a sandbox can be used. One that was made through MCP gets its full time to live again.
    pub(crate) async fn open(&self, what: &str, id: &str) -> Result<(), Failure> {
        let sandbox = self.client.sandbox(id).await.map_err(|error| self.failed(what, &error))?;
        if let Some(ended) = &sandbox.ended {
            let why = format!("sandbox {id} has ended: {}", ended.detail);
            return Err(Failure::new(what, why).next(match self.common.settings.tools {
                ToolSet::Tasks => "make a new one with `run`, or with `fork` of a snapshot",
                ToolSet::Reference => "make a new one with `spawn_sandboxes`",
            }));
        }
        self.renew(&sandbox).await;
        Ok(())
    }

    /// Does something in a sandbox that may take longer than the sandbox's time to live, which is renewed until it is done.
    ///
    /// Renewing needs no clean-up: a call that is dropped, or a service that is killed, leaves a sandbox that expires within one time
    /// to live, and of calls that overlap each renews it.
    pub(crate) async fn using<T>(
        &self,
        what: &str,
        id: &str,
        work: impl Future<Output = T>,
    ) -> Result<T, Failure> {
        self.open(what, id).await?;
        Ok(self.renewing(&[id], work).await)
    }

    /// Does something while the time of sandboxes is renewed.
    pub(crate) async fn renewing<T>(&self, ids: &[&str], work: impl Future<Output = T>) -> T {
        let done = tokio::select! {
            done = work => done,
            never = self.keep_renewing(ids) => match never {},
        };
        self.renew_all(ids).await;
        done
    }

    async fn keep_renewing(&self, ids: &[&str]) -> Infallible {
        let interval = Duration::from_secs(self.common.settings.ttl_secs) / RENEWALS_PER_TTL;
        loop {
            tokio::time::sleep(interval).await;
            self.renew_all(ids).await;
        }
    }

    async fn renew_all(&self, ids: &[&str]) {
        stream::iter(ids).for_each_concurrent(RENEWALS_AT_ONCE, |id| self.renew_by_id(id)).await;
    }

    async fn renew_by_id(&self, id: &str) {
        // One that cannot be asked for has ended, which the work in it notices, or is a snapshot.
        if let Ok(sandbox) = self.client.sandbox(id).await {
            self.renew(&sandbox).await;
        }
    }

    /// Renews the time of a sandbox that was made through MCP, unless it has a longer one or this caller may not change it.
    async fn renew(&self, sandbox: &Sandbox) {
        let ttl = self.common.settings.ttl_secs;
        let expiry = now_unix().saturating_add(ttl);
        if self.caller.scope >= Scope::Run
            && sandbox.metadata.contains_key(METADATA)
            && sandbox.expires_at_unix.is_some_and(|expires| expires < expiry)
        {
            // One that has ended meanwhile needs no time.
            let _ = self.client.set_ttl(&sandbox.id, Some(ttl)).await;
        }
    }

    /// The snapshot of a sandbox when nobody names one.
    pub(crate) async fn default_snapshot(&self) -> Result<String, Failure> {
        if let Some(snapshot) = &self.common.settings.snapshot {
            return Ok(snapshot.clone());
        }
        let what = "Cannot choose a snapshot for a new sandbox";
        let snapshots = self.client.snapshots().await.map_err(|error| self.failed(what, &error))?;
        let mut usable: Vec<_> = snapshots
            .into_iter()
            .filter(|one| one.status != SnapshotStatus::Failed && one.branched_from.is_none())
            .collect();
        let is_usual = |name: &String| name == USUAL_SNAPSHOT;
        if usable.iter().any(|one| is_usual(&one.tag) || one.names.iter().any(is_usual)) {
            return Ok(USUAL_SNAPSHOT.into());
        }
        match usable.len() {
            0 => Err(Failure::new(what, "there is no snapshot").next(
                "ask the user to make one, for example: forkd snapshot IMAGE --tag NAME, or: forkd e2b setup",
            )),
            1 => Ok(usable.remove(0).tag),
            _ => {
                let tags: Vec<_> = usable.iter().take(MAX_LISTED).map(|one| one.tag.as_str()).collect();
                Err(Failure::new(what, format!("there are several: {}", tags.join(", ")))
                    .next("call again with `snapshot` set to one of them"))
            }
        }
    }
}

/// The daemon makes what it was asked for to the end, so this waits for it, and removes it if nobody does any more.
async fn create_to_the_end(
    client: Client,
    wanted: CreateSandboxes,
    turn: OwnedMutexGuard<()>,
    made: oneshot::Sender<Result<CreatedSandboxes, ClientError>>,
) {
    let created = client.create_sandboxes(&wanted).await;
    if let Err(Ok(unwanted)) = made.send(created) {
        for sandbox in unwanted.sandboxes {
            // It expires if it cannot be removed.
            let _ = client.remove_sandbox(&sandbox.id).await;
        }
    }
    drop(turn);
}

fn over_cap(what: &str, present: &[Sandbox], most: u32, tools: ToolSet) -> Failure {
    let ids: Vec<_> = present.iter().take(MAX_LISTED).map(|sandbox| sandbox.id.as_str()).collect();
    let have = match present.len() {
        0 => "has none yet".to_owned(),
        count => format!("has {count} ({})", ids.join(", ")),
    };
    let end = match tools {
        ToolSet::Tasks => "end",
        ToolSet::Reference => "kill_sandbox",
    };
    Failure::new(what, format!("a caller may have {most} sandboxes made through MCP at once, and this one {have}"))
        .next(format!(
            "end those that are no longer needed with `{end}`, use one of them again, or ask the user to raise the cap"
        ))
}

fn now_unix() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_caller_takes_turns_with_itself_only() {
        let turns = Turns::default();
        let first = turns.of("token:a").await;
        let _other = turns.of("token:b").await;
        let soon = std::time::Duration::from_millis(20);
        assert!(tokio::time::timeout(soon, turns.of("token:a")).await.is_err());
        drop(first);
        assert!(tokio::time::timeout(soon, turns.of("token:a")).await.is_ok());
        // Turns of callers who make nothing are forgotten.
        let _third = turns.of("token:c").await;
        assert!(!turns.0.lock().unwrap().contains_key("token:a"));
    }

    #[test]
    fn the_cap_is_refused_with_what_to_do() {
        let text = over_cap("Cannot make 3 sandboxes of base", &[], 2, ToolSet::Tasks).to_string();
        assert_eq!(
            text,
            "Cannot make 3 sandboxes of base: a caller may have 2 sandboxes made through MCP at once, and this one has none \
             yet.\nNext: end those that are no longer needed with `end`, use one of them again, or ask the user to raise the cap."
        );
    }
}
