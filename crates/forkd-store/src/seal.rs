//! Sealing: the owner of the store reads what a process has written, once, and says what it is.
//!
//! ```text
//!   Draft::settle           the owner has the files open for reading only, and asks the kernel who else can write to them
//!   Unhashed::hash          the frames of memory.bin, on all cores; by any idle thread
//!   SettledDraft::publish   state.bin and memory.runs checked ─▶ memory.map ─▶ local.json ─▶ manifest.json
//!                           ─▶ sync directory ─▶ rename to TAG ─▶ sync store
//! ```
//!
//! The process that wrote them is a clone of one that may have been taken over by its guest, so nothing that it says of its files is
//! believed. From then on no process can write to them, and they are never hashed as a whole again: readers of memory check its frames.

use std::fs::{self, File};
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;

use crate::contents::{failed, write_file};
use crate::digest::Digest;
use crate::draft::{Description, Draft};
use crate::files;
use crate::frame;
use crate::image::PackedImage;
use crate::layout::{Layout, PAGE_BYTES};
use crate::local::Local;
use crate::manifest::{Content, FileEntry, Manifest};
use crate::page_map::{PageMap, RunKind};
use crate::sparse_file::data_pages;
use crate::state::{MAX_STATE, VmState};
use crate::store::{StoreError, Stored};
use crate::write::{Observer, Step, WriteError, step};

/// A draft whose files the owner of the store can no longer write to either.
#[derive(Debug)]
pub struct SettledDraft {
    draft: Draft,
    state: File,
    memory: File,
    runs: File,
}

/// The memory of a draft that is settled. It can be hashed while the draft is somewhere else, and be given up with it.
#[derive(Debug)]
pub struct Unhashed {
    memory: File,
    size: u64,
}

/// The digests of the frames of so many bytes of memory.
#[derive(Debug)]
pub struct Hashed {
    size: u64,
    frames: Vec<Digest>,
}

impl Unhashed {
    /// Reads all of it.
    pub fn hash(&self) -> Result<Hashed, WriteError> {
        let frames = frame::digests(&self.memory, self.size).map_err(failed(files::MEMORY))?;
        Ok(Hashed { size: self.size, frames })
    }
}

impl Draft {
    /// Closes the files, and opens them again for reading. Before it is published, their writer has to have closed them, too.
    pub fn settle(mut self) -> Result<SettledDraft, WriteError> {
        self.close();
        let open = |name| -> Result<File, WriteError> {
            let path = self.path(name);
            Ok(File::open(&path).map_err(StoreError::at("open", &path))?)
        };
        let (state, memory, runs) = (open(files::STATE)?, open(files::MEMORY)?, open(files::RUNS)?);
        Ok(SettledDraft { draft: self, state, memory, runs })
    }
}

impl SettledDraft {
    /// The files, open for reading only.
    pub fn files(&self) -> [&File; 3] {
        [&self.state, &self.memory, &self.runs]
    }

    /// Puts copies in the place of the files. For those whose file system cannot say who can write to them: no process has the copies open.
    pub fn copy(&mut self) -> Result<(), WriteError> {
        let mut copied = Vec::new();
        for (file, name) in
            [(&self.state, files::STATE), (&self.memory, files::MEMORY), (&self.runs, files::RUNS)]
        {
            let path = self.draft.path(name);
            fs::remove_file(&path).map_err(StoreError::at("remove", &path))?;
            let new = files::create(&path).map_err(StoreError::at("create", &path))?;
            copy(file, &new).map_err(StoreError::at("write", &path))?;
            copied.push(File::open(&path).map_err(StoreError::at("open", &path))?);
        }
        if let Ok([state, memory, runs]) = <[File; 3]>::try_from(copied) {
            (self.state, self.memory, self.runs) = (state, memory, runs);
        }
        Ok(())
    }

    /// Its memory, to be hashed when no process can write to it any more.
    pub fn unhashed(&self) -> Result<Unhashed, WriteError> {
        let memory = self.memory.try_clone().map_err(failed(files::MEMORY))?;
        let size = files::length(&memory).map_err(failed(files::MEMORY))?;
        Ok(Unhashed { memory, size })
    }

    /// Seals the files, writes the manifest and gives the snapshot its name: all of it appears at once, or none of it.
    ///
    /// `description` may come from a process that is not trusted. What it says is checked against the limits of a manifest and the
    /// parent's memory.
    ///
    /// If only the last sync of the store's directory fails, the snapshot is there and the error says so.
    pub fn publish(self, description: Description, hashed: Hashed) -> Result<Stored, WriteError> {
        self.publish_in_steps(description, hashed, &mut |_| ControlFlow::Continue(()))
    }

