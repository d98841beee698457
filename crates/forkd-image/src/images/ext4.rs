//! A tree of files as an ext4 file system, the same bytes for the same files.
//!
//! mke2fs fills the file system from a directory. What would differ from one time to the next is fixed: ids, the seed of
//! the directories' hashes, times of the file system, and with debugfs the times that mke2fs takes from the directory and
//! cannot be set there (ctime). The only difference that remains is the order in which the host's file system lists directories.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use forkd_host::command::{self, CommandError};
use forkd_host::tool::{self, MissingTool};
use rustix::fs::FallocateFlags;

use crate::archive::Contents;
use crate::digest::Digest;
use crate::files::FileError;
use crate::progress::Progress;

/// One for all: nothing tells two file systems of forkd by it.
const UUID: &str = "f0f0cade-0000-4000-8000-666f726b6400";
const BLOCK: usize = 4096;
/// The journal's size. The default for such disks is four times as large, and a guest dirties all of it in time.
const JOURNAL_MIB: u64 = 16;
/// Room beyond the content, unless more is asked for. It takes no space on the host until a guest writes to it.
const ROOM_MIB: u64 = 1024;
/// The first inode that is not the file system's own.
const FIRST_INODE: u64 = 11;
const TIME_LIMIT: Duration = Duration::from_secs(30 * 60);

