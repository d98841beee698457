//! Streams on their way: what came before a pull failed, or before the daemon was killed, is there for the next pull.
//!
//! ```text
//!   partial/DIGEST    one file for each stream, named by what the stream is: role, name, size, digests of its frames
//!
//!   claimed by one arrival at a time ─▶ frames that are right are not fetched again ─▶ whole: linked to where it belongs
//!     ─▶ arrived: removed      failed: kept for a day, or until the disk is short of space
//! ```
//!
//! It is only a cache. A frame counts as there when its digest was computed again from what is on disk, so a crash may leave anything.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forkd_hub::{ByteSink, ByteSource, Stream, Wanted, present_frames};
use forkd_store::{PackedFile, PageMap, SparseError};

use crate::paths::PathError;
use crate::recovery::recover::is_old;

/// How long a file that no arrival uses is kept.
pub(crate) const KEPT: Duration = Duration::from_secs(24 * 60 * 60);
/// How often it is looked whether another arrival has ended.
const POLL: Duration = Duration::from_millis(100);

/// The directory of such files.
#[derive(Debug)]
pub(crate) struct Partials {
    directory: PathBuf,
    /// The files that arrivals use.
    claimed: Mutex<BTreeSet<String>>,
}

impl Partials {
    /// Those in a directory, which exists.
    pub fn new(directory: PathBuf) -> Partials {
        Partials { directory, claimed: Mutex::default() }
    }

    fn claimed(&self) -> MutexGuard<'_, BTreeSet<String>> {
        // A panic while holding the lock leaves the set in order.
        self.claimed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the files of all these streams at once, and waits while another arrival has one of them. None if it is cancelled.
    pub fn claim(&self, streams: &[Stream], is_cancelled: &dyn Fn() -> bool) -> Option<Claim<'_>> {
        let names: BTreeSet<String> = streams.iter().map(name).collect();
        while !is_cancelled() {
            let mut claimed = self.claimed();
            if claimed.is_disjoint(&names) {
                claimed.extend(names.iter().cloned());
                return Some(Claim { partials: self, names });
            }
            drop(claimed);
            std::thread::sleep(POLL);
        }
        None
    }

    /// Removes files of this age that no arrival uses. Returns how many.
    pub fn sweep(&self, age: Duration) -> usize {
        // Held meanwhile, so that no arrival finds a file that is about to go.
        let claimed = self.claimed();
        let files = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let is_claimed = |name: &str| claimed.contains(name);
        let unused = files.filter(|entry| !entry.file_name().to_str().is_some_and(is_claimed));
        // What cannot be removed is tried again by the next sweep.
        unused.filter(|entry| is_old(&entry.path(), age) && fs::remove_file(entry.path()).is_ok()).count()
    }
}

/// The name of a stream's file.
fn name(stream: &Stream) -> String {
    let mut hash = blake3::Hasher::new();
    for part in [stream.role.media_type(), &stream.name] {
        hash.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
    }
    hash.update(&stream.table.size().to_le_bytes());
    for digest in stream.table.frame_digests() {
        hash.update(digest.as_bytes());
    }
    hash.finalize().to_hex().to_string()
}

/// The files of one arrival's streams. Dropped, another arrival may have them.
#[derive(Debug)]
pub(crate) struct Claim<'a> {
    partials: &'a Partials,
    names: BTreeSet<String>,
}

