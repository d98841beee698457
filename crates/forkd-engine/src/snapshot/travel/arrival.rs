//! A snapshot that comes from another host.
//!
//! ```text
//!   manifests checked ─▶ names taken ─▶ disk space checked
//!     ─▶ layers of disks, and the image below: those that are here are not fetched
//!     ─▶ the chain from its base up: a snapshot that is here, by its digest, is not fetched
//!     ─▶ the head has its name, and can be forked
//! ```
//!
//! What fails leaves nothing: snapshots that came whole before it failed are removed again, and so are their layers.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use forkd_api::snapshot::BASE_PREFIX;
use forkd_hub::{Artifact, ByteSink, FetchError, Fetched, Have, Progress, Role, Stream};
use forkd_image::digest::{Digest as ImageDigest, Hasher};
use forkd_image::images::BuiltImage;
use forkd_proto::agent::{OLDEST_VERSION, VERSION};
use forkd_proto::control::Prefault;
use forkd_proto::host_cpu::{GuestCpu, HostCpu};
use forkd_store::{Digest, LayerEntry, Link, Local, PackedFile, PageMap, Tag};

use crate::disk::merge::Unrecorded;
use crate::engine::{Shared, unix_ms};
use crate::error::EngineError;
use crate::ids::LayerId;
use crate::limits::owner::Owner;
use crate::process::descriptors::create;
use crate::record::{self, Shape, ZygoteRecord};
use crate::registry::Reservation;
use crate::snapshot::travel::{ImageNotes, Itinerary, Stage, TravelError, keep_tables, layer_names};
use crate::snapshot::{self, SnapshotHandle};

/// The largest of the small streams, which are read into memory.
const MAX_SMALL: u64 = 64 << 20;

/// Where an artifact comes from.
pub trait Origin: Sync {
    fn fetch(
        &self,
        stream: &Stream,
        have: Have<'_>,
        sink: &dyn ByteSink,
        progress: &dyn Progress,
    ) -> Result<Fetched, FetchError>;
}

impl Origin for forkd_hub::layout::Layout {
    fn fetch(
        &self,
        stream: &Stream,
        have: Have<'_>,
        sink: &dyn ByteSink,
        progress: &dyn Progress,
    ) -> Result<Fetched, FetchError> {
        forkd_hub::layout::Layout::fetch(self, stream, have, sink, progress)
    }
}

impl Origin for forkd_hub::registry::Repository {
    fn fetch(
        &self,
        stream: &Stream,
        have: Have<'_>,
        sink: &dyn ByteSink,
        progress: &dyn Progress,
    ) -> Result<Fetched, FetchError> {
        forkd_hub::registry::Repository::fetch(self, stream, have, sink, progress)
    }
}

/// What is to become of it here.
#[derive(Debug, Clone)]
pub struct Destination {
    /// Without one it is called what the sender calls it.
    pub tag: Option<Tag>,
    pub owner: Option<Owner>,
}

/// Takes a snapshot in. Blocks for as long as it takes; must be called within a tokio runtime, off its workers.
pub(crate) fn receive(
    shared: &Arc<Shared>,
    artifact: &Artifact,
    origin: &dyn Origin,
    destination: &Destination,
    progress: &dyn Progress,
) -> Result<SnapshotHandle, EngineError> {
    let itinerary = Itinerary::from_about(artifact.about())?;
    let chain = itinerary.chain()?;
    check_host(shared, &chain, itinerary.state_version)?;
    let tag: Tag = match &destination.tag {
        Some(tag) => tag.clone(),
        None => itinerary.name.parse()?,
    };
    let name = shared.snapshots.reserve(&tag).ok_or_else(|| EngineError::NameTaken(tag.clone()))?;
    let mut arrival = Arrival {
        shared,
        artifact,
        origin,
        progress,
        destination,
        layers: BTreeMap::new(),
        published: Vec::new(),
    };
    let arrived = arrival.fetch(&itinerary, &chain, &tag);
    match arrived {
        Ok(record) => {
            let handle = snapshot::own_stored(shared, record);
            name.fill(handle.clone());
            arrival.keep();
            Ok(handle)
        }
        Err(error) => {
            arrival.undo();
            Err(error)
        }
    }
}

