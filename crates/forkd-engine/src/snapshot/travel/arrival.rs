//! A snapshot that comes from another host.
//!
//! ```text
//!   manifests checked ─▶ names taken ─▶ what is here, by its digest, is not fetched
//!     ─▶ small streams: states and maps, checked      ┐ each into a file of `partial.rs`, whatever came before
//!     ─▶ memory and disks, all at the same time       ┘ a failure is not fetched again
//!     ─▶ the chain from its base up: files linked to their places, all compared with the manifests
//!     ─▶ the head has its name, and can be forked
//! ```
//!
//! What fails leaves no snapshot: those that were published before it failed are removed again, and so are their layers. Only the
//! files of `partial.rs` stay.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use forkd_api::snapshot::BASE_PREFIX;
use forkd_hub::{Artifact, FetchError, Fetched, Progress, Role, Stream, Wanted};
use forkd_image::digest::{Digest as ImageDigest, Hasher};
use forkd_image::images::BuiltImage;
use forkd_proto::agent::{OLDEST_VERSION, VERSION};
use forkd_proto::control::Prefault;
use forkd_proto::host_cpu::GuestCpu;
use forkd_store::{Digest, LayerEntry, Link, Local, PAGE_SIZE, PageMap, ReceivedFiles, Tag};

use crate::disk::merge::Unrecorded;
use crate::engine::{Shared, unix_ms};
use crate::error::EngineError;
use crate::fault;
use crate::ids::LayerId;
use crate::limits::owner::{self, Holding, Owner};
use crate::limits::room::Room;
use crate::paths::PathError;
use crate::record::{self, Shape, ZygoteRecord};
use crate::registry::Reservation;
use crate::snapshot::travel::arriving::Arriving;
use crate::snapshot::travel::partial::{Claim, Partial};
use crate::snapshot::travel::sent::{Sent, own_streams};
use crate::snapshot::travel::{ImageNotes, Itinerary, Stage, TravelError};
use crate::snapshot::{self, SnapshotHandle};

/// The largest of the small streams, which are read into memory.
const MAX_SMALL: u64 = 64 << 20;

