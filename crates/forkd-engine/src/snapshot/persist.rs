//! Between a zygote and its files: persist writes them, load makes a process of them.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::thread;

use forkd_proto::channel::{Channel, ChannelError};
use forkd_proto::control::{
    Command, Descriptor, Event, Load, Persist, Persisted, SnapshotParts, WrittenFile,
};
use forkd_store::{
    Description, Digest, DigestError, DiskLayer, Draft, FileEntry, Layout, LayoutError, Region,
    SnapshotFiles, Tag, Written,
};

use tokio::sync::oneshot;

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
use crate::snapshot::{SnapshotStatus, Zygote};

/// As much as the process that writes the memory gives way.
const NICE: i32 = 10;

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
    #[error("no thread can be started to read the disk's layers")]
    Thread(#[source] io::Error),
    #[error("the thread that read the disk's layers panicked")]
    Panicked,
    #[error("a task of the writing")]
    Task(#[from] tokio::task::JoinError),
    #[error("what is known of it cannot be written or read")]
    About(#[from] serde_json::Error),
}

/// Writes a zygote's snapshot: a diff if its parent is on disk, else all of it. Given up when it is unwanted before it has
/// its name; from then on it is there.
pub(crate) async fn persist(
    shared: &Arc<Shared>,
    zygote: &Zygote,
    unwanted: oneshot::Receiver<()>,
) -> Result<(), EngineError> {
    let (draft, description, written) = tokio::select! {
        prepared = prepare(shared, zygote) => prepared?,
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
) -> Result<(Draft, Description, Written), EngineError> {
    let record = &zygote.record;
    let parent = match &record.parent {
        Some(parent) => parent_on_disk(shared, parent).await,
        None => None,
    };
    // A chain has an end; beyond it, and without a parent, all of the memory is written.
    let (draft, base, files) = in_place(|| {
        let diff = parent.and_then(|parent| {
            let draft = shared.store.draft(&record.tag, Some(&parent)).ok()?;
            Some((draft, shared.store.open_chain(&parent.tag).ok()?))
        });
        let (draft, base) = match diff {
            Some(diff) => diff,
            None => (shared.store.draft(&record.tag, None)?, Vec::new()),
        };
        let files = draft.files().map_err(EngineError::io("open the new files"))?;
        Ok::<_, EngineError>((draft, base, files))
    })?;
    let persisted = write(shared, zygote, files, &base).await?;
    let description = describe(shared, record, &persisted).await?;
    Ok((draft, description, written(&persisted)?))
}

/// The parent, when its own writing has come to an end.
async fn parent_on_disk(shared: &Shared, parent: &Tag) -> Option<forkd_store::Link> {
    let handle = shared.snapshots.get(parent)?;
    if handle.view().status != SnapshotStatus::Ready {
        handle.durable().await.ok()?;
    }
    let listed = in_place(|| shared.store.list()).ok()?.into_iter().find(|listed| listed.tag == *parent)?;
    Some(listed.manifest.ok()?.link())
}

/// Has a clone of the zygote write the memory and the state.
async fn write(
    shared: &Shared,
    zygote: &Zygote,
    files: forkd_store::NewFiles,
    base: &[SnapshotFiles],
) -> Result<Persisted, EngineError> {
    let (ours, theirs) = Channel::pair().map_err(PersistError::from)?;
    let mut named = Named::default()
        .with(Descriptor::Control, theirs.into_inner())
        .with(Descriptor::NewVmState, files.state)
        .with(Descriptor::NewMemory, files.memory);
    if let Some(map) = files.map {
        named = named.with(Descriptor::NewPageMap, map);
    }
    let named = chain(named, base)?;
    let command = Command::Persist(Persist { cgroup: false, base: parts(base) });
    let descriptors = named.for_command(&command);
    let (_writer, mut events) = Control::new(ours).map_err(EngineError::io("wait for the writer"))?;
    match shared.seal(&[&zygote.process], &zygote.record.disks, &mut BTreeSet::new()).await {
        // Only an older daemon has promised one that is not sealed. Its process may not know how, and others may have its layers. What
        // is written is safe from them: whoever loads it looks at every byte.
        Ok(()) | Err(EngineError::Call(CallError::Refused { .. }) | EngineError::LayerKept(_)) => {}
        Err(error) => return Err(error),
    }
    zygote.process.give_page_table().await;
    zygote.process.control.call(command, &descriptors).await?;
    drop(descriptors);
    match events.recv().await {
        Some(Event::Persisted(persisted)) => Ok(persisted),
        other => Err(PersistError::Writer(other.map(Box::new)).into()),
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
) -> Result<Description, EngineError> {
    let regions = persisted.regions.iter().map(|&(address, length)| Region { address, length });
    let layout = Layout::new(regions.collect()).map_err(PersistError::from)?;
    // A snapshot is nobody's.
    let about = record.clone().without_process();
    let about = record::to_object(&about).map_err(PersistError::from)?;
    let (shared, wanted) = (Arc::clone(shared), record.clone());
    let disk_layers = politely(move || disk_layers(&shared, &wanted)).await??;
    let cpu_features = persisted.cpu_features.clone();
    Ok(Description { created_unix_ms: record.created_unix_ms, cpu_features, layout, about, disk_layers })
}

/// Does what takes long and nobody waits for, in a thread that gives way to everything else on the host.
async fn politely<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, PersistError> {
    let (done, result) = oneshot::channel();
    let polite = move || {
        // Without it the work is only less polite. It is this thread's own, and those that it starts have it too.
        let _ = rustix::process::nice(NICE);
        // Whoever asked may be gone.
        let _ = done.send(work());
    };
    thread::Builder::new().name("persist".into()).spawn(polite).map_err(PersistError::Thread)?;
    result.await.map_err(|_| PersistError::Panicked)
}

/// What a manifest says of disks: the image and the frozen layers of each, none of which is written to any more.
fn disk_layers(shared: &Shared, record: &ZygoteRecord) -> Result<Vec<DiskLayer>, EngineError> {
    // A manifest that survives a loss of power must name files that do.
    shared.sync_layers()?;
    let mut layers = Vec::new();
    for (image, frozen) in record.shape.images().zip(&record.disks) {
        if let Some(image) = image {
            layers.push(base_layer(shared, image)?);
        }
        for id in frozen {
            let path = shared.places.layer(id);
            let file = File::open(&path).map_err(PlaceError::at("open", &path))?;
            file.sync_all().map_err(PlaceError::at("sync", &path))?;
            layers.push(layer(id.as_str(), &file)?);
        }
    }
    Ok(layers)
}

fn base_layer(shared: &Shared, image: &forkd_image::digest::Digest) -> Result<DiskLayer, EngineError> {
    let known = || shared.bases.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(layer) = known().get(image) {
        return Ok(layer.clone());
    }
    let layer = layer(&image.hex(), &shared.base(image)?)?;
    known().insert(*image, layer.clone());
    Ok(layer)
}

fn layer(id: &str, file: &File) -> Result<DiskLayer, EngineError> {
    let (size, digest) = Digest::of_image(file).map_err(PersistError::Read)?;
    Ok(DiskLayer { id: id.parse()?, digest, size })
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
    let files = in_place(|| shared.store.open_chain(&record.tag))?;
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