/// Refuses what this host cannot run, before anything is fetched. Who cannot be asked is asked again by whoever loads it.
fn check_host(shared: &Shared, chain: &[Stage], state_version: u32) -> Result<(), EngineError> {
    let Some(head) = chain.last() else { return Ok(()) };
    let found = head.record.shape.agent_version;
    if !(OLDEST_VERSION..=VERSION).contains(&found) {
        return Err(TravelError::Agent { found }.into());
    }
    let asked = Command::new(&shared.program).arg("cpu").stdin(Stdio::null()).output();
    let output = asked.map_err(EngineError::io("ask for this host's CPU"))?;
    let Ok(host) = serde_json::from_slice::<HostCpu>(&output.stdout) else { return Ok(()) };
    let cpu = &head.sealed.manifest.cpu;
    let guest = GuestCpu {
        vendor: cpu.vendor.as_deref(),
        features: &cpu.features,
        tsc_khz: cpu.tsc_khz,
        state_version,
    };
    host.check(guest).map_err(|lacking| TravelError::Host { lacking })?;
    let (needed, available) = (head.sealed.manifest.layout.size(), shared.limits.memory_bytes);
    if needed > available {
        return Err(TravelError::Memory { needed, available }.into());
    }
    Ok(())
}

struct Arrival<'a> {
    shared: &'a Arc<Shared>,
    artifact: &'a Artifact,
    origin: &'a dyn Origin,
    progress: &'a dyn Progress,
    destination: &'a Destination,
    /// Layers by the digests of their contents: those that are new with what removes them.
    layers: BTreeMap<Digest, (LayerId, Option<Unrecorded>)>,
    /// Snapshots below the head that are here now.
    published: Vec<(ZygoteRecord, Reservation<Tag, SnapshotHandle>)>,
}