/// Where an artifact comes from.
pub trait Origin: Sync {
    /// Fetches what is missing of several streams, at the same time.
    fn fetch(&self, wanted: &[Wanted<'_>], progress: &dyn Progress) -> Result<Fetched, FetchError>;
    /// The repository that it is, of a registry. What has come from one is worth keeping when the rest does not.
    fn repository(&self) -> Option<String>;
}

impl Origin for forkd_hub::layout::Layout {
    fn fetch(&self, wanted: &[Wanted<'_>], progress: &dyn Progress) -> Result<Fetched, FetchError> {
        self.fetch_all(wanted, progress)
    }

    fn repository(&self) -> Option<String> {
        None
    }
}

impl Origin for forkd_hub::registry::Repository {
    fn fetch(&self, wanted: &[Wanted<'_>], progress: &dyn Progress) -> Result<Fetched, FetchError> {
        self.fetch_all(wanted, progress)
    }

    fn repository(&self) -> Option<String> {
        Some(self.name())
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
    // First, so that whoever waits for another arrival of the same is told what became of it.
    let claim = shared.partials.claim(artifact.streams(), &|| progress.is_cancelled());
    let claim = claim.ok_or(TravelError::Cancelled)?;
    let name = shared.snapshots.reserve(&tag).ok_or_else(|| EngineError::NameTaken(tag.clone()))?;
    let mut arrival = Arrival {
        shared,
        artifact,
        origin,
        progress,
        destination,
        claim,
        image: itinerary.image.as_ref(),
        layers: BTreeMap::new(),
        published: Vec::new(),
        arriving: None,
        quota: None,
    };
    let arrived = arrival.fetch(&chain).and_then(|fetched| {
        fault::place("arrive.fetched");
        arrival.publish(&chain, &fetched, &tag)
    });
    match arrived {
        Ok(record) => {
            fault::place("arrive.published");
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

/// Refuses what this host cannot run, before anything is fetched. What cannot be checked now is checked when it is loaded.
fn check_host(shared: &Shared, chain: &[Stage], state_version: u32) -> Result<(), EngineError> {
    let Some(head) = chain.last() else { return Ok(()) };
    let found = head.record.shape.agent_version;
    if !(OLDEST_VERSION..=VERSION).contains(&found) {
        return Err(TravelError::Agent { found }.into());
    }
    let (needed, available) = (head.sealed.manifest.layout.size(), shared.limits.memory_bytes);
    if needed > available {
        return Err(TravelError::Memory { needed, available }.into());
    }
    let Some(host) = shared.host_cpu()? else { return Ok(()) };
    let cpu = &head.sealed.manifest.cpu;
    let guest = GuestCpu {
        vendor: cpu.vendor.as_deref(),
        features: &cpu.features,
        tsc_khz: cpu.tsc_khz,
        state_version,
    };
    host.check(guest).map_err(|lacking| TravelError::Host { lacking }.into())
}

struct Arrival<'a> {
    shared: &'a Arc<Shared>,
    artifact: &'a Artifact,
    origin: &'a dyn Origin,
    progress: &'a dyn Progress,
    destination: &'a Destination,
    claim: Claim<'a>,
    image: Option<&'a ImageNotes>,
    /// Layers by the digests of their contents: those that are new with what removes them.
    layers: BTreeMap<Digest, (LayerId, Option<Unrecorded>)>,
    /// Snapshots below the head that are here now.
    published: Vec<(ZygoteRecord, Reservation<Tag, SnapshotHandle>)>,
    /// Names them until all of it is here, or they are removed again.
    arriving: Option<Arriving>,
    /// Room for it among what its owner may have on disk.
    quota: Option<owner::Claim>,
}

/// Everything that was not here, whole.
struct FetchedFiles<'a> {
    stages: BTreeMap<Digest, StageFiles<'a>>,
    layers: BTreeMap<Digest, Partial<'a>>,
}

/// The files of one snapshot of the chain.
struct StageFiles<'a> {
    state: Partial<'a>,
    map: Partial<'a>,
    memory: Partial<'a>,
    frames: Vec<Digest>,
}

impl FetchedFiles<'_> {
    /// Looks at every byte of the layers, and makes everything durable: here, where it may take long. What follows is done at once.
    fn check(&self) -> Result<(), EngineError> {
        for files in self.stages.values() {
            files.memory.file().sync_all().map_err(EngineError::io("sync a snapshot's memory"))?;
        }
        for (digest, layer) in &self.layers {
            layer.checked(check_layer(*digest, layer))?;
        }
        Ok(())
    }
}

impl<'a> Arrival<'a> {
    /// Fetches all that is not here.
    fn fetch(&mut self, chain: &[Stage]) -> Result<FetchedFiles<'a>, EngineError> {
        let stages = self.missing_stages(chain)?;
        let layers = self.missing_layers(&stages)?;
        // For all of it, before the first byte.
        let streams = self.streams_of(&stages, &layers)?;
        self.quota = self.take_quota(&streams)?;
        let room = self.take_room(self.bytes_to_come(&streams))?;
        let mut small = self.open_small(&stages, &layers)?;
        let before = self.fetch_into(&small, &Unreported { progress: self.progress, room: &room })?;
        fault::place("arrive.small");

        let disk_maps = small.split_off(2 * stages.len());
        let mut small = small.into_iter();
        let mut files = Vec::new();
        let mut memories = Vec::new();
        for stage in &stages {
            // There are two for each.
            let (Some(state), Some(map)) = (small.next(), small.next()) else { break };
            let frames = check_stage(stage, &state, &map)?;
            memories.push(self.open_memory(stage, &frames)?);
            files.push((stage, state, map, frames));
        }
        let mut large = memories;
        for (entry, map) in layers.values().zip(&disk_maps) {
            large.push(self.open_disk(*entry, map)?);
        }
        let missing = Partial::missing(&large, |wanted| wanted.iter().map(Wanted::missing).sum::<u64>());
        self.progress.total(before + missing);
        self.fetch_into(&large, &Continued { progress: self.progress, room: &room, before })?;

        let disks = large.split_off(files.len());
        let whole = files.into_iter().zip(large).map(|((stage, state, map, frames), memory)| {
            (stage.sealed.digest, StageFiles { state, map, memory, frames })
        });
        let fetched =
            FetchedFiles { stages: whole.collect(), layers: layers.into_keys().zip(disks).collect() };
        fetched.check()?;
        Ok(fetched)
    }

    /// The files of states and maps: two for each snapshot, then one for each layer, then what children use first.
    fn open_small(
        &self,
        stages: &[&Stage],
        layers: &BTreeMap<Digest, LayerEntry>,
    ) -> Result<Vec<Partial<'a>>, EngineError> {
        let mut small = Vec::new();
        for stage in stages {
            let (name, manifest) = (stage.name(), &stage.sealed.manifest);
            small.push(self.open(Role::State, &name, Some(manifest.state.size))?);
            let size = manifest.content.map().map_or(0, |map| map.size);
            small.push(self.open(Role::MemoryMap, &name, Some(size))?);
        }
        for layer in layers.keys() {
            small.push(self.open(Role::DiskMap, &layer.to_string(), None)?);
        }
        // Without it children begin slower, and it is learned again.
        small.extend(stages.iter().filter_map(|stage| self.open(Role::Prefetch, &stage.name(), None).ok()));
        Ok(small)
    }

    /// The file of a snapshot's memory, whose frames its map names.
    fn open_memory(&self, stage: &Stage, frames: &[Digest]) -> Result<Partial<'a>, EngineError> {
        let memory = self.stream(Role::Memory, &stage.name())?;
        // They are checked with the digests of the table, so these have to be those of the map.
        let table = memory.table.frame_digests().map(|hash| Digest::from_bytes(*hash.as_bytes()));
        if !table.eq(frames.iter().copied()) {
            return Err(EngineError::from(forkd_store::ReceiveError::Frames));
        }
        self.open(Role::Memory, &stage.name(), Some(stage.sealed.manifest.memory.size))
    }

    /// Snapshots of the chain that are not here, and the head, whose name is new.
    fn missing_stages<'c>(&self, chain: &'c [Stage]) -> Result<Vec<&'c Stage>, EngineError> {
        let mut missing = Vec::new();
        for (index, stage) in chain.iter().enumerate() {
            let is_head = index + 1 == chain.len();
            if is_head || self.shared.store.find(&stage.sealed.digest)?.is_none() {
                missing.push(stage);
            }
        }
        Ok(missing)
    }

    /// Layers of their disks that are not here.
    fn missing_layers(&self, stages: &[&Stage]) -> Result<BTreeMap<Digest, LayerEntry>, EngineError> {
        let mut missing = BTreeMap::new();
        for stage in stages {
            for (index, entry) in stage.sealed.manifest.disk_layers.iter().enumerate() {
                let is_here = match stage.record.has_image && index == 0 {
                    true => self.find_image(*entry)?.is_some(),
                    false => self.find_layer(*entry).is_some(),
                };
                if !is_here {
                    missing.insert(entry.digest, *entry);
                }
            }
        }
        Ok(missing)
    }

    /// Makes snapshots of what came, from the base of the chain to its head. Returns the head's record.
    fn publish(
        &mut self,
        chain: &[Stage],
        fetched: &FetchedFiles<'_>,
        tag: &Tag,
    ) -> Result<ZygoteRecord, EngineError> {
        let stages = chain.iter().map(|stage| stage.sealed.digest);
        let below: Vec<Digest> =
            stages.take(chain.len() - 1).filter(|digest| fetched.stages.contains_key(digest)).collect();
        self.arriving = Some(Arriving::begin(&self.shared.paths.arriving(), tag, &below)?);
        let mut parent: Option<Link> = None;
        let mut head = None;
        for (index, stage) in chain.iter().enumerate() {
            let is_head = index + 1 == chain.len();
            if !is_head && let Some(here) = self.shared.store.find(&stage.sealed.digest)? {
                self.keep_sent(&here.link(), Sent::of(self.shared, &here.tag)?);
                parent = Some(here.link());
                continue;
            }
            let (record, link) = self.stage(stage, fetched, parent.as_ref(), is_head.then_some(tag))?;
            parent = Some(link);
            head = Some(record);
        }
        // There is at least one.
        head.ok_or_else(|| TravelError::Count { found: 0 }.into())
    }

    /// One snapshot of the chain.
    fn stage(
        &mut self,
        stage: &Stage,
        fetched: &FetchedFiles<'_>,
        parent: Option<&Link>,
        tag: Option<&Tag>,
    ) -> Result<(ZygoteRecord, Link), EngineError> {
        let (tag, name) = match tag {
            Some(tag) => (tag.clone(), None),
            None => self.reserve_base(stage).map(|(tag, name)| (tag, Some(name)))?,
        };
        // One that was here when it was looked for, and is not any more.
        let gone = || TravelError::Gone { name: stage.sealed.digest };
        let files = fetched.stages.get(&stage.sealed.digest).ok_or_else(gone)?;
        let (record, layers) = self.record(stage, fetched, parent, &tag)?;
        let about = record::to_object(&record).map_err(TravelError::from)?;
        let local = Local { parent: None, layers, about };
        let received = ReceivedFiles {
            state: &files.state.path,
            map: &files.map.path,
            memory: &files.memory.path,
            frames: &files.frames,
        };
        self.shared.sync_layers()?;
        fault::place("arrive.layers");
        let stored =
            self.shared.store.receive(&tag, parent, stage.text.clone().into_bytes(), local, received)?;
        self.record_layers();
        let link = stored.link();
        fault::place("arrive.received");
        let prefetch = self.prefetch(stage, &link);
        // Whoever pushes it from here sends the blobs that it came in.
        let streams = own_streams(&stored, self.artifact.streams());
        self.keep_sent(&link, Sent { streams, prefetch, repositories: Vec::new() });
        fault::place("arrive.kept");
        if let Some(name) = name {
            self.published.push((record.clone(), name));
        }
        Ok((record, link))
    }

    /// A name for what is below the head: it is named by what it is, with a number if something else has that name.
    fn reserve_base(&self, stage: &Stage) -> Result<(Tag, Reservation<Tag, SnapshotHandle>), EngineError> {
        let first = format!("{BASE_PREFIX}{}", &stage.name()[..24]);
        let mut taken: Tag = first.parse()?;
        for number in 1..10 {
            let tag: Tag = if number == 1 { taken.clone() } else { format!("{first}-{number}").parse()? };
            match self.shared.snapshots.reserve(&tag) {
                Some(name) => return Ok((tag, name)),
                None => taken = tag,
            }
        }
        Err(EngineError::NameTaken(taken))
    }

    /// What this host knows of it, with its disks.
    fn record(
        &mut self,
        stage: &Stage,
        fetched: &FetchedFiles<'_>,
        parent: Option<&Link>,
        tag: &Tag,
    ) -> Result<(ZygoteRecord, Vec<Tag>), EngineError> {
        let mut entries = stage.sealed.manifest.disk_layers.iter().copied();
        let mut names = Vec::new();
        let mut image = None;
        if let Some(entry) = stage.record.has_image.then(|| entries.next()).flatten() {
            let id = self.image(entry, fetched)?;
            names.push(id.hex().parse()?);
            image = Some(id);
        }
        let mut disks = Vec::new();
        for count in &stage.record.layers {
            let mut layers = Vec::new();
            for entry in entries.by_ref().take(*count) {
                let id = self.layer(entry, fetched)?;
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
            user_memory: stage.record.user_memory,
            promised: true,
        };
        Ok((record, names))
    }

    /// A layer with these contents that is here.
    fn find_layer(&self, entry: LayerEntry) -> Option<LayerId> {
        let known = self.shared.known_layers.find(entry);
        let mut known = known.into_iter().filter_map(|id| LayerId::try_from(id.to_string()).ok());
        known.find(|id| self.shared.paths.layer(id).is_file())
    }

    /// A layer with these contents: one that is here, or a new one.
    fn layer(&mut self, entry: LayerEntry, fetched: &FetchedFiles<'_>) -> Result<LayerId, EngineError> {
        if let Some((id, _)) = self.layers.get(&entry.digest) {
            return Ok(id.clone());
        }
        let (id, new) = match self.find_layer(entry) {
            Some(id) => (id, None),
            None => {
                let gone = || TravelError::Gone { name: entry.digest };
                let file = fetched.layers.get(&entry.digest).ok_or_else(gone)?;
                let id = LayerId::random().map_err(EngineError::io("get random numbers"))?;
                let new = Unrecorded::new(self.shared, id.clone());
                let linked = forkd_store::link_or_copy(&file.path, &self.shared.paths.layer(&id));
                linked.map_err(PathError::at("link or copy", &file.path))?;
                self.shared.known_layers.add([(id.as_str().parse()?, entry)]);
                (id, Some(new))
            }
        };
        self.layers.insert(entry.digest, (id.clone(), new));
        Ok(id)
    }

    /// What an image with these contents would be. Its name says what it has, and not what its sender calls it.
    fn built(&self, entry: LayerEntry) -> BuiltImage {
        let notes = self.image.cloned();
        BuiltImage {
            key: Hasher::new("forkd snapshot's image").part(entry.digest.as_bytes()).finish(),
            config: notes.as_ref().map(|notes| notes.config.clone()).unwrap_or_default(),
            recipe: None,
            default_user: notes.map_or_else(|| "root".into(), |notes| notes.default_user),
            name: None,
        }
    }

    /// An image with these contents that is here.
    fn find_image(&self, entry: LayerEntry) -> Result<Option<ImageDigest>, EngineError> {
        let known = self.shared.known_layers.find(entry);
        for id in known.iter().filter_map(|id| format!("sha256:{id}").parse::<ImageDigest>().ok()) {
            if self.shared.images.get(id)?.is_some() {
                return Ok(Some(id));
            }
        }
        Ok(self.shared.images.find_built(&self.built(entry))?.map(|image| image.id()))
    }

    /// An image with these contents: one that is here, or a new one.
    fn image(&self, entry: LayerEntry, fetched: &FetchedFiles<'_>) -> Result<ImageDigest, EngineError> {
        if let Some(id) = self.find_image(entry)? {
            return Ok(id);
        }
        let gone = || TravelError::Gone { name: entry.digest };
        let file = fetched.layers.get(&entry.digest).ok_or_else(gone)?;
        let scratch = self.shared.images.scratch()?;
        let path = scratch.path().join("base.ext4");
        let linked = forkd_store::link_or_copy(&file.path, &path);
        linked.map_err(PathError::at("link or copy", &file.path))?;
        let image = self.shared.images.adopt(&path, self.built(entry))?;
        self.shared.known_layers.add([(image.id().hex().parse()?, entry)]);
        Ok(image.id())
    }

    /// Keeps what children use first.
    fn prefetch(&self, stage: &Stage, link: &Link) -> Option<Prefault> {
        let partial = self.open(Role::Prefetch, &stage.name(), None).ok()?;
        let list = received_prefetch(&read(&partial).ok()?)?;
        // One that names memory which the snapshot does not have is not used: whoever reads it looks.
        let _ = self.shared.store.keep_prefault(&link.tag, &link.digest, &list);
        Some(list)
    }

    /// Keeps how a snapshot came, and from where.
    fn keep_sent(&self, link: &Link, mut sent: Sent) {
        if let Some(repository) = self.origin.repository() {
            sent.add_repository(&repository);
        }
        sent.keep(self.shared, link);
    }

    fn stream(&self, role: Role, name: &str) -> Result<&'a Stream, TravelError> {
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

    /// The file of a stream of so many bytes; without a size, of one that is read into memory.
    fn open(&self, role: Role, name: &str, expected: Option<u64>) -> Result<Partial<'a>, EngineError> {
        let stream = self.stream(role, name)?;
        let found = stream.table.size();
        if expected.map_or(found > MAX_SMALL, |expected| found != expected) {
            let expected = expected.unwrap_or(MAX_SMALL);
            return Err(
                TravelError::Size { what: "the stream of", name: name.into(), found, expected }.into()
            );
        }
        Ok(self.claim.open(stream, &|| self.progress.is_cancelled())?)
    }

    /// The file of a disk layer, whose map is here.
    fn open_disk(&self, entry: LayerEntry, map: &Partial<'_>) -> Result<Partial<'a>, EngineError> {
        let unusable = |source| TravelError::LayerMap { name: entry.digest, source };
        let bytes = read(map).map_err(EngineError::io("read the map of a disk layer"))?;
        let parsed = map.checked(PageMap::parse(&bytes).map_err(|error| unusable(error.into())))?;
        let name = entry.digest.to_string();
        let stream = self.stream(Role::Disk, &name)?;
        let (found, expected) = (stream.table.size(), parsed.data_pages() * PAGE_SIZE as u64);
        if found != expected {
            return Err(TravelError::Size { what: "the disk layer", name, found, expected }.into());
        }
        let opened = self.claim.open_disk(stream, entry.size, &parsed, &|| self.progress.is_cancelled());
        Ok(map.checked(opened.map_err(unusable))?)
    }

    /// Fetches what is missing of several streams. Returns how many bytes that were.
    fn fetch_into(&self, partials: &[Partial<'_>], progress: &dyn Progress) -> Result<u64, EngineError> {
        Partial::missing(partials, |wanted| {
            let missing = wanted.iter().map(Wanted::missing).sum();
            if self.progress.is_cancelled() {
                return Err(TravelError::Cancelled.into());
            }
            let fetched = self.origin.fetch(wanted, progress);
            fetched.map_err(|error| {
                discard_blob(partials, &error);
                EngineError::from(TravelError::Fetch(error))
            })?;
            Ok(missing)
        })
    }

    /// The streams of these snapshots and layers.
    fn streams_of(
        &self,
        stages: &[&Stage],
        layers: &BTreeMap<Digest, LayerEntry>,
    ) -> Result<Vec<&'a Stream>, TravelError> {
        let mut streams = Vec::new();
        for stage in stages {
            for role in [Role::State, Role::MemoryMap, Role::Memory] {
                streams.push(self.stream(role, &stage.name())?);
            }
            streams.extend(self.stream(Role::Prefetch, &stage.name()).ok());
        }
        for layer in layers.keys().map(Digest::to_string) {
            streams.push(self.stream(Role::DiskMap, &layer)?);
            streams.push(self.stream(Role::Disk, &layer)?);
        }
        Ok(streams)
    }

    /// What these streams will take on the disk beside what is there of them.
    fn bytes_to_come(&self, streams: &[&Stream]) -> u64 {
        let missing = |stream: &&Stream| stream.table.size().saturating_sub(self.claim.stored_bytes(stream));
        streams.iter().map(missing).fold(0, u64::saturating_add)
    }

    /// Takes room among what the owner may have on disk: what is here already is not counted again.
    fn take_quota(&self, streams: &[&Stream]) -> Result<Option<owner::Claim>, EngineError> {
        let Some(owner) = &self.destination.owner else { return Ok(None) };
        let bytes = streams.iter().map(|stream| stream.table.size()).fold(0, u64::saturating_add);
        let claim = self.shared.claim(owner, Holding::snapshot(Some(bytes)));
        Ok(Some(tokio::runtime::Handle::current().block_on(claim)?))
    }

    /// Takes room on the disk, if need be by removing what others left unfinished.
    fn take_room(&self, bytes: u64) -> Result<Room, EngineError> {
        let take = || self.shared.take_room(self.shared.paths.root(), bytes);
        take().or_else(|refusal| match self.shared.partials.sweep(Duration::ZERO) {
            0 => Err(refusal),
            _ => take(),
        })
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
        self.claim.remove();
        for (record, name) in self.published {
            name.fill(snapshot::own_stored(self.shared, record));
        }
        // What is here is counted by itself.
        drop(self.quota);
    }

    /// None of it is to stay, but for what the next try can use.
    fn undo(self) {
        fault::place("undo.arrived");
        for (record, _name) in self.published.into_iter().rev() {
            let _ = self.shared.store.remove(&record.tag);
        }
        if self.origin.repository().is_none() {
            self.claim.remove();
        }
        // Layers that snapshots named which are gone now are removed by the next sweep. The list of the snapshots goes after them.
        drop(self.arriving);
    }
}

