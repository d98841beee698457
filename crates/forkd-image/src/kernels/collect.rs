//! Finds a kernel and its modules, wherever they come from.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::depends::{Module, load};
use super::{KernelStoreError, package};
use crate::archive::{self, Limits};
use crate::files::FileError;
use crate::kernel;
use crate::progress::Progress;

/// Modules in the order in which they are loaded, and whether a guest cannot do without: its transport, its disk and the
/// disk's file system. It would miss the others: checksums, which older kernels load for ext4 by a name that is no
/// dependency, network, entropy, the agent's sockets, panics that are seen, and connections that a fork must not inherit.
const MODULES: [(&str, bool); 11] = [
    ("virtio_mmio", true),
    ("virtio_blk", true),
    ("crc32c_generic", false),
    ("crc32c_intel", false),
    ("ext4", true),
    ("virtio_net", false),
    ("virtio_rng", false),
    ("vmw_vsock_virtio_transport", false),
    ("pvpanic_mmio", false),
    ("tcp_diag", false),
    ("udp_diag", false),
];

/// Where a kernel comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum KernelSource {
    /// The package of this host's distribution, Debian or Ubuntu: downloaded and unpacked, not installed.
    Distribution,
    /// The host's own: `/boot` and `/lib/modules`, below this root. The newest, or a version.
    Host { root: PathBuf, version: Option<String> },
    /// An uploaded archive.
    Archive,
    /// A file, ELF or bzImage. Without a directory of modules everything must be built in.
    Path { kernel: PathBuf, modules: Option<PathBuf> },
}

/// A kernel that was found.
pub(super) struct Found {
    pub version: String,
    pub elf: Vec<u8>,
    pub modules: Vec<Module>,
    pub missing: Vec<String>,
}

pub(super) fn collect(
    source: &KernelSource,
    scratch: &Path,
    progress: &dyn Progress,
) -> Result<Found, KernelStoreError> {
    match source {
        KernelSource::Distribution => {
            let root = package::download(scratch, progress)?;
            installed(&root, None)
        }
        KernelSource::Host { root, version } => installed(root, version.as_deref()),
        // Its sender has disconnected.
        KernelSource::Archive => Err(KernelStoreError::EmptyArchive),
        KernelSource::Path { kernel, modules } => read(kernel, modules.as_deref(), None),
    }
}

/// What a kernel's archive may hold: a distribution's kernel with all of its modules has some 6000 files of 500 MiB.
const LIMITS: Limits = Limits { total: 4 << 30, file: 1 << 30, entries: 100_000, path: 1024, depth: 32 };
const KERNEL: &str = "kernel";

/// The kernel in an archive. Paths of it are then read as any others, so there must be no link among them.
pub(super) fn unpacked(
    path: &Path,
    archive: impl Read,
    progress: &dyn Progress,
) -> Result<Found, KernelStoreError> {
    let tree = archive::unpack(path, archive, &LIMITS, progress)?;
    refuse_odd(path, Path::new(""))?;
    let root = tree.path();
    let (kernel, modules) = (root.join(KERNEL), root.join("modules"));
    if kernel.is_file() {
        return without_paths(root, read(&kernel, modules.is_dir().then_some(&*modules), None));
    }
    match installed(root, None) {
        Err(KernelStoreError::NoKernel(_)) => Err(KernelStoreError::EmptyArchive),
        found => without_paths(root, found),
    }
}

/// Messages name what is in the archive, not where it was for a moment.
fn without_paths(root: &Path, found: Result<Found, KernelStoreError>) -> Result<Found, KernelStoreError> {
    let inside = |path: PathBuf| path.strip_prefix(root).map(Path::to_owned).unwrap_or(path);
    found.map_err(|error| match error {
        KernelStoreError::Kernel { path, source } => KernelStoreError::Kernel { path: inside(path), source },
        KernelStoreError::NoVersion(path) => KernelStoreError::NoVersion(inside(path)),
        error => error,
    })
}

