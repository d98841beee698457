//! Kernels that guests boot: unpacked, with the modules that a guest needs before it can see its root disk.
//!
//! ```text
//! kernels/
//!   6.1.0-40-amd64-1f2e3d4c5b6a/    version and the beginning of a digest
//!     vmlinux                       ELF
//!     modules/00-virtio.ko …        in load order, not compressed
//!     metadata.json
//!     initramfs-DIGEST              per agent, made when it is first needed
//!   default                         {"id": "…"}
//!   .shared/ID/initramfs-DIGEST     of a kernel in a library that is only read
//! ```
//!
//! A store may have a second one below it that is only read, as images have: in the machine, the host's.

mod boot;
mod collect;
mod depends;
mod package;
#[cfg(test)]
mod tests;

pub use collect::KernelSource;
pub use depends::{DependsError, Module, load as load_modules};
pub use package::PackageError;

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::archive::ArchiveError;
use crate::digest::{Digest, Hasher};
use crate::files::{self, FileError, Temporary};
use crate::kernel::KernelError;
use crate::progress::Progress;

const VMLINUX: &str = "vmlinux";
const MODULES: &str = "modules";
const METADATA: &str = "metadata.json";
const DEFAULT: &str = "default";
const SHARED: &str = ".shared";

#[derive(Debug, thiserror::Error)]
pub enum KernelStoreError {
    #[error("there is no kernel {0:?}; run `forkd kernel ls`")]
    Unknown(String),
    #[error("{0:?} matches more than one kernel; give the full id")]
    Ambiguous(String),
    #[error("{0} is the default; choose another first (forkd kernel default ID), or remove it with --force")]
    IsDefault(String),
    #[error(
        "{0} is in the shared library, which is read-only here; remove it on the host that keeps the library"
    )]
    Shared(String),
    #[error("{} is not a bootable kernel", path.display())]
    Kernel { path: PathBuf, source: KernelError },
    #[error("no kernel found in {}", .0.display())]
    NoKernel(PathBuf),
    #[error("cannot find the version of the kernel in {}", .0.display())]
    NoVersion(PathBuf),
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    #[error(
        "the archive is refused: {0:?} is neither a file nor a directory, the only kinds that a kernel needs"
    )]
    OddEntry(String),
    #[error("the archive has neither a file named kernel nor boot/vmlinuz-VERSION")]
    EmptyArchive,
    #[error(transparent)]
    Modules(#[from] DependsError),
    #[error(transparent)]
    Package(#[from] PackageError),
    #[error(transparent)]
    File(#[from] FileError),
}

/// `metadata.json` in a kernel's directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelMetadata {
    pub id: String,
    pub version: String,
    pub source: KernelSource,
    /// The digest of the kernel and its modules.
    pub digest: Digest,
    /// File names in load order.
    pub modules: Vec<String>,
    /// Modules that would be of use and that this kernel does not have.
    pub missing: Vec<String>,
    /// Seconds since 1970.
    pub created: u64,
}

/// A kernel in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StoredKernel {
    #[serde(flatten)]
    pub metadata: KernelMetadata,
    pub is_default: bool,
    pub path: PathBuf,
    /// Whether it is in a library that is only read.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
    /// Where its initial RAM disks are made.
    #[serde(skip)]
    cache: PathBuf,
}

impl StoredKernel {
    /// The ELF file.
    pub fn vmlinux(&self) -> PathBuf {
        self.path.join(VMLINUX)
    }
}

/// The kernels of one forkd home.
#[derive(Debug, Clone)]
pub struct KernelStore {
    directory: PathBuf,
    /// A store that is only read.
    shared: Option<PathBuf>,
}

#[derive(Debug, Serialize, Deserialize)]
struct DefaultFile {
    id: String,
}

impl KernelStore {
    /// The store below forkd's home. Nothing is made until a kernel is added.
    pub fn new(home: &Path) -> KernelStore {
        KernelStore { directory: home.join("kernels"), shared: None }
    }

    /// With the kernels of another library below, which are only read.
    pub fn with_shared(self, library: &Path) -> KernelStore {
        KernelStore { shared: Some(library.join("kernels")), ..self }
    }

