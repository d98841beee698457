//! A snapshot on its way out: everything that it is made of, opened, as streams that forkd-hub sends.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, UNIX_EPOCH};

use forkd_hub::{About, Annotations, ByteSource, FrameTable, Outgoing, Role, Snapshot, Stream};
use forkd_image::images::ImageError;
use forkd_store::{Content, Digest, PackedFile, PageMap, SnapshotFiles, StateHeader, Stored, Tag};

use crate::engine::Shared;
use crate::error::EngineError;
use crate::paths::PathError;
use crate::record::{self, ZygoteRecord};
use crate::snapshot::travel::sent::{Sent, own_streams};
use crate::snapshot::travel::{ImageNotes, Itinerary, TravelError, VERSION, variant};

/// The title that tools show of an artifact, and when it was made.
const TITLE: &str = "org.opencontainers.image.title";
const CREATED: &str = "org.opencontainers.image.created";
/// Of the last second that can be written with four digits for the year.
const LAST_MS: u64 = 253_402_300_799_000;

/// A snapshot and all that it stands on, open. What is removed meanwhile is sent all the same.
#[derive(Debug)]
pub struct Departure {
    about: About,
    annotations: Annotations,
    streams: Vec<OpenStream>,
    /// What is sent, from the base to the head, and how.
    chain: Vec<(Stored, Sent)>,
}

#[derive(Debug)]
struct OpenStream {
    role: Role,
    name: String,
    source: Source,
    /// Of its frames.
    known: Option<Vec<blake3::Hash>>,
    /// How it was sent before.
    remembered: Option<FrameTable>,
}

impl OpenStream {
    fn new(role: Role, name: &str, source: Source) -> OpenStream {
        OpenStream { role, name: name.to_owned(), source, known: None, remembered: None }
    }

    /// Names are digests of contents, so a table of the same name and size has the digests of these very frames.
    fn remember(&mut self, tables: &BTreeMap<(Role, String), FrameTable>) {
        let table = tables.get(&(self.role, self.name.clone())).filter(|_| self.role != Role::Prefetch);
        let Some(table) = table.filter(|table| self.source.length().is_ok_and(|size| size == table.size()))
        else {
            return;
        };
        let digests: Vec<blake3::Hash> = table.frame_digests().collect();
        if self.known.get_or_insert_with(|| digests.clone()) == &digests {
            self.remembered = Some(table.clone());
        }
    }

    fn outgoing(&self) -> Outgoing<'_> {
        let OpenStream { role, name, source, known, remembered } = self;
        Outgoing { role: *role, name, source, known: known.as_deref(), remembered: remembered.as_ref() }
    }
}

#[derive(Debug)]
enum Source {
    File(File),
    Bytes(Vec<u8>),
    Packed(PackedFile),
}

impl ByteSource for Source {
    fn length(&self) -> io::Result<u64> {
        match self {
            Source::File(file) => Ok(file.metadata()?.len()),
            Source::Bytes(bytes) => Ok(bytes.len() as u64),
            Source::Packed(packed) => Ok(packed.length()),
        }
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        match self {
            Source::File(file) => file.read_exact_at(buffer, offset),
            Source::Bytes(bytes) => bytes.read_at(buffer, offset),
            Source::Packed(packed) => packed.read_at(buffer, offset),
        }
    }
}

impl Departure {
    /// Opens a snapshot that is on disk. Looks at every page of its disks, which takes a while.
    pub(crate) fn open(shared: &Shared, tag: &Tag) -> Result<Departure, EngineError> {
        let opened = shared.store.open_ancestry(tag)?;
        let mut chain = Vec::new();
        let mut streams = Vec::new();
        let mut disks = BTreeMap::new();
        let mut image = None;
        let mut manifests = Vec::new();
        let mut state_version = 0;
        for (stored, files) in opened {
            if !matches!(stored.manifest().content, Content::Framed { .. }) {
                return Err(TravelError::OldFormat { tag: stored.tag.to_string() }.into());
            }
            let sent = Sent::of(shared, &stored.tag)?;
            manifests.push(text(&files.manifest)?);
            image = of_disks(shared, &stored, &mut disks)?;
            // The head comes last.
            state_version = version_of(&files)?;
            streams.extend(of_memory(&stored, files, &sent)?);
            chain.push((stored, sent));
        }
        streams.extend(disks.into_values().flatten());
        let tables = remembered(&chain);
        streams.iter_mut().for_each(|stream| stream.remember(&tables));
        // There is at least one.
        let (head, _) = chain.last().ok_or(TravelError::Count { found: 0 })?;
        let itinerary =
            Itinerary { version: VERSION, name: tag.to_string(), manifests, image, state_version };
        let created = head.manifest().created_unix_ms.min(LAST_MS);
        let created = humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_millis(created));
        let mut annotations = variant::annotations(head, state_version);
        annotations.extend([(TITLE.to_owned(), tag.to_string()), (CREATED.to_owned(), created.to_string())]);
        Ok(Departure { about: itinerary.to_about()?, annotations, streams, chain })
    }

    /// Keeps how it was sent, and to which repository, so that none of it has to be sent again.
    pub(crate) fn keep(&self, shared: &Shared, streams: &[Stream], repository: &str) {
        for (stored, sent) in &self.chain {
            let mut sent = Sent { streams: own_streams(stored, streams), ..sent.clone() };
            sent.add_repository(repository);
            sent.keep(shared, &stored.link());
        }
    }

    /// Repositories that have some of it, by what is remembered: those that the snapshot itself was in first.
    pub fn repositories(&self) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        for name in self.chain.iter().rev().flat_map(|(_, sent)| &sent.repositories) {
            if !all.contains(name) {
                all.push(name.clone());
            }
        }
        all
    }

    /// What is sent, for as long as it takes.
    pub fn send<T>(&self, send: impl FnOnce(Snapshot<'_>) -> T) -> T {
        let streams: Vec<Outgoing<'_>> = self.streams.iter().map(OpenStream::outgoing).collect();
        send(Snapshot { streams: &streams, about: &self.about, annotations: &self.annotations })
    }
}