fn refuse_odd(root: &Path, inside: &Path) -> Result<(), KernelStoreError> {
    let directory = root.join(inside);
    for entry in fs::read_dir(&directory).map_err(FileError::at("list", &directory))? {
        let entry = entry.map_err(FileError::at("list", &directory))?;
        let kind = entry.file_type().map_err(FileError::at("list", &directory))?;
        let path = inside.join(entry.file_name());
        if kind.is_dir() {
            refuse_odd(root, &path)?;
        } else if !kind.is_file() {
            return Err(KernelStoreError::OddEntry(path.to_string_lossy().chars().take(200).collect()));
        }
    }
    Ok(())
}

/// The kernel of an installed system, or of an unpacked package.
fn installed(root: &Path, version: Option<&str>) -> Result<Found, KernelStoreError> {
    let boot = root.join("boot");
    let mut kernels: Vec<(Vec<u64>, String)> = Vec::new();
    for name in crate::files::names(&boot)? {
        if let Some(found) = name.strip_prefix("vmlinuz-")
            && version.is_none_or(|version| version == found)
        {
            kernels.push((numbers(found), found.to_owned()));
        }
    }
    kernels.sort();
    let (_, version) = kernels.pop().ok_or(KernelStoreError::NoKernel(boot.clone()))?;
    let candidates = ["lib/modules", "usr/lib/modules"].map(|path| root.join(path).join(&version));
    let modules = candidates.iter().find(|path| path.is_dir());
    let kernel = boot.join(format!("vmlinuz-{version}"));
    read(&kernel, modules.map(PathBuf::as_path), Some(version))
}

/// `6.1.0-9` comes before `6.1.0-40`.
fn numbers(version: &str) -> Vec<u64> {
    version.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
}

fn read(kernel: &Path, modules: Option<&Path>, version: Option<String>) -> Result<Found, KernelStoreError> {
    let file = fs::metadata(kernel).and_then(|metadata| {
        if metadata.len() > kernel::MAX_KERNEL {
            Err(std::io::ErrorKind::FileTooLarge.into())
        } else {
            fs::read(kernel)
        }
    });
    let file = file.map_err(FileError::at("read", kernel))?;
    let elf =
        kernel::to_elf(file).map_err(|source| KernelStoreError::Kernel { path: kernel.into(), source })?;
    let version = match version {
        Some(version) => version,
        None => version_of(&elf).ok_or_else(|| KernelStoreError::NoVersion(kernel.into()))?,
    };
    let (modules, missing) = match modules {
        Some(directory) => load(directory, &MODULES)?,
        None => (Vec::new(), Vec::new()),
    };
    Ok(Found { version, elf, modules, missing })
}

/// The banner that every kernel prints first: `Linux version 6.1.0-40-amd64 (…`.
fn version_of(elf: &[u8]) -> Option<String> {
    const BANNER: &[u8] = b"Linux version ";
    let mut rest = elf;
    while let Some(at) = rest.windows(BANNER.len()).position(|window| window == BANNER) {
        rest = &rest[at + BANNER.len()..];
        let end = rest.iter().take(65).position(|byte| !byte.is_ascii_graphic()).unwrap_or(0);
        // The same words are also the beginning of a format string.
        if rest[..end].first().is_some_and(u8::is_ascii_digit) {
            return Some(String::from_utf8_lossy(&rest[..end]).into_owned());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_in_the_banner() {
        let elf = b"..Linux version %s (x)\0Linux version 6.1.0-40-amd64 (debian)...";
        assert_eq!(version_of(elf).as_deref(), Some("6.1.0-40-amd64"));
        assert_eq!(version_of(b"Linux version "), None);
        assert_eq!(version_of(b""), None);
    }

    #[test]
    fn versions_are_compared_by_number() {
        assert!(numbers("6.1.0-9-amd64") < numbers("6.1.0-40-amd64"));
        assert!(numbers("5.10.0-1") < numbers("6.1.0-1"));
    }
}