    /// All kernels, by id. One that is in both libraries is the store's own.
    pub fn list(&self) -> Result<Vec<StoredKernel>, KernelStoreError> {
        let default = self.default_id()?;
        let mut kernels = BTreeMap::new();
        for directory in std::iter::once(&self.directory).chain(&self.shared) {
            let shared = directory != &self.directory;
            for id in files::names(directory)? {
                let path = directory.join(&id);
                if kernels.contains_key(&id) {
                    continue;
                }
                let Some(metadata) = files::read_json::<KernelMetadata>(&path.join(METADATA))? else {
                    continue;
                };
                let is_default = default.as_ref() == Some(&id);
                let cache = if shared { self.directory.join(SHARED).join(&id) } else { path.clone() };
                kernels.insert(id, StoredKernel { is_default, metadata, path, shared, cache });
            }
        }
        Ok(kernels.into_values().collect())
    }

    /// The kernel that an id, or its beginning, means. Versions are beginnings of ids.
    pub fn find(&self, text: &str) -> Result<StoredKernel, KernelStoreError> {
        let shown = || text.chars().take(200).collect();
        let mut kernels = self.list()?;
        if let Some(exact) = kernels.iter().position(|kernel| kernel.metadata.id == text) {
            return Ok(kernels.swap_remove(exact));
        }
        kernels.retain(|kernel| !text.is_empty() && kernel.metadata.id.starts_with(text));
        match kernels.len() {
            0 => Err(KernelStoreError::Unknown(shown())),
            1 => Ok(kernels.swap_remove(0)),
            _ => Err(KernelStoreError::Ambiguous(shown())),
        }
    }

    /// Adds a kernel; the first becomes the default.
    pub fn add(
        &self,
        source: &KernelSource,
        progress: &dyn Progress,
    ) -> Result<StoredKernel, KernelStoreError> {
        let temporary = Temporary::new(&self.directory)?;
        let found = collect::collect(source, temporary.path(), progress)?;
        self.keep(&temporary, found, source, progress)
    }

    /// Adds a kernel out of a tar archive, compressed or not, which is distrusted:
    ///
    /// ```text
    /// kernel                      ELF or bzImage
    /// modules/                    with it, if not everything is built in; the directory with modules.dep
    /// ```
    ///
    /// or the root of a system or of an unpacked package, with `boot/vmlinuz-VERSION` and `lib/modules/VERSION`.
    pub fn add_archive(
        &self,
        archive: impl Read,
        progress: &dyn Progress,
    ) -> Result<StoredKernel, KernelStoreError> {
        let temporary = Temporary::new(&self.directory)?;
        progress.step("unpacking the kernel");
        let found = collect::unpacked(&temporary.path().join("archive"), archive, progress)?;
        self.keep(&temporary, found, &KernelSource::Archive, progress)
    }

    fn keep(
        &self,
        temporary: &Temporary,
        found: collect::Found,
        source: &KernelSource,
        progress: &dyn Progress,
    ) -> Result<StoredKernel, KernelStoreError> {
        progress.step(&format!("adding kernel {}", found.version));
        let hasher = Hasher::new("forkd kernel").part(&found.elf);
        let modules = found.modules.iter();
        let hasher =
            modules.fold(hasher, |hash, module| hash.part(module.name.as_bytes()).part(&module.content));
        let digest = hasher.finish();
        let id = format!("{}-{}", file_name(&found.version), digest.short());

        let inner = temporary.path().join("kernel");
        let directory = inner.join(MODULES);
        fs::create_dir_all(&directory).map_err(FileError::at("make", &directory))?;
        let vmlinux = inner.join(VMLINUX);
        fs::write(&vmlinux, &found.elf).map_err(FileError::at("write", &vmlinux))?;
        let mut modules = Vec::new();
        for (number, module) in found.modules.iter().enumerate() {
            let name = format!("{number:02}-{}.ko", module.name);
            let path = directory.join(&name);
            fs::write(&path, &module.content).map_err(FileError::at("write", &path))?;
            modules.push(name);
        }
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let metadata = KernelMetadata {
            id: id.clone(),
            version: found.version,
            source: source.clone(),
            digest,
            modules,
            missing: found.missing,
            created,
        };
        files::write_json(&inner.join(METADATA), &metadata)?;
        if progress.is_cancelled() {
            return Err(ArchiveError::Cancelled.into());
        }
        temporary.publish(&inner, &self.directory.join(&id))?;
        if self.default_id()?.is_none() {
            self.write_default(&id)?;
        }
        self.find(&id)
    }