/// How the parts of a chain were sent before.
fn remembered(chain: &[(Stored, Sent)]) -> BTreeMap<(Role, String), FrameTable> {
    let streams = chain.iter().flat_map(|(_, sent)| sent.streams.iter().cloned());
    streams.map(|stream| ((stream.role, stream.name), stream.table)).collect()
}

fn text(manifest: &File) -> Result<String, EngineError> {
    let text = contents(manifest).and_then(|bytes| String::from_utf8(bytes).map_err(io::Error::other));
    text.map_err(EngineError::io("read a manifest"))
}

/// All of a file, whose size the store has checked.
fn contents(file: &File) -> io::Result<Vec<u8>> {
    let length = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// The version of a snapshot's saved CPUs and devices.
fn version_of(files: &SnapshotFiles) -> Result<u32, EngineError> {
    let failed = EngineError::io("read a VM's state");
    let mut header = [0; StateHeader::LENGTH];
    let read = given(files.state.as_ref()).and_then(|state| state.read_exact_at(&mut header, 0));
    let header = read.and_then(|()| StateHeader::parse(&header).map_err(io::Error::other));
    Ok(header.map_err(failed)?.payload_version)
}

/// A file that is there in today's format.
fn given<T>(file: Option<T>) -> io::Result<T> {
    file.ok_or_else(|| io::ErrorKind::NotFound.into())
}

fn of_memory(stored: &Stored, files: SnapshotFiles, sent: &Sent) -> Result<Vec<OpenStream>, EngineError> {
    let name = stored.sealed.digest.to_string();
    let failed = EngineError::io("read a page map");
    let map = given(files.map).and_then(|file| contents(&file)).map_err(failed)?;
    let frames =
        PageMap::parse(&map).map_err(|error| EngineError::io("read a page map")(io::Error::other(error)))?;
    let known = frames.frames().map(|frames| frames.iter().map(hash).collect());
    let stream = |role, source| OpenStream::new(role, &name, source);
    let state = given(files.state).map_err(EngineError::io("read a VM's state"))?;
    let memory = stream(Role::Memory, Source::File(files.memory));
    let mut streams = vec![
        stream(Role::State, Source::File(state)),
        stream(Role::MemoryMap, Source::Bytes(map)),
        OpenStream { known, ..memory },
    ];
    if let Some(list) = &sent.prefetch {
        let list = serde_json::to_vec(list).map_err(TravelError::from)?;
        // It is learned anew now and then, so its name says nothing of its contents.
        streams.push(stream(Role::Prefetch, Source::Bytes(list)));
    }
    Ok(streams)
}

fn hash(digest: &Digest) -> blake3::Hash {
    blake3::Hash::from_bytes(*digest.as_bytes())
}

/// The layers of a snapshot's disks that are not among those that others of the chain have.
fn of_disks(
    shared: &Shared,
    stored: &Stored,
    disks: &mut BTreeMap<String, [OpenStream; 2]>,
) -> Result<Option<ImageNotes>, EngineError> {
    let record: ZygoteRecord = record::from_object(stored.local.about.clone())
        .map_err(|reason| TravelError::Record { index: 0, reason })?;
    let mut image = None;
    for (index, (id, entry)) in stored.disk_layers().enumerate() {
        let name = entry.digest.to_string();
        let below = record.shape.image.filter(|_| index == 0);
        if let Some(below) = below {
            let found = shared.images.get(below)?.ok_or_else(|| ImageError::Unknown(below.to_string()))?;
            let metadata = found.metadata;
            image = Some(ImageNotes { config: metadata.config, default_user: metadata.default_user });
        }
        if disks.contains_key(&name) {
            continue;
        }
        let file = match below {
            Some(below) => shared.base(&below)?,
            None => {
                let path = shared.paths.layers().join(id);
                File::open(&path).map_err(PathError::at("open", &path))?
            }
        };
        let packed = PackedFile::pack(file).map_err(EngineError::io("read a disk layer"))?;
        let map = Source::Bytes(packed.map().encode());
        let stream = |role, source| OpenStream::new(role, &name, source);
        disks.insert(name.clone(), [stream(Role::DiskMap, map), stream(Role::Disk, Source::Packed(packed))]);
    }
    Ok(image)
}
