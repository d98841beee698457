//! Layers of images: tar archives, taken apart with suspicion and laid over each other in a directory.
//!
//! ```text
//!  bytes ─▶ compression ─▶ reader ──────────▶ apply ─────────────▶ tree
//!           gzip, zstd     headers to typed   whiteouts, replace    one directory; every path is resolved
//!                          entries, bounded   what was there        below it by the kernel (openat2)
//! ```
//!
//! An archive is refused whole, by the name of the entry that is wrong. The directory it was unpacked to is then of no
//! use, and its owner removes it.

mod apply;
mod compression;
mod content;
mod path;
mod pax;
mod reader;
mod remove;
#[cfg(any(test, feature = "testing"))]
#[expect(clippy::unwrap_used, reason = "it is for tests only, also those of other crates")]
pub mod testing;
#[cfg(test)]
mod tests;
mod tree;

pub use apply::{Whiteouts, apply};
pub use compression::{Bounded, Compression, decompressed};
pub use content::exactly;
pub use path::EntryPath;
pub use reader::{ArchiveEntry, Kind, read_entries};
pub use tree::{Contents, Tree};

use std::io::{self, Read};
use std::path::Path;

use crate::progress::Progress;

/// What an image may hold, over all of its layers. A bomb is refused before it fills the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes in all files together.
    pub total: u64,
    /// Bytes in one file.
    pub file: u64,
    /// Entries, also those that only describe another.
    pub entries: u64,
    /// Bytes in a path, links on the way resolved.
    pub path: usize,
    /// Directories inside each other.
    pub depth: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { total: 64 << 30, file: 8 << 30, entries: 4_000_000, path: 4095, depth: 200 }
    }
}

/// Unpacks a whole archive, compressed or not, to a new directory in one that no other user may enter.
pub fn unpack(
    path: &Path,
    file: impl Read,
    limits: &Limits,
    progress: &dyn Progress,
) -> Result<Tree, ArchiveError> {
    let failed = |source| ArchiveError::Unpack { entry: ".".into(), source };
    let mut tree = Tree::create(path).map_err(failed)?;
    let left = limits.total.saturating_add(limits.entries.saturating_mul(2048));
    let archive = Bounded { inner: decompressed(file)?, left };
    apply(&mut tree, archive, Whiteouts::Keep, limits, &mut Used::default(), progress)?;
    Ok(tree)
}

/// What was used of the limits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Used {
    pub bytes: u64,
    pub entries: u64,
}

/// Names and extended headers longer than this belong to no honest archive.
pub(crate) const MAX_EXTENSION: u64 = 1 << 20;

/// An archive was not unpacked.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    #[error("the archive cannot be read{}", after(.entry))]
    Read { entry: String, source: io::Error },
    #[error("the archive is refused: {entry:?} {problem}")]
    Refused { entry: String, problem: Problem },
    #[error("cannot unpack {entry:?}")]
    Unpack { entry: String, source: io::Error },
    #[error("the archive is compressed in a way that is not supported ({0}); use gzip, zstd or none")]
    Compression(&'static str),
    #[error("cancelled")]
    Cancelled,
}

fn after(entry: &str) -> String {
    if entry.is_empty() { String::new() } else { format!(" after {entry:?}") }
}

/// What is wrong with an entry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("climbs out of the image: its path has '..'")]
    ClimbsOut,
    #[error("has a link on its path that leads out of the image")]
    ThroughLink,
    #[error("has something on its path that is not a directory")]
    NotADirectory,
    #[error("has an invalid file name")]
    BadName,
    #[error("has a path that is too long")]
    PathTooLong,
    #[error("is nested too deep")]
    TooDeep,
    #[error("is a hard link to {0:?}, which is not in the image")]
    LinkMissing(String),
    #[error("is a hard link to {0:?}, a directory")]
    LinkToDirectory(String),
    #[error("has the type {0:?}, which is not supported in images")]
    OddType(char),
    #[error("is a sparse file, which is not supported; write the archive without --sparse")]
    Sparse,
    #[error("has an invalid header: {0}")]
    BadHeader(&'static str),
    #[error("ends early")]
    Truncated,
    #[error("is larger than {0} bytes, the most that a file may have")]
    FileTooLarge(u64),
    #[error("is too much: the image would hold more than {0} bytes")]
    TotalTooLarge(u64),
    #[error("is too much: the image would have more than {0} entries")]
    TooManyEntries(u64),
    #[error("has the attribute {0:?}, which cannot be set")]
    Attribute(String),
}

/// Bytes as they are shown in messages: bounded, and without control characters.
pub(crate) fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(200)]);
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}