    /// Removes a kernel; the default one only if `force` is given.
    pub fn remove(&self, text: &str, force: bool) -> Result<StoredKernel, KernelStoreError> {
        let kernel = self.find(text)?;
        if kernel.shared {
            return Err(KernelStoreError::Shared(kernel.metadata.id));
        }
        if kernel.is_default && !force {
            return Err(KernelStoreError::IsDefault(kernel.metadata.id));
        }
        if default_in(&self.directory)?.as_ref() == Some(&kernel.metadata.id) {
            let path = self.directory.join(DEFAULT);
            fs::remove_file(&path).map_err(FileError::at("remove", &path))?;
        }
        files::remove_directory(&kernel.path)?;
        Ok(kernel)
    }

    /// The default kernel, if there is one.
    pub fn default_kernel(&self) -> Result<Option<StoredKernel>, KernelStoreError> {
        Ok(self.list()?.into_iter().find(|kernel| kernel.is_default))
    }

    pub fn set_default(&self, text: &str) -> Result<StoredKernel, KernelStoreError> {
        let kernel = self.find(text)?;
        self.write_default(&kernel.metadata.id)?;
        Ok(StoredKernel { is_default: true, ..kernel })
    }

    /// The default kernel. The first time it is the one that this host runs, if that is installed with every module that a guest
    /// may want, as in the machine; otherwise the distribution's, which takes a download.
    pub fn ensure_default(&self, progress: &dyn Progress) -> Result<StoredKernel, KernelStoreError> {
        if let Some(kernel) = self.default_kernel()? {
            return Ok(kernel);
        }
        let path = Path::new("/proc/sys/kernel/osrelease");
        let version = fs::read_to_string(path).map_err(FileError::at("read", path))?.trim().to_owned();
        let running = KernelSource::Host { root: "/".into(), version: Some(version) };
        self.add_default(&running, progress)
    }

    /// Adds the running kernel, or else the distribution's, as the default.
    fn add_default(
        &self,
        running: &KernelSource,
        progress: &dyn Progress,
    ) -> Result<StoredKernel, KernelStoreError> {
        let temporary = Temporary::new(&self.directory)?;
        let kernel = match collect::collect(running, temporary.path(), progress) {
            Ok(found) if found.missing.is_empty() => self.keep(&temporary, found, running, progress)?,
            // Not installed here, or built without something: the distribution's is known to work.
            _ => {
                progress.step("no kernel in the library: fetching the distribution's");
                self.add(&KernelSource::Distribution, progress)?
            }
        };
        self.set_default(&kernel.metadata.id)
    }

    fn default_id(&self) -> Result<Option<String>, FileError> {
        match (default_in(&self.directory)?, &self.shared) {
            (None, Some(shared)) if files::is_listed(shared, DEFAULT)? => default_in(shared),
            (own, _) => Ok(own),
        }
    }

    fn write_default(&self, id: &str) -> Result<(), FileError> {
        fs::create_dir_all(&self.directory).map_err(FileError::at("make", &self.directory))?;
        files::write_json(&self.directory.join(DEFAULT), &DefaultFile { id: id.into() })
    }
}

fn default_in(directory: &Path) -> Result<Option<String>, FileError> {
    Ok(files::read_json::<DefaultFile>(&directory.join(DEFAULT))?.map(|file| file.id))
}

/// A version as part of a file's name. It comes out of the kernel, and that out of any file.
fn file_name(version: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._+-".contains(c) { c } else { '_' };
    let name: String = version.chars().take(64).map(plain).collect();
    // Hidden names are temporary ones.
    name.trim_start_matches(['.', '-']).to_owned()
}