    pub(crate) fn publish_in_steps(
        mut self,
        mut description: Description,
        hashed: Hashed,
        observe: &mut Observer<'_>,
    ) -> Result<Stored, WriteError> {
        description.check()?;
        self.draft.check_memory(&description.layout)?;
        let state = self.check_state()?;
        let map = self.check_runs(&description.layout)?;
        let (memory, map) = self.seal_memory(map, hashed)?;
        let map = self.write_map(&map)?;
        step(observe, Step::MemorySealed)?;
        let parent = self.draft.parent().cloned();
        let manifest = Manifest {
            parent: parent.as_ref().map(|parent| parent.digest),
            created_unix_ms: description.created_unix_ms,
            cpu: description.cpu,
            layout: description.layout,
            about: description.about,
            disk_layers: description.disk_layers.iter().map(|layer| layer.entry).collect(),
            state,
            memory,
            content: Content::Framed { map },
        };
        let (sealed, bytes) = manifest.seal().map_err(WriteError::Description)?;
        let local = Local {
            parent: parent.map(|parent| parent.tag),
            layers: description.disk_layers.into_iter().map(|layer| layer.id).collect(),
            about: description.local,
        };
        self.draft.write(files::LOCAL, &local.encode().map_err(WriteError::Local)?)?;
        self.draft.write(files::MANIFEST, &bytes)?;
        step(observe, Step::ManifestWritten)?;
        let runs = self.draft.path(files::RUNS);
        fs::remove_file(&runs).map_err(StoreError::at("remove", &runs))?;
        self.draft.sync()?;
        step(observe, Step::DirectorySynced)?;
        let stored = Stored { tag: self.draft.tag().clone(), sealed, local };
        self.draft.rename()?;
        let _too_late = observe(Step::Published);
        Ok(stored)
    }

    fn check_state(&self) -> Result<FileEntry, WriteError> {
        let bytes = read_bounded(&self.state, files::STATE, MAX_STATE)?;
        let entry = FileEntry { size: bytes.len() as u64, digest: Digest::of(&bytes) };
        VmState::parse(bytes).map_err(WriteError::State)?;
        Ok(entry)
    }

    /// The pages that the process says it wrote: there are as many in `memory.bin`.
    fn check_runs(&mut self, layout: &Layout) -> Result<PageMap, WriteError> {
        let found = files::length(&self.memory).map_err(failed(files::MEMORY))?;
        let is_sparse = files::length(&self.runs).map_err(failed(files::RUNS))? == 0;
        if is_sparse && self.draft.parent().is_none() && found == layout.size() {
            return self.pack(layout);
        }
        let bytes = read_bounded(&self.runs, files::RUNS, PageMap::max_length(layout.pages()))?;
        let map = PageMap::parse(&bytes)?;
        if map.memory_pages() != layout.pages() {
            return Err(WriteError::OtherMemory);
        }
        if self.draft.parent().is_none() && map.runs().iter().any(|run| run.kind == RunKind::Zero) {
            return Err(WriteError::ZeroRuns);
        }
        let expected = map.data_pages() * PAGE_BYTES;
        if found != expected {
            return Err(WriteError::Size { name: files::MEMORY, found, expected });
        }
        Ok(map)
    }

    /// A process of before pages were packed has written them all at their places, and no runs.
    fn pack(&mut self, layout: &Layout) -> Result<PageMap, WriteError> {
        let path = self.draft.path(files::MEMORY);
        fs::remove_file(&path).map_err(StoreError::at("remove", &path))?;
        let packed = files::create(&path).map_err(StoreError::at("create", &path))?;
        let mut image = PackedImage::new(&packed);
        let mut map = PageMap::new(layout.pages());
        data_pages(&self.memory, layout.size(), |page, bytes| {
            map.push(page, RunKind::Data).map_err(io::Error::other)?;
            image.push(bytes)
        })
        .map_err(failed(files::MEMORY))?;
        image.finish().map_err(failed(files::MEMORY))?;
        self.memory = File::open(&path).map_err(StoreError::at("open", &path))?;
        Ok(map)
    }

    fn seal_memory(&self, map: PageMap, hashed: Hashed) -> Result<(FileEntry, PageMap), WriteError> {
        let size = map.data_pages() * PAGE_BYTES;
        let frames = match hashed {
            Hashed { size: hashed, frames } if hashed == size => frames,
            // It was packed since.
            _ => self.unhashed()?.hash()?.frames,
        };
        // Its writer may have said that it is on disk.
        self.memory.sync_all().map_err(failed(files::MEMORY))?;
        self.state.sync_all().map_err(failed(files::STATE))?;
        let entry = FileEntry { size, digest: frame::digest_of(&frames) };
        Ok((entry, map.with_frames(frames)?))
    }

    fn write_map(&self, map: &PageMap) -> Result<FileEntry, WriteError> {
        let bytes = map.encode();
        self.draft.write(files::MAP, &bytes)?;
        Ok(FileEntry { size: bytes.len() as u64, digest: Digest::of(&bytes) })
    }
}

/// Reads a file of at most `limit` bytes.
fn read_bounded(file: &File, name: &'static str, limit: u64) -> Result<Vec<u8>, WriteError> {
    let found = files::length(file).map_err(failed(name))?;
    if found > limit {
        return Err(WriteError::TooLong { name, found, limit });
    }
    files::read(file, found).map_err(failed(name))
}

/// Copies a file. Holes stay holes.
fn copy(from: &File, to: &File) -> io::Result<()> {
    let length = files::length(from)?;
    to.set_len(length)?;
    data_pages(from, length, |page, bytes| to.write_all_at(bytes, page * PAGE_BYTES))?;
    write_file(to, &[])
}

#[cfg(test)]
mod tests;