impl Claim<'_> {
    /// Opens the file of one of the streams, whose bytes it has as they come.
    pub fn open<'s>(
        &self,
        stream: &'s Stream,
        is_cancelled: &(dyn Fn() -> bool + Sync),
    ) -> Result<Partial<'s>, PathError> {
        let size = stream.table.size();
        let opened = self.open_as(stream, size, is_cancelled, |file| {
            file.set_len(size)?;
            Ok::<_, io::Error>(Contents::Plain(file))
        });
        opened.map_err(|(path, source)| PathError::at("open", &path)(source))
    }

    /// Opens the file of a disk layer of `size` bytes, which has the stream's pages at their places.
    pub fn open_disk<'s>(
        &self,
        stream: &'s Stream,
        size: u64,
        map: &PageMap,
        is_cancelled: &(dyn Fn() -> bool + Sync),
    ) -> Result<Partial<'s>, SparseError> {
        let opened = self.open_as(stream, size, is_cancelled, |file| {
            Ok::<_, SparseError>(Contents::Packed(PackedFile::unpack(file, size, map.clone())?))
        });
        opened.map_err(|(_, source)| source)
    }

    fn open_as<'s, E: From<io::Error>>(
        &self,
        stream: &'s Stream,
        size: u64,
        is_cancelled: &(dyn Fn() -> bool + Sync),
        contents: impl Fn(File) -> Result<Contents, E>,
    ) -> Result<Partial<'s>, (PathBuf, E)> {
        let path = self.partials.directory.join(name(stream));
        let at = |error: E| (path.clone(), error);
        let (mut file, is_new) = open(&path).map_err(|error| at(error.into()))?;
        let metadata = file.metadata().map_err(|error| at(error.into()))?;
        if !is_new {
            // An arrival that was killed may have linked it already. What is linked is not written to.
            let is_linked = metadata.nlink() > 1;
            if !is_linked || metadata.len() == size {
                let contents = contents(file).map_err(at)?;
                let have = present_frames(&stream.table, &contents, is_cancelled);
                if !is_linked || have.iter().all(|have| *have) {
                    return Ok(Partial { stream, path, contents, have });
                }
            }
            fs::remove_file(&path).map_err(|error| at(error.into()))?;
            (file, _) = open(&path).map_err(|error| at(error.into()))?;
        }
        let have = vec![false; stream.table.frame_digests().count()];
        Ok(Partial { stream, contents: contents(file).map_err(at)?, path: path.clone(), have })
    }

    /// What there is on the disk of a stream, of whatever contents.
    pub fn stored_bytes(&self, stream: &Stream) -> u64 {
        let metadata = fs::metadata(self.partials.directory.join(name(stream)));
        metadata.map_or(0, |metadata| metadata.blocks().saturating_mul(512))
    }

    /// Removes the files: their contents are where they belong, or of no use.
    pub fn remove(&self) {
        for name in &self.names {
            // What cannot be removed goes with its age.
            let _ = fs::remove_file(self.partials.directory.join(name));
        }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.partials.claimed().retain(|name| !self.names.contains(name));
    }
}

/// Opens a file, or makes it; says whether it is new.
fn open(path: &PathBuf) -> io::Result<(File, bool)> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    match options.open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Ok((options.create_new(true).open(path)?, true))
        }
        opened => Ok((opened?, false)),
    }
}

/// The file of a stream, and which of the stream's frames it has.
#[derive(Debug)]
pub(crate) struct Partial<'s> {
    pub stream: &'s Stream,
    pub path: PathBuf,
    contents: Contents,
    have: Vec<bool>,
}

#[derive(Debug)]
enum Contents {
    Plain(File),
    /// Pages of a disk layer, at their places.
    Packed(PackedFile),
}

impl Partial<'_> {
    pub fn file(&self) -> &File {
        match &self.contents {
            Contents::Plain(file) => file,
            Contents::Packed(packed) => packed.file(),
        }
    }

    /// Calls `fetch` with what is missing of these streams.
    pub fn missing<T>(partials: &[Partial<'_>], fetch: impl FnOnce(&[Wanted<'_>]) -> T) -> T {
        let have = partials.iter().map(|partial| {
            |frame: u64| {
                let frame = usize::try_from(frame).ok().and_then(|frame| partial.have.get(frame));
                frame.is_some_and(|have| *have)
            }
        });
        let have: Vec<_> = have.collect();
        let wanted = partials.iter().zip(&have).map(|(partial, have)| Wanted {
            stream: partial.stream,
            have,
            sink: &partial.contents,
        });
        fetch(&wanted.collect::<Vec<_>>())
    }

    /// Its contents are wrong, and not to be used again.
    pub fn discard(&self) {
        let _ = fs::remove_file(&self.path);
    }

    /// Discards it if a check of it has failed.
    pub fn checked<T, E>(&self, checked: Result<T, E>) -> Result<T, E> {
        checked.inspect_err(|_| self.discard())
    }
}

impl ByteSource for Contents {
    fn length(&self) -> io::Result<u64> {
        match self {
            Contents::Plain(file) => file.length(),
            Contents::Packed(packed) => Ok(packed.length()),
        }
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        match self {
            Contents::Plain(file) => ByteSource::read_at(file, buffer, offset),
            Contents::Packed(packed) => packed.read_at(buffer, offset),
        }
    }
}

impl ByteSink for Contents {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        match self {
            Contents::Plain(file) => ByteSink::write_at(file, bytes, offset),
            Contents::Packed(packed) => packed.write_at(bytes, offset),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forkd_hub::{About, Annotations, Outgoing, Role, Silent, Snapshot, layout};

    const MIB: usize = 1 << 20;

    /// The stream of these bytes, as an artifact has it.
    fn stream(role: Role, name: &str, source: &Vec<u8>) -> Stream {
        let outgoing = [Outgoing { role, name, source, known: None, remembered: None }];
        let snapshot =
            Snapshot { streams: &outgoing, about: &About::new(), annotations: &Annotations::new() };
        layout::write(io::sink(), snapshot, None, &Silent).unwrap().streams.remove(0)
    }

