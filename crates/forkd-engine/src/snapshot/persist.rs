//! Between a zygote and its files: persist writes them, load makes a process of them.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forkd_proto::channel::{Channel, ChannelError};
use forkd_proto::control::{Command, Descriptor, Event, Load, Persist, Persisted, Reply, SnapshotParts};
use forkd_store::{
    ChainError, Content, Cpu, Description, Digest, DiskLayer, Draft, Hashed, LayerEntry, Layout, LayoutError,
    Region, SettledDraft, SnapshotFiles, Stored, Tag, WriteError,
};

use tokio::sync::oneshot;

use crate::background::{BackgroundError, behind};
use crate::blocking::in_place;
use crate::disk::writers::{Writers, writers};
use crate::engine::{PATIENCE, Shared};
use crate::error::EngineError;
use crate::fault;
use crate::paths::PathError;
use crate::process::control::{CallError, Control};
use crate::process::descriptors::Named;
use crate::process::users::User;
use crate::process::{ProcessError, VmProcess, WithEvents};
use crate::record::{self, PortableRecord, ZygoteRecord};
use crate::snapshot::prefault::quiet;
use crate::snapshot::writer::{Awaited, Writer};
use crate::snapshot::{SnapshotStatus, Zygote};

/// A host that is never quiet is not waited for any longer before a snapshot is written.
const MOST_WAITING: Duration = Duration::from_secs(10);
/// What a writer may take to close its files after it has said that they are written.
const GIVING_UP: Duration = Duration::from_secs(10);
/// Between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