impl Arrival<'_> {
    fn fetch(
        &mut self,
        itinerary: &Itinerary,
        chain: &[Stage],
        tag: &Tag,
    ) -> Result<ZygoteRecord, EngineError> {
        let mut parent: Option<Link> = None;
        let mut head = None;
        for (index, stage) in chain.iter().enumerate() {
            let is_head = index + 1 == chain.len();
            if !is_head && let Some(here) = self.shared.store.find(&stage.sealed.digest)? {
                parent = Some(here.link());
                continue;
            }
            let (record, link) =
                self.stage(itinerary.image.as_ref(), stage, parent.as_ref(), is_head.then_some(tag))?;
            parent = Some(link);
            head = Some(record);
        }
        // There is at least one.
        head.ok_or_else(|| TravelError::Count { found: 0 }.into())
    }

    /// One snapshot of the chain.
    fn stage(
        &mut self,
        image: Option<&ImageNotes>,
        stage: &Stage,
        parent: Option<&Link>,
        tag: Option<&Tag>,
    ) -> Result<(ZygoteRecord, Link), EngineError> {
        // What is below the head is named by what it is.
        let (tag, name) = match tag {
            Some(tag) => (tag.clone(), None),
            None => {
                let tag: Tag = format!("{BASE_PREFIX}{}", &stage.name()[..24]).parse()?;
                let name = self.shared.snapshots.reserve(&tag);
                (tag.clone(), Some(name.ok_or(EngineError::NameTaken(tag))?))
            }
        };
        let (record, layers) = self.record(image, stage, parent, &tag)?;
        let about = record::to_object(&record).map_err(TravelError::from)?;
        let local = Local { parent: None, layers, about };
        let received = self.shared.store.receive(&tag, parent, stage.text.clone().into_bytes(), local)?;
        let name_of = stage.name();
        let manifest = &stage.sealed.manifest;
        self.stream_into(Role::State, &name_of, manifest.state.size, &received.state)?;
        let map_size = manifest.content.map().map_or(0, |map| map.size);
        self.stream_into(Role::MemoryMap, &name_of, map_size, &received.map)?;
        let frames = received.frames()?;
        let memory = self.stream(Role::Memory, &name_of)?;
        // They are checked with the digests of the table, so these have to be those of the map.
        let table: Vec<Digest> =
            memory.table.frame_digests().map(|hash| Digest::from_bytes(*hash.as_bytes())).collect();
        if table != frames {
            return Err(EngineError::from(forkd_store::ReceiveError::Frames));
        }
        self.stream_into(Role::Memory, &name_of, manifest.memory.size, &received.memory)?;
        self.shared.sync_layers()?;
        let stored = received.publish(&frames)?;
        self.record_layers();
        let link = stored.link();
        self.prefetch(stage, &link);
        // Whoever pushes it from here sends the blobs that it came in.
        keep_tables(self.shared, &link, &layer_names(&stage.sealed.manifest), self.artifact.streams());
        if let Some(name) = name {
            self.published.push((record.clone(), name));
        }
        Ok((record, link))
    }

    /// What this host knows of it, with its disks.
    fn record(
        &mut self,
        notes: Option<&ImageNotes>,
        stage: &Stage,
        parent: Option<&Link>,
        tag: &Tag,
    ) -> Result<(ZygoteRecord, Vec<Tag>), EngineError> {
        let mut entries = stage.sealed.manifest.disk_layers.iter().copied();
        let mut names = Vec::new();
        let mut image = None;
        if let Some(entry) = stage.record.has_image.then(|| entries.next()).flatten() {
            let id = self.image(notes, entry)?;
            names.push(id.hex().parse()?);
            image = Some(id);
        }
        let mut disks = Vec::new();
        for count in &stage.record.layers {
            let mut layers = Vec::new();
            for entry in entries.by_ref().take(*count) {
                let id = self.layer(entry)?;
                names.push(id.as_str().parse()?);
                layers.push(id);
            }
            disks.push(layers);
        }
        let owner = self.destination.owner.as_ref();
        let record = ZygoteRecord {
            tag: tag.clone(),
            parent: parent.map(|parent| parent.tag.clone()),
            branched_from: None,
            created_unix_ms: unix_ms(),
            pause_us: None,
            shape: Shape { image, ..stage.record.shape.clone() },
            disks,
            user: None,
            generation: stage.record.generation,
            policy: stage.record.policy.clone(),
            cgroup: None,
            owner: None,
            maker: owner.map(|owner| owner.name.clone()),
            project: owner.map(|owner| owner.project.clone()).unwrap_or_default(),
            frozen_bytes: 0,
            layers_unsealed: false,
            build_key: None,
            promised: true,
        };
        Ok((record, names))
    }

    /// A layer with these contents: one that is here, or a new one.
    fn layer(&mut self, entry: LayerEntry) -> Result<LayerId, EngineError> {
        if let Some((id, _)) = self.layers.get(&entry.digest) {
            return Ok(id.clone());
        }
        let known = self.shared.known_layers.find(entry);
        let known = known.into_iter().filter_map(|id| LayerId::try_from(id.to_string()).ok());
        let mut there = known.filter(|id| self.shared.places.layer(id).is_file());
        let (id, new) = match there.next() {
            Some(id) => (id, None),
            None => {
                let id = LayerId::random().map_err(EngineError::io("get random numbers"))?;
                let new = Unrecorded::new(self.shared, id.clone());
                let file = create(&self.shared.places.layer(&id))?;
                self.unpack(entry, file)?;
                self.shared.known_layers.add([(id.as_str().parse()?, entry)]);
                (id, Some(new))
            }
        };
        self.layers.insert(entry.digest, (id.clone(), new));
        Ok(id)
    }

    /// An image with these contents: one that is here, or a new one. Its name says what it has, and not what its sender calls it.
    fn image(&mut self, notes: Option<&ImageNotes>, entry: LayerEntry) -> Result<ImageDigest, EngineError> {
        let known = self.shared.known_layers.find(entry);
        for id in known.iter().filter_map(|id| format!("sha256:{id}").parse::<ImageDigest>().ok()) {
            if self.shared.images.get(id)?.is_some() {
                return Ok(id);
            }
        }
        let notes = notes.cloned();
        let key = Hasher::new("forkd snapshot's image").part(entry.digest.as_bytes()).finish();
        let built = BuiltImage {
            key,
            config: notes.as_ref().map(|notes| notes.config.clone()).unwrap_or_default(),
            recipe: None,
            default_user: notes.map_or_else(|| "root".into(), |notes| notes.default_user),
            name: None,
        };
        if let Some(image) = self.shared.images.find_built(&built)? {
            return Ok(image.id());
        }
        let scratch = self.shared.images.scratch()?;
        let path = scratch.path().join("base.ext4");
        self.unpack(entry, create(&path)?)?;
        let image = self.shared.images.adopt(&path, built)?;
        self.shared.known_layers.add([(image.id().hex().parse()?, entry)]);
        Ok(image.id())
    }

    /// Fetches the contents of a disk layer, and looks at every byte of it.
    fn unpack(&self, entry: LayerEntry, file: File) -> Result<(), EngineError> {
        let name = entry.digest.to_string();
        let map = self.small(Role::DiskMap, &name)?;
        let unusable = |source| TravelError::LayerMap { name: entry.digest, source };
        let map = PageMap::parse(&map).map_err(|error| unusable(error.into()))?;
        let packed = PackedFile::unpack(file, entry.size, map).map_err(unusable)?;
        let stream = self.stream(Role::Disk, &name)?;
        check_size("the disk layer", &name, stream.table.size(), packed.length())?;
        self.fetch_into(stream, &Unpacking(&packed))?;
        packed.file().sync_all().map_err(EngineError::io("sync a disk layer"))?;
        let (_, found) = Digest::of_image(packed.file()).map_err(EngineError::io("read a disk layer"))?;
        if found != entry.digest {
            return Err(TravelError::Layer { name: entry.digest, found }.into());
        }
        Ok(())
    }

    /// What children use first. Without it they begin slower, and it is learned again.
    fn prefetch(&self, stage: &Stage, link: &Link) {
        let Ok(bytes) = self.small(Role::Prefetch, &stage.name()) else { return };
        let Ok(list) = serde_json::from_slice::<Prefault>(&bytes) else { return };
        // One that names memory which the snapshot does not have is not used: whoever reads it looks.
        let _ = self.shared.store.keep_prefault(&link.tag, &link.digest, &list);
    }

    fn stream(&self, role: Role, name: &str) -> Result<&Stream, TravelError> {
        let what = match role {
            Role::Memory => "the memory of",
            Role::MemoryMap => "the page map of",
            Role::State => "the state of",
            Role::Disk => "the disk layer",
            Role::DiskMap => "the map of the disk layer",
            Role::Prefetch => "the list of first pages of",
        };
        self.artifact.stream(role, name).ok_or_else(|| TravelError::NoStream { what, name: name.into() })
    }

    /// Fetches a stream of so many bytes into a file.
    fn stream_into(&self, role: Role, name: &str, expected: u64, file: &File) -> Result<(), EngineError> {
        let stream = self.stream(role, name)?;
        check_size("the stream of", name, stream.table.size(), expected)?;
        self.fetch_into(stream, file)
    }

    fn small(&self, role: Role, name: &str) -> Result<Vec<u8>, EngineError> {
        let stream = self.stream(role, name)?;
        let size = stream.table.size();
        if size > MAX_SMALL {
            return Err(TravelError::Size {
                what: "the stream of",
                name: name.into(),
                found: size,
                expected: MAX_SMALL,
            }
            .into());
        }
        let bytes = InMemory(Mutex::new(vec![0; usize::try_from(size).unwrap_or(0)]));
        self.fetch_into(stream, &bytes)?;
        bytes.0.into_inner().map_err(|_| TravelError::Cancelled.into())
    }

    fn fetch_into(&self, stream: &Stream, sink: &dyn ByteSink) -> Result<(), EngineError> {
        if self.progress.is_cancelled() {
            return Err(TravelError::Cancelled.into());
        }
        let fetched = self.origin.fetch(stream, &|_| false, sink, self.progress);
        fetched.map(drop).map_err(|error| TravelError::Fetch(error).into())
    }

    /// A snapshot that is on disk names all layers that came until now.
    fn record_layers(&mut self) {
        for (_, new) in self.layers.values_mut() {
            if let Some(new) = new {
                new.recorded = true;
            }
        }
    }

    /// All of it is here.
    fn keep(self) {
        for (record, name) in self.published {
            name.fill(snapshot::own_stored(self.shared, record));
        }
    }

    /// None of it is to stay.
    fn undo(self) {
        for (record, _name) in self.published.into_iter().rev() {
            let _ = self.shared.store.remove(&record.tag);
        }
        // Layers that snapshots named which are gone now are removed by the next sweep.
    }
}

fn check_size(what: &'static str, name: &str, found: u64, expected: u64) -> Result<(), TravelError> {
    match found == expected {
        true => Ok(()),
        false => Err(TravelError::Size { what, name: name.into(), found, expected }),
    }
}

struct Unpacking<'a>(&'a PackedFile);

impl ByteSink for Unpacking<'_> {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_at(bytes, offset)
    }
}

struct InMemory(Mutex<Vec<u8>>);

impl ByteSink for InMemory {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut all = self.0.lock().map_err(|_| io::Error::other("a thread panicked"))?;
        let begin = usize::try_from(offset).map_err(io::Error::other)?;
        let place = begin.checked_add(bytes.len()).and_then(|end| all.get_mut(begin..end));
        place.ok_or(io::ErrorKind::FileTooLarge)?.copy_from_slice(bytes);
        Ok(())
    }
}