    /// Six MiB, each of another byte.
    fn bytes() -> Vec<u8> {
        (1..=6).flat_map(|number| vec![number; MIB]).collect()
    }

    fn missing(partial: Partial<'_>) -> u64 {
        Partial::missing(&[partial], |wanted| wanted[0].missing())
    }

    /// Writes a frame as a fetch does.
    fn write(partial: &Partial<'_>, bytes: &[u8], frame: usize) {
        let range = frame * 2 * MIB..(frame + 1) * 2 * MIB;
        partial.contents.write_at(&bytes[range.clone()], range.start as u64).unwrap();
    }

    #[test]
    fn what_came_is_there_for_the_next_arrival_if_it_is_right() {
        let directory = tempfile::tempdir().unwrap();
        let (bytes, partials) = (bytes(), Partials::new(directory.path().into()));
        let streams = [stream(Role::Memory, "base", &bytes)];
        let claim = || partials.claim(&streams, &|| false).unwrap();
        let open = |claim: &Claim<'_>| missing(claim.open(&streams[0], &|| false).unwrap());
        {
            let claim = claim();
            let partial = claim.open(&streams[0], &|| false).unwrap();
            write(&partial, &bytes, 0);
            write(&partial, &bytes, 2);
            let mut damaged = bytes.clone();
            damaged[3 * MIB] ^= 1;
            write(&partial, &damaged, 1);
        }
        assert_eq!(open(&claim()), 2 << 20);
        // One that was linked to its place is used as it is, or not at all.
        let path = claim().open(&streams[0], &|| false).unwrap().path;
        let linked = directory.path().join("linked");
        fs::hard_link(&path, &linked).unwrap();
        assert_eq!(open(&claim()), 6 << 20);
        assert_eq!(fs::read(&linked).unwrap()[..2 * MIB], bytes[..2 * MIB], "it is untouched");
        {
            let claim = claim();
            let partial = claim.open(&streams[0], &|| false).unwrap();
            (0..3).for_each(|frame| write(&partial, &bytes, frame));
        }
        fs::remove_file(&linked).unwrap();
        fs::hard_link(&path, &linked).unwrap();
        assert_eq!(open(&claim()), 0);
        let (claim, refused) = (claim(), Err::<(), _>(()));
        claim.open(&streams[0], &|| false).unwrap().checked(refused).unwrap_err();
        assert!(!path.exists() && linked.exists());
    }

    #[test]
    fn pages_of_a_disk_are_at_their_places() {
        let directory = tempfile::tempdir().unwrap();
        let (bytes, partials) = (bytes(), Partials::new(directory.path().into()));
        let streams = [stream(Role::Disk, "layer", &bytes)];
        // The last page of 8 MiB, and nothing in between.
        let disk = tempfile::tempfile().unwrap();
        disk.write_at(&bytes[..6 * MIB - 4096], 0).unwrap();
        disk.write_at(&bytes[6 * MIB - 4096..], (8 << 20) - 4096).unwrap();
        let map = PackedFile::pack(disk).unwrap().map().clone();
        let claim = partials.claim(&streams, &|| false).unwrap();
        let open = || claim.open_disk(&streams[0], 8 << 20, &map, &|| false).unwrap();
        write(&open(), &bytes, 2);
        let partial = open();
        let file = fs::read(&partial.path).unwrap();
        assert_eq!((file.len(), file[4 * MIB], file[7 * MIB], file[8 * MIB - 1]), (8 * MIB, 5, 0, 6));
        assert_eq!(missing(partial), 4 << 20);
        claim.open_disk(&streams[0], 9 << 20, &map, &|| false).unwrap_err();
    }

    #[test]
    fn one_arrival_has_a_stream_and_the_sweep_spares_it() {
        let directory = tempfile::tempdir().unwrap();
        let partials = Partials::new(directory.path().into());
        let streams = [stream(Role::State, "one", &bytes()), stream(Role::State, "two", &bytes())];
        assert_ne!(name(&streams[0]), name(&streams[1]));
        let first = partials.claim(&streams[..1], &|| false).unwrap();
        drop(first.open(&streams[0], &|| false).unwrap());
        assert!(partials.claim(&streams, &|| true).is_none(), "cancelled");
        let second = partials.claim(&streams[1..], &|| false).unwrap();
        drop(second.open(&streams[1], &|| false).unwrap());
        drop(second);
        assert_eq!(partials.sweep(KEPT), 0, "too young");
        assert_eq!(partials.sweep(Duration::ZERO), 1, "the other one is in use");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| partials.claim(&streams, &|| false).is_some());
            drop(first);
            assert!(waiting.join().unwrap());
        });
        partials.claim(&streams, &|| false).unwrap().remove();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