#[derive(Debug, thiserror::Error)]
pub enum PersistError {
    #[error("cannot make a control socket")]
    Socket(#[from] ChannelError),
    #[error("unexpected message of the writer: {0:?}")]
    Writer(Option<Box<Event>>),
    #[error("the writer describes an invalid memory layout")]
    Layout(#[from] LayoutError),
    #[error("cannot read a layer of the disk")]
    Read(#[source] io::Error),
    #[error("cannot read the written files")]
    Background(#[from] BackgroundError),
    #[error("a task of the writer failed")]
    Task(#[from] tokio::task::JoinError),
    #[error("its writer did not close its files within {} s", GIVING_UP.as_secs())]
    Kept,
    #[error("cannot write or read its metadata")]
    About(#[from] serde_json::Error),
}

/// Writes a zygote's snapshot: a diff if its parent is on disk, else all of it. It is begun when no fork or branch runs, or a request
/// waits for it. Given up when it is unwanted before it has its name; from then on it is there.
pub(super) async fn persist(
    shared: &Arc<Shared>,
    zygote: &Zygote,
    awaited: &Awaited,
    mut unwanted: oneshot::Receiver<()>,
) -> Result<(), EngineError> {
    match write_once(shared, zygote, awaited, &mut unwanted).await {
        // The parent was compacted meanwhile: it has the same memory, under another digest.
        Err(EngineError::Write(WriteError::WrongParent { .. })) => {
            write_once(shared, zygote, awaited, &mut unwanted).await
        }
        written => written,
    }
}

async fn write_once(
    shared: &Arc<Shared>,
    zygote: &Zygote,
    awaited: &Awaited,
    unwanted: &mut oneshot::Receiver<()>,
) -> Result<(), EngineError> {
    let prepared = async {
        tokio::select! {
            () = quiet(shared, MOST_WAITING) => {}
            () = awaited.asked_for() => {}
        }
        prepare(shared, zygote, awaited).await
    };
    let (draft, description, hashed) = tokio::select! {
        prepared = prepared => prepared?,
        _ = unwanted => return Err(EngineError::Removed),
    };
    fault::place("persist.written");
    // Syncs files. Not in a thread of its own, which would outlive this engine's runtime.
    let published = tokio::task::spawn_blocking(move || draft.publish(description, hashed));
    published.await.map_err(PersistError::from)??;
    fault::place("persist.published");
    Ok(())
}

/// Everything but the name.
async fn prepare(
    shared: &Arc<Shared>,
    zygote: &Zygote,
    awaited: &Awaited,
) -> Result<(SettledDraft, Description, Hashed), EngineError> {
    let record = &zygote.record;
    let parent = match &record.parent {
        Some(parent) => parent_on_disk(shared, parent, awaited).await,
        None => None,
    };
    // Not all at once: no request waits for it.
    let _turn = tokio::select! {
        turn = shared.writing.acquire() => turn.ok(),
        () = awaited.asked_for() => None,
    };
    // A chain has an end; beyond it, and without a parent, all of the memory is written.
    let (draft, base) = in_place(|| {
        let diff = parent.and_then(|parent| {
            let draft = shared.store.draft(&record.tag, Some(&parent.link())).ok()?;
            Some((draft, shared.store.open_chain(&parent.tag).ok()?))
        });
        match diff {
            Some(diff) => Ok(diff),
            None => Ok::<_, EngineError>((shared.store.draft(&record.tag, None)?, Vec::new())),
        }
    })?;
    let sealed = match shared.seal(&[&zygote.process], &record.disks, &mut BTreeSet::new()).await {
        Ok(()) => shared.knows_writers()?,
        // Only an older daemon has promised one that is not sealed. Its process may not know how, and others may have its layers. What
        // is written is safe from them: its load checks every byte.
        Err(EngineError::Call(CallError::Refused { .. }) | EngineError::LayerKept(_)) => false,
        Err(error) => return Err(error),
    };
    let persisted = match write(shared, zygote, &draft, &base, true, awaited).await {
        // A process of an older version writes pages at their places only.
        Err(EngineError::Call(CallError::Refused { .. })) if base.is_empty() => {
            write(shared, zygote, &draft, &base, false, awaited).await?
        }
        written => written?,
    };
    let draft = settle(draft).await?;
    let unhashed = draft.unhashed()?;
    let hashed = behind(awaited.wanted(), move || unhashed.hash()).await.map_err(PersistError::from)??;
    let description = describe(shared, record, &persisted, sealed, awaited).await?;
    Ok((draft, description, hashed))
}

/// Waits until no process can write to what was written.
async fn settle(draft: Draft) -> Result<SettledDraft, EngineError> {
    let mut settled = in_place(|| draft.settle())?;
    let begun = Instant::now();
    loop {
        let found = in_place(|| settled.files().map(writers).into_iter().collect::<io::Result<Vec<_>>>());
        let found = found.map_err(EngineError::io("find out who can write to a snapshot"))?;
        if found.iter().all(|writers| *writers == Writers::None) {
            return Ok(settled);
        }
        if found.contains(&Writers::Unknown) {
            in_place(|| settled.copy())?;
            return Ok(settled);
        }
        if begun.elapsed() > GIVING_UP {
            return Err(PersistError::Kept.into());
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// The parent, when its own writing has come to an end.
async fn parent_on_disk(shared: &Shared, parent: &Tag, awaited: &Awaited) -> Option<Stored> {
    let handle = shared.snapshots.get(parent)?;
    if handle.view().status != SnapshotStatus::Ready {
        let settled = tokio::select! {
            settled = handle.settled() => settled,
            () = awaited.asked_for() => handle.durable().await,
        };
        settled.ok()?;
    }
    in_place(|| shared.store.get(parent)).ok()?
}

/// Has a clone of the zygote write the memory and the state.
async fn write(
    shared: &Arc<Shared>,
    zygote: &Zygote,
    draft: &Draft,
    base: &[SnapshotFiles],
    packed: bool,
    awaited: &Awaited,
) -> Result<Persisted, EngineError> {
    let files = draft.files().map_err(EngineError::io("open the new files"))?;
    let (ours, theirs) = Channel::pair().map_err(PersistError::from)?;
    let mut named = Named::default()
        .with(Descriptor::Control, theirs.into_inner())
        .with(Descriptor::NewVmState, files.state)
        .with(Descriptor::NewMemory, files.memory);
    if packed {
        named = named.with(Descriptor::NewPageMap, files.runs);
    }
    let named = chain(named, base)?;
    let (named, cgroup) = shared.with_writer_cgroup(named, &zygote.record);
    let command = Command::Persist(Persist { cgroup: cgroup.is_some(), base: parts(base), packed });
    let mut writer = Writer::new(cgroup);
    let descriptors = named.for_command(&command);
    let (_control, mut events) = Control::new(ours).map_err(EngineError::io("wait for the writer"))?;
    zygote.process.give_page_table().await;
    let (reply, mut pidfds) = zygote.process.control.call(command, &descriptors).await?;
    drop(descriptors);
    if let (Reply::Forked { pid }, Some(pidfd)) = (reply, pidfds.pop()) {
        writer.begun(zygote.process.pid, pid, pidfd);
    }
    tokio::select! {
        event = events.recv() => match event {
            Some(Event::Persisted(persisted)) => Ok(persisted),
            other => Err(PersistError::Writer(other.map(Box::new)).into()),
        },
        never = writer.stand_back(awaited) => match never {},
    }
}

fn parts(chain: &[SnapshotFiles]) -> Vec<SnapshotParts> {
    let part = |files: &SnapshotFiles| SnapshotParts {
        name: files.name.display().to_string(),
        map: files.map.is_some(),
    };
    chain.iter().map(part).collect()
}

/// Adds the files of a chain, in its order.
fn chain(mut named: Named, chain: &[SnapshotFiles]) -> Result<Named, EngineError> {
    let again =
        |file: &File| file.try_clone().map(OwnedFd::from).map_err(EngineError::io("open a file again"));
    for files in chain {
        named = named
            .with(Descriptor::Manifest, again(&files.manifest)?)
            .with(Descriptor::Memory, again(&files.memory)?);
        if let Some(map) = &files.map {
            named = named.with(Descriptor::PageMap, again(map)?);
        }
    }
    if let Some(state) = chain.last().and_then(|head| head.state.as_ref()) {
        named = named.with(Descriptor::VmState, again(state)?);
    }
    Ok(named)
}

async fn describe(
    shared: &Arc<Shared>,
    record: &ZygoteRecord,
    persisted: &Persisted,
    sealed: bool,
    awaited: &Awaited,
) -> Result<Description, EngineError> {
    let regions = persisted.regions.iter().map(|&(address, length)| Region { address, length });
    let layout = Layout::new(regions.collect()).map_err(PersistError::from)?;
    // A snapshot has no owner.
    let local = ZygoteRecord { layers_unsealed: !sealed, ..record.clone().without_process() };
    let local = record::to_object(&local).map_err(PersistError::from)?;
    let about = record::to_object(&PortableRecord::of(record)).map_err(PersistError::from)?;
    let (shared, wanted) = (Arc::clone(shared), record.clone());
    let disk_layers = behind(awaited.wanted(), move || disk_layers(&shared, &wanted, sealed));
    let disk_layers = disk_layers.await.map_err(PersistError::from)??;
    let cpu = Cpu {
        vendor: persisted.cpu_vendor.clone(),
        features: persisted.cpu_features.clone(),
        tsc_khz: persisted.tsc_khz,
    };
    Ok(Description { created_unix_ms: record.created_unix_ms, cpu, layout, about, local, disk_layers })
}

/// What a manifest says of disks: the image and the frozen layers of each. If they are sealed, none of them is written to any more, and
/// what is known of one holds.
fn disk_layers(shared: &Shared, record: &ZygoteRecord, sealed: bool) -> Result<Vec<DiskLayer>, EngineError> {
    // A manifest that survives a loss of power must name files that do.
    shared.sync_layers()?;
    let mut layers = Vec::new();
    for (image, frozen) in record.shape.images().zip(&record.disks) {
        if let Some(image) = image {
            let open = || shared.base(image);
            layers.push(layer(shared, &image.hex(), true, open)?);
        }
        for id in frozen {
            let open = || {
                let path = shared.paths.layer(id);
                let file = File::open(&path).map_err(PathError::at("open", &path))?;
                file.sync_all().map_err(PathError::at("sync", &path))?;
                Ok(file)
            };
            layers.push(layer(shared, id.as_str(), sealed, open)?);
        }
    }
    Ok(layers)
}

/// What is known of a layer, or what is found out by reading it.
fn layer(
    shared: &Shared,
    id: &str,
    sealed: bool,
    open: impl FnOnce() -> Result<File, EngineError>,
) -> Result<DiskLayer, EngineError> {
    let id: Tag = id.parse()?;
    if let Some(entry) = shared.known_layers.get(&id).filter(|_| sealed) {
        return Ok(DiskLayer { id, entry });
    }
    let (size, digest) = Digest::of_image(&open()?).map_err(PersistError::Read)?;
    let entry = LayerEntry { digest, size };
    if sealed {
        shared.known_layers.add([(id.clone(), entry)]);
    }
    Ok(DiskLayer { id, entry })
}

/// Makes a process of a snapshot on disk.
pub(crate) async fn load(shared: &Arc<Shared>, record: &ZygoteRecord) -> Result<WithEvents, EngineError> {
    let (files, disks_checked) = in_place(|| {
        let files = shared.store.open_chain(&record.tag)?;
        // Version 1 says of its layers what the process that wrote it said.
        let stored = shared.store.get(&record.tag).map_err(ChainError::from)?;
        let is_sealed =
            stored.is_some_and(|stored| matches!(stored.manifest().content, Content::Framed { .. }));
        Ok::<_, EngineError>((files, is_sealed && !record.layers_unsealed))
    })?;
    let directory = shared.paths.zygote(&record.tag);
    clear(&directory).await?;
    let user = shared.users.new_user(true).map_err(ProcessError::from)?;
    let record = &ZygoteRecord { user: user.as_ref().map(User::record), ..record.clone() };
    let named = in_place(|| {
        fs::create_dir(&directory).map_err(PathError::at("create", &directory))?;
        // It cannot be forked until it is loaded.
        record::write(&directory, &ZygoteRecord { promised: false, ..record.clone() })?;
        let mut named = chain(Named::default(), &files)?;
        for image in record.shape.images().flatten() {
            named = named.with(Descriptor::DiskBase, shared.base(image)?);
        }
        for id in record.disks.iter().flatten() {
            let path = shared.paths.layer(id);
            let layer = File::open(&path).map_err(PathError::at("open", &path))?;
            named = named.with(Descriptor::DiskLayer, layer);
        }
        Ok::<_, EngineError>(named)
    })?;
    let count = |number: usize| u8::try_from(number).unwrap_or(u8::MAX);
    let command = Command::Load(Load {
        chain: parts(&files),
        disk_bases: count(record.shape.images().flatten().count()),
        disk_layers: count(record.disks.iter().flatten().count()),
        disks_checked,
        memory_limit_bytes: shared.limits.memory_bytes,
    });
    let (process, events) =
        VmProcess::start_detached(&shared.program, &directory, user, record.shape.largest_file())?;
    fault::place("load.started");
    let descriptors = named.for_command(&command);
    let loaded = async {
        shared.enter_zygote_cgroup(&record.tag, &record.shape, process.pid)?;
        shared.call(&process, command, &descriptors).await
    };
    let loaded = tokio::time::timeout(PATIENCE * 10, loaded).await;
    fault::place("load.loaded");
    let failed = match loaded {
        Ok(Ok(_)) => match record::write(&directory, record) {
            Ok(()) => return Ok((process, events)),
            Err(error) => error.into(),
        },
        Ok(Err(error)) => error,
        Err(_) => EngineError::Timeout,
    };
    process.kill();
    let _ = in_place(|| fs::remove_dir_all(&directory));
    Err(failed)
}

/// Removes the directory of a process that has ended. One that lives is of a daemon that died while it was loading, and goes.
async fn clear(directory: &Path) -> Result<(), EngineError> {
    if !directory.exists() {
        return Ok(());
    }
    // It is unknown what the process of an unreadable one has.
    record::read::<ZygoteRecord>(directory).map_err(ProcessError::from)?;
    if let Some(found) = tokio::time::timeout(PATIENCE, VmProcess::find(directory))
        .await
        .map_err(|_| EngineError::Timeout)??
    {
        found.process.0.end().await;
    }
    in_place(|| fs::remove_dir_all(directory)).map_err(PathError::at("remove", directory))?;
    Ok(())
}