/// Parses the prefetch list of an artifact. `None` if it is invalid.
pub fn received_prefetch(bytes: &[u8]) -> Option<Prefault> {
    serde_json::from_slice(bytes).ok()
}

/// The contents of a small stream.
fn read(partial: &Partial<'_>) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(partial.stream.table.size()).map_err(io::Error::other)?];
    partial.file().read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Checks state and map of a snapshot. Returns the digests of the frames of its memory.
fn check_stage(stage: &Stage, state: &Partial<'_>, map: &Partial<'_>) -> Result<Vec<Digest>, EngineError> {
    let manifest = &stage.sealed.manifest;
    state.checked(forkd_store::check_state(manifest, state.file()))?;
    Ok(map.checked(forkd_store::memory_frames(manifest, map.file()))?)
}

/// Looks at every byte of a disk layer.
fn check_layer(expected: Digest, layer: &Partial<'_>) -> Result<(), EngineError> {
    layer.file().sync_all().map_err(EngineError::io("sync a disk layer"))?;
    let (_, found) = Digest::of_image(layer.file()).map_err(EngineError::io("read a disk layer"))?;
    match found == expected {
        true => Ok(()),
        false => Err(TravelError::Layer { name: expected, found }.into()),
    }
}

/// Frames are checked before they are written. A blob that is another one than its digest says has right frames all the same; those of
/// its stream are not kept either.
fn discard_blob(partials: &[Partial<'_>], error: &FetchError) {
    let FetchError::Digest { expected, .. } = error else { return };
    let has_blob =
        |partial: &&Partial<'_>| partial.stream.table.blobs().iter().any(|blob| blob.digest() == *expected);
    partials.iter().filter(has_blob).for_each(Partial::discard);
}

/// The beginning of an arrival, before it is known how much is to come.
struct Unreported<'a> {
    progress: &'a dyn Progress,
    room: &'a Room,
}

impl Progress for Unreported<'_> {
    fn done(&self, bytes: u64) {
        self.room.written(bytes);
    }

    fn is_cancelled(&self) -> bool {
        self.progress.is_cancelled()
    }
}

/// The rest of it, after so many bytes.
struct Continued<'a> {
    progress: &'a dyn Progress,
    room: &'a Room,
    before: u64,
}

impl Progress for Continued<'_> {
    fn done(&self, bytes: u64) {
        let bytes = self.before + bytes;
        self.room.written(bytes);
        self.progress.done(bytes);
    }

    fn is_cancelled(&self) -> bool {
        self.progress.is_cancelled()
    }
}