#[derive(Debug, thiserror::Error)]
pub enum Ext4Error {
    #[error(transparent)]
    Tool(#[from] MissingTool),
    #[error(transparent)]
    Command(#[from] CommandError),
    #[error("{program} failed: {complaint}")]
    Failed { program: &'static str, complaint: String },
    #[error(transparent)]
    File(#[from] FileError),
}

/// Tools that [`make`] needs.
pub(super) const TOOLS: [tool::Tool; 2] = [tool::MKE2FS, tool::DEBUGFS];

/// Makes the file system in a new sparse file. Returns its size and digest.
pub(super) fn make(
    tree: &Path,
    contents: &Contents,
    min_mib: Option<u64>,
    path: &Path,
    progress: &dyn Progress,
) -> Result<(u64, Digest), Ext4Error> {
    let size = size(contents, min_mib);
    File::create_new(path).and_then(|file| file.set_len(size)).map_err(FileError::at("make", path))?;
    // Enough for the files and as many again, or as many as such a disk would have anyway.
    let inodes = (contents.inodes * 2 + 1024).max(size / 16384);
    let mut mke2fs = tool::MKE2FS.command()?;
    mke2fs.args(["-q", "-F", "-t", "ext4", "-b", "4096", "-I", "256", "-m", "0", "-U", UUID]);
    // Tables that are left for later are written by the guest's kernel, in every child anew.
    mke2fs.arg("-E").arg(format!("hash_seed={UUID},lazy_itable_init=0,lazy_journal_init=0,root_owner=0:0"));
    mke2fs.arg("-J").arg(format!("size={JOURNAL_MIB}")).arg("-N").arg(inodes.to_string());
    mke2fs.arg("-d").arg(tree).arg(path);
    run(&mut mke2fs, "mke2fs", progress)?;

    let mut script = String::new();
    for inode in std::iter::once(2).chain(FIRST_INODE..=FIRST_INODE + contents.inodes) {
        // Writing to a string cannot fail.
        let _ = write!(script, "sif <{inode}> ctime @0\nsif <{inode}> atime @0\n");
    }
    let commands = path.with_extension("debugfs");
    fs::write(&commands, script).map_err(FileError::at("write", &commands))?;
    let mut debugfs = tool::DEBUGFS.command()?;
    let fixed = run(debugfs.arg("-w").arg("-f").arg(&commands).arg(path), "debugfs", progress);
    fs::remove_file(&commands).map_err(FileError::at("remove", &commands))?;
    fixed?;
    let digest = dig_and_hash(path).map_err(FileError::at("read", path))?;
    Ok((size, digest))
}

/// Content, room, and what ext4 itself needs.
fn size(contents: &Contents, min_mib: Option<u64>) -> u64 {
    let content = contents.bytes + contents.inodes * 512;
    let needed = content + content / 8 + ((ROOM_MIB + JOURNAL_MIB) << 20);
    needed.max(min_mib.unwrap_or(0) << 20).next_multiple_of(1 << 20)
}

fn run(
    command: &mut std::process::Command,
    program: &'static str,
    progress: &dyn Progress,
) -> Result<(), Ext4Error> {
    // Both spellings of "it is 1970", for old and new releases of e2fsprogs.
    command.env("E2FSPROGS_FAKE_TIME", "1").env("SOURCE_DATE_EPOCH", "1").env("LC_ALL", "C");
    let outcome = command::run_unless(command, "", TIME_LIMIT, &|| progress.is_cancelled())?;
    if outcome.status.success() {
        return Ok(());
    }
    Err(Ext4Error::Failed { program, complaint: outcome.complaint() })
}

/// Gives blocks of zeroes back to the host (mke2fs writes the inode tables out), and takes the digest of the others, each
/// with its place: most of the file is zeroes, and they need not be read.
pub(super) fn dig_and_hash(path: &Path) -> io::Result<Digest> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let length = file.metadata()?.len();
    let mut hash = crate::digest::Stream::default();
    hash.bytes(&length.to_le_bytes());
    let mut chunk = vec![0; 64 * BLOCK];
    let mut offset = 0;
    while offset < length {
        let data = match rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(offset)) {
            Ok(data) => data,
            Err(rustix::io::Errno::NXIO) => break,
            // A file system that knows no holes has data everywhere.
            Err(_) => offset,
        };
        // Chunks begin at multiples of a block.
        offset = data - data % BLOCK as u64;
        let wanted = usize::try_from(length - offset).unwrap_or(chunk.len()).min(chunk.len());
        let chunk = &mut chunk[..wanted];
        file.read_exact_at(chunk, offset)?;
        for (number, block) in chunk.chunks(BLOCK).enumerate() {
            let at = offset + (number * BLOCK) as u64;
            if block.iter().any(|byte| *byte != 0) {
                hash.bytes(&at.to_le_bytes());
                hash.bytes(block);
                continue;
            }
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // A file system without holes keeps the zeroes.
            let _ = rustix::fs::fallocate(&file, flags, at, block.len() as u64);
        }
        offset += wanted as u64;
    }
    Ok(hash.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn zeroes_become_holes_and_the_digest_does_not_see_the_difference() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        let mut bytes = vec![0; (3 << 20) + 77];
        bytes[5000..6000].fill(7);
        bytes[(2 << 20) + 3..(2 << 20) + 9].fill(9);
        fs::write(&path, &bytes).unwrap();
        let digest = dig_and_hash(&path).unwrap();
        assert!(fs::metadata(&path).unwrap().blocks() * 512 <= 64 << 10);
        assert_eq!(dig_and_hash(&path).unwrap(), digest);
        assert!(fs::read(&path).unwrap() == bytes);
        // The same blocks elsewhere, and another length, are something else.
        bytes.rotate_right(BLOCK);
        fs::write(&path, &bytes).unwrap();
        assert_ne!(dig_and_hash(&path).unwrap(), digest);
        bytes.rotate_left(BLOCK);
        bytes.push(0);
        fs::write(&path, &bytes).unwrap();
        assert_ne!(dig_and_hash(&path).unwrap(), digest);
    }

    #[test]
    fn the_size_grows_with_the_content_and_the_wish() {
        let contents = |mib: u64| Contents { inodes: 100, bytes: mib << 20 };
        assert!(size(&contents(0), None) > ROOM_MIB << 20);
        assert!(size(&contents(4096), None) > 5 << 30);
        assert_eq!(size(&contents(1), Some(8192)), 8 << 30);
    }
}
