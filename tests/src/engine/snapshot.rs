//! Snapshots of VM processes in a store: the part that a daemon plays.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};

use forkd_proto::control::{Command, Event, Load, Persist, Persisted, Refusal, Reply, SnapshotParts};
use forkd_store::{
    About, Cpu, Description, DiskLayer, Draft, Layout, Region, SnapshotFiles, Store, Stored, Tag,
};

use super::process::{Control, Failure, Started, Zygote, give_page_table, start};

/// Writes a snapshot of a zygote: a full one, or a diff to `parent`. Returns when it has its name.
pub fn persist(
    store: &Store,
    zygote: &mut Control,
    tag: &str,
    parent: Option<&Stored>,
    disk_layers: Vec<DiskLayer>,
) -> Result<Stored, Failure> {
    persist_with(store, zygote, tag, parent, || Ok(disk_layers))
}

/// The same; the layers of the disk are asked for when they are complete.
pub fn persist_with(
    store: &Store,
    zygote: &mut Control,
    tag: &str,
    parent: Option<&Stored>,
    disk_layers: impl FnOnce() -> Result<Vec<DiskLayer>, Failure>,
) -> Result<Stored, Failure> {
    let tag: Tag = tag.parse()?;
    let parent = parent.map(Stored::link);
    let draft = store.draft(&tag, parent.as_ref())?;
    let base = match &parent {
        Some(parent) => store.open_chain(&parent.tag)?,
        None => Vec::new(),
    };
    if let (Reply::Identified { pid, .. }, _) = zygote.must(Command::Identify, &[])? {
        give_page_table(zygote, pid)?;
    }
    let (mut writer, theirs) = Control::new()?;
    let files = draft.files()?;
    let mut descriptors = vec![theirs.as_fd(), files.state.as_fd(), files.memory.as_fd(), files.runs.as_fd()];
    descriptors.extend(of_chain(&base));
    let request = Persist { cgroup: false, base: parts(&base), packed: true };
    zygote.must(Command::Persist(request), &descriptors)?;
    drop(theirs);
    match writer.event()? {
        Event::Persisted(persisted) => {
            let draft = draft.settle()?;
            let hashed = draft.unhashed()?.hash()?;
            Ok(draft.publish(description(&persisted, disk_layers()?)?, hashed)?)
        }
        other => Err(format!("the writer says {other:?}").into()),
    }
}

fn description(persisted: &Persisted, disk_layers: Vec<DiskLayer>) -> Result<Description, Failure> {
    let regions = persisted.regions.iter().map(|&(address, length)| Region { address, length });
    Ok(Description {
        created_unix_ms: 0,
        cpu: Cpu {
            vendor: persisted.cpu_vendor.clone(),
            features: persisted.cpu_features.clone(),
            tsc_khz: persisted.tsc_khz,
        },
        layout: Layout::new(regions.collect())?,
        about: About::new(),
        local: About::new(),
        disk_layers,
    })
}

fn parts(chain: &[SnapshotFiles]) -> Vec<SnapshotParts> {
    let part = |files: &SnapshotFiles| SnapshotParts {
        name: files.name.display().to_string(),
        map: files.map.is_some(),
    };
    chain.iter().map(part).collect()
}

fn of_chain(chain: &[SnapshotFiles]) -> impl Iterator<Item = BorrowedFd<'_>> {
    let state = chain.last().and_then(|head| head.state.as_ref()).map(AsFd::as_fd);
    let files = chain.iter().flat_map(|files| {
        [files.manifest.as_fd(), files.memory.as_fd()].into_iter().chain(files.map.as_ref().map(AsFd::as_fd))
    });
    files.chain(state)
}

/// What a load needs beside the snapshot's own files.
#[derive(Debug)]
pub struct Host<'a> {
    /// The images below disks, of those that have one.
    pub disk_bases: Vec<&'a File>,
    /// The frozen layers of all disks, in order.
    pub disk_layers: Vec<&'a File>,
    pub memory_limit_bytes: u64,
}

impl Default for Host<'_> {
    fn default() -> Self {
        Host { disk_bases: Vec::new(), disk_layers: Vec::new(), memory_limit_bytes: u64::MAX }
    }
}

/// Asks a process without a VM to load a snapshot.
pub fn try_load(
    control: &mut Control,
    chain: &[SnapshotFiles],
    host: &Host<'_>,
) -> Result<Result<(), Refusal>, Failure> {
    let request = Load {
        chain: parts(chain),
        disk_bases: u8::try_from(host.disk_bases.len())?,
        disk_layers: u8::try_from(host.disk_layers.len())?,
        disks_checked: false,
        memory_limit_bytes: host.memory_limit_bytes,
    };
    let mut descriptors: Vec<_> = of_chain(chain).collect();
    descriptors.extend(host.disk_bases.iter().chain(&host.disk_layers).map(AsFd::as_fd));
    Ok(control.call(Command::Load(request), &descriptors)?.map(|_| ()))
}

/// A new zygote from a snapshot.
pub fn load(store: &Store, tag: &str) -> Result<(Started, Zygote), Failure> {
    load_with(store, tag, &Host::default())
}

/// The same with layers for its disk.
pub fn load_with(store: &Store, tag: &str, host: &Host<'_>) -> Result<(Started, Zygote), Failure> {
    let chain = store.open_chain(&tag.parse()?)?;
    let (started, mut control) = start()?;
    try_load(&mut control, &chain, host)?.map_err(|refusal| format!("load: {}", refusal.message))?;
    let pid = started.pid()?;
    Ok((started, Zygote { control, pid, disks: Vec::new() }))
}

/// Asks for a snapshot and kills the process that writes it.
pub fn persist_and_kill(draft: &Draft, zygote: &mut Zygote) -> Result<(), Failure> {
    let (writer, theirs) = Control::new()?;
    let files = draft.files()?;
    let request = Persist { cgroup: false, base: Vec::new(), packed: true };
    let descriptors = [theirs.as_fd(), files.state.as_fd(), files.memory.as_fd(), files.runs.as_fd()];
    let (_, pidfd) = zygote.control.must(Command::Persist(request), &descriptors)?;
    rustix::process::pidfd_send_signal(pidfd.ok_or("no pidfd")?, rustix::process::Signal::KILL)?;
    drop(writer);
    Ok(())
}
