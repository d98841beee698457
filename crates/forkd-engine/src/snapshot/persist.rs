//! Between a zygote and its files: persist writes them, load makes a process of them.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forkd_proto::channel::{Channel, ChannelError};
use forkd_proto::control::{
    Command, Descriptor, Event, Load, Persist, Persisted, Reply, SnapshotParts, WrittenFile,
};
use forkd_store::{
    Description, Digest, DigestError, DiskLayer, Draft, FileEntry, Layout, LayoutError, OpenError, Region,
    SealedManifest, SnapshotFiles, Tag, Written,
};

use tokio::sync::oneshot;

use crate::background::{BackgroundError, behind};
use crate::blocking::in_place;
use crate::engine::{PATIENCE, Shared};
use crate::error::EngineError;
use crate::fault;
use crate::places::PlaceError;
use crate::process::control::{CallError, Control};
use crate::process::descriptors::Named;
use crate::process::users::User;
use crate::process::{ProcessError, VmProcess, WithEvents};
use crate::record::{self, ZygoteRecord};
use crate::snapshot::checked::Seen;
use crate::snapshot::prefault::quiet;
use crate::snapshot::writer::{Awaited, Writer};
use crate::snapshot::{SnapshotStatus, Zygote};

/// A host that is never quiet is not waited for any longer before a snapshot is written.
const MOST_WAITING: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum PersistError {
    #[error("a control socket cannot be made")]
    Socket(#[from] ChannelError),
    #[error("the writer says {0:?}")]
    Writer(Option<Box<Event>>),
    #[error("the writer gives a digest that is none")]
    Digest(#[from] DigestError),
    #[error("the writer gives memory that cannot be")]
    Layout(#[from] LayoutError),
    #[error("a layer of the disk cannot be read")]
    Read(#[source] io::Error),
    #[error("the memory of its parent cannot be used")]
    Base(#[source] OpenError),
    #[error("what was written cannot be read again")]
    Background(#[from] BackgroundError),
    #[error("a task of the writing")]
    Task(#[from] tokio::task::JoinError),
    #[error("what is known of it cannot be written or read")]
    About(#[from] serde_json::Error),
}

/// Writes a zygote's snapshot: a diff if its parent is on disk, else all of it. It is begun when nobody forks or branches, or somebody
/// waits for it. Given up when it is unwanted before it has its name; from then on it is there.
pub(super) async fn persist(
    shared: &Arc<Shared>,
    zygote: &Zygote,
    awaited: &Awaited,
    unwanted: oneshot::Receiver<()>,
) -> Result<(), EngineError> {
    let prepared = async {
        tokio::select! {
            () = quiet(shared, MOST_WAITING) => {}
            () = awaited.asked_for() => {}
        }
        prepare(shared, zygote, awaited).await
    };
    let (draft, description, written) = tokio::select! {
        prepared = prepared => prepared?,
        _ = unwanted => return Err(EngineError::Removed),
    };
    fault::place("persist.written");
    // Syncs files.
    let published = tokio::task::spawn_blocking(move || draft.publish(description, written));
    published.await.map_err(PersistError::from)??;
    fault::place("persist.published");
    Ok(())
}

/// Everything but the name.
async fn prepare(
    shared: &Arc<Shared>,
    zygote: &Zygote,
    awaited: &Awaited,
) -> Result<(Draft, Description, Written), EngineError> {
    let record = &zygote.record;
    let parent = match &record.parent {
        Some(parent) => parent_on_disk(shared, parent, awaited).await,
        None => None,
    };
    // Not all at once, which nobody waits for.
    let _turn = tokio::select! {
        turn = shared.writing.acquire() => turn.ok(),
        () = awaited.asked_for() => None,
    };
    // A chain has an end; beyond it, and without a parent, all of the memory is written.
    let (draft, base, files) = in_place(|| {
        let diff = parent.and_then(|parent| {
            let draft = shared.store.draft(&record.tag, Some(&parent.link())).ok()?;
            Some((draft, shared.store.open_chain(&parent.manifest.tag).ok()?))
        });
        let (draft, base) = match diff {
            Some(diff) => diff,
            None => (shared.store.draft(&record.tag, None)?, Vec::new()),
        };
        let files = draft.files().map_err(EngineError::io("open the new files"))?;
        Ok::<_, EngineError>((draft, base, files))
    })?;
    let base = Base::check(shared, base, awaited).await?;
    let sealed = match shared.seal(&[&zygote.process], &record.disks, &mut BTreeSet::new()).await {
        Ok(()) => true,
        // Only an older daemon has promised one that is not sealed. Its process may not know how, and others may have its layers. What
        // is written is safe from them: whoever loads it looks at every byte.
        Err(EngineError::Call(CallError::Refused { .. }) | EngineError::LayerKept(_)) => false,
        Err(error) => return Err(error),
    };
    let persisted = write(shared, zygote, files, &base, awaited).await?;
    let description = describe(shared, record, &persisted, sealed, awaited).await?;
    Ok((draft, description, written(&persisted)?))
}

/// The parent, when its own writing has come to an end.
async fn parent_on_disk(shared: &Shared, parent: &Tag, awaited: &Awaited) -> Option<SealedManifest> {
    let handle = shared.snapshots.get(parent)?;
    if handle.view().status != SnapshotStatus::Ready {
        let settled = tokio::select! {
            settled = handle.settled() => settled,
            () = awaited.asked_for() => handle.durable().await,
        };
        settled.ok()?;
    }
    in_place(|| shared.store.manifest(parent)).ok()?
}

/// What a diff is made against.
struct Base {
    chain: Vec<SnapshotFiles>,
    /// Whether every byte of its memory is known to be right.
    checked: bool,
}

impl Base {
    async fn check(
        shared: &Arc<Shared>,
        chain: Vec<SnapshotFiles>,
        awaited: &Awaited,
    ) -> Result<Base, PersistError> {
        if in_place(|| shared.checked_images.has(&chain)) {
            return Ok(Base { chain, checked: true });
        }
        let shared = Arc::clone(shared);
        let check = move || shared.checked_images.check(&chain).map(|checked| Base { chain, checked });
        behind(awaited.wanted(), check).await?.map_err(PersistError::Base)
    }
}

/// Has a clone of the zygote write the memory and the state.
async fn write(
    shared: &Arc<Shared>,
    zygote: &Zygote,
    files: forkd_store::NewFiles,
    base: &Base,
    awaited: &Awaited,
) -> Result<Persisted, EngineError> {
    let (ours, theirs) = Channel::pair().map_err(PersistError::from)?;
    let mut named = Named::default()
        .with(Descriptor::Control, theirs.into_inner())
        .with(Descriptor::NewVmState, files.state)
        .with(Descriptor::NewMemory, files.memory);
    if let Some(map) = files.map {
        named = named.with(Descriptor::NewPageMap, map);
    }
    let named = chain(named, &base.chain)?;
    let (named, cgroup) = shared.with_writer_cgroup(named, &zygote.record);
    let (base, base_checked) = (parts(&base.chain), base.checked && !base.chain.is_empty());
    let command = Command::Persist(Persist { cgroup: cgroup.is_some(), base, base_checked });
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
        diff: files.map.is_some(),
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
    // A snapshot is nobody's.
    let about = record.clone().without_process();
    let about = record::to_object(&about).map_err(PersistError::from)?;
    let (shared, wanted) = (Arc::clone(shared), record.clone());
    let disk_layers = behind(awaited.wanted(), move || disk_layers(&shared, &wanted, sealed));
    let disk_layers = disk_layers.await.map_err(PersistError::from)??;
    let cpu_features = persisted.cpu_features.clone();
    Ok(Description { created_unix_ms: record.created_unix_ms, cpu_features, layout, about, disk_layers })
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
                let path = shared.places.layer(id);
                let file = File::open(&path).map_err(PlaceError::at("open", &path))?;
                file.sync_all().map_err(PlaceError::at("sync", &path))?;
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
    if let Some(layer) = shared.known_layers.get(&id).filter(|_| sealed) {
        return Ok(layer);
    }
    let (size, digest) = Digest::of_image(&open()?).map_err(PersistError::Read)?;
    let layer = DiskLayer { id, digest, size };
    if sealed {
        shared.known_layers.add([layer.clone()]);
    }
    Ok(layer)
}

fn written(persisted: &Persisted) -> Result<Written, PersistError> {
    let entry = |file: &WrittenFile| -> Result<FileEntry, PersistError> {
        Ok(FileEntry { size: file.size, digest: file.digest.parse()? })
    };
    Ok(Written {
        state: entry(&persisted.state)?,
        memory: entry(&persisted.memory)?,
        map: persisted.map.as_ref().map(entry).transpose()?,
    })
}

/// Makes a process of a snapshot on disk.
pub(crate) async fn load(shared: &Arc<Shared>, record: &ZygoteRecord) -> Result<WithEvents, EngineError> {
    let (files, seen) = in_place(|| {
        let files = shared.store.open_chain(&record.tag)?;
        let seen: Vec<_> = files.iter().map(Seen::of).collect();
        Ok::<_, EngineError>((files, seen))
    })?;
    let directory = shared.places.zygote(&record.tag);
    clear(&directory).await?;
    let user = shared.users.new_user(true).map_err(ProcessError::from)?;
    let record = &ZygoteRecord { user: user.as_ref().map(User::record), ..record.clone() };
    let named = in_place(|| {
        fs::create_dir(&directory).map_err(PlaceError::at("create", &directory))?;
        // It is none to fork from until it is loaded.
        record::write(&directory, &ZygoteRecord { promised: false, ..record.clone() })?;
        let mut named = chain(Named::default(), &files)?;
        for image in record.shape.images().flatten() {
            named = named.with(Descriptor::DiskBase, shared.base(image)?);
        }
        for id in record.disks.iter().flatten() {
            let path = shared.places.layer(id);
            let layer = File::open(&path).map_err(PlaceError::at("open", &path))?;
            named = named.with(Descriptor::DiskLayer, layer);
        }
        Ok::<_, EngineError>(named)
    })?;
    let count = |number: usize| u8::try_from(number).unwrap_or(u8::MAX);
    let command = Command::Load(Load {
        chain: parts(&files),
        disk_bases: count(record.shape.images().flatten().count()),
        disk_layers: count(record.disks.iter().flatten().count()),
        memory_limit_bytes: shared.limits.memory_bytes,
    });
    let (process, events) =
        VmProcess::start_lasting(&shared.program, &directory, user, record.shape.largest_file())?;
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
            Ok(()) => {
                // The process has run no guest, and has looked at every byte.
                let checked = files.iter().zip(seen).filter_map(|(files, seen)| Some((files, seen?)));
                in_place(|| {
                    for (files, seen) in checked {
                        shared.checked_images.add(files, seen);
                    }
                });
                return Ok((process, events));
            }
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
    // Nobody knows what the process of one has that cannot be read.
    record::read::<ZygoteRecord>(directory).map_err(ProcessError::from)?;
    if let Some(found) = tokio::time::timeout(PATIENCE, VmProcess::find(directory))
        .await
        .map_err(|_| EngineError::Timeout)??
    {
        found.process.0.end().await;
    }
    in_place(|| fs::remove_dir_all(directory)).map_err(PlaceError::at("remove", directory))?;
    Ok(())
}
