//! What guests are made of on this host.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forkd_engine::boot::{BootedVm, DiskPlan, Plan, boot, command_line};
use forkd_engine::bring_up::{ImageConfig, WarmUp, bring_up};
use forkd_engine::library::{Library, Recipe};
use forkd_engine::{Engine, NewSnapshot, Settings};
use forkd_host::is_emulated;
use forkd_image::Silent;
use forkd_image::images::{Image, ImageStore};
use forkd_image::kernels::KernelStore;
use forkd_proto::control::CpuModel;
use forkd_tests::binaries;
use forkd_tests::engine::tiny;

pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// How long anything may take, also in an emulator.
pub const LIMIT: Duration = Duration::from_secs(120);

/// What a guest may write to its disk.
const DISK: u64 = 4 << 30;

pub struct World {
    library: PathBuf,
    kernel: PathBuf,
    initramfs: PathBuf,
    image: Image,
    directory: tempfile::TempDir,
}

impl World {
    pub fn open(library: &str, image: &str) -> Result<World, Failure> {
        let library = Path::new(library);
        let kernel = KernelStore::new(library).ensure_default(&Silent)?;
        let initramfs = kernel.initramfs(&binaries::directory().join("forkd-agent"), &Silent)?;
        Ok(World {
            library: library.into(),
            kernel: kernel.vmlinux(),
            initramfs,
            image: ImageStore::new(library).find(image)?,
            directory: tempfile::tempdir_in("/var/tmp")?,
        })
    }

    pub fn image(&self) -> &Image {
        &self.image
    }

    /// A new directory for the files of one VM.
    pub fn directory(&self, name: &str) -> Result<PathBuf, Failure> {
        let path = self.directory.path().join(name);
        std::fs::create_dir(&path)?;
        Ok(path)
    }

    /// Boots the image, up to its agent's first answer.
    pub async fn boot(&self, name: &str, memory_bytes: u64) -> Result<BootedVm, Failure> {
        let plan = Plan {
            program: binaries::directory().join("forkd-vmm"),
            kernel: self.kernel.clone(),
            initramfs: self.initramfs.clone(),
            disk: DiskPlan { base: self.image.base(), layers: Vec::new(), top: None, bytes: DISK },
            vcpus: 1,
            memory_bytes,
            command_line: command_line(is_emulated()),
            network: None,
            cgroups: None,
            directory: self.directory(name)?,
            limit: LIMIT,
        };
        Ok(boot(&plan).await?)
    }

    /// An engine as the daemon has it, without networks.
    pub async fn engine(&self) -> Result<Engine, Failure> {
        let settings = tiny::settings(&self.directory("engine")?);
        let (engine, _) =
            Engine::start(Settings { images: ImageStore::new(&self.library), ..settings }).await?;
        Ok(engine)
    }

    /// A snapshot of the image that has run some Python.
    pub fn new_snapshot(&self, tag: &str, memory_mib: u64, python: &str) -> Result<NewSnapshot, Failure> {
        let library = Library {
            images: ImageStore::new(&self.library),
            kernels: KernelStore::new(&self.library),
            agent: binaries::directory().join("forkd-agent"),
            emulated: is_emulated(),
        };
        let recipe = Recipe {
            tag: tag.parse()?,
            image: self.image.id().to_string(),
            kernel: None,
            vcpus: None,
            memory_mib: Some(memory_mib),
            disk_mib: None,
            cpu: CpuModel::Host,
            env: BTreeMap::new(),
            start: None,
            ready: None,
            run: Vec::new(),
            warm_up: vec![WarmUp::new("python", python.into())],
            account: None,
            host_certs: false,
            network: false,
        };
        Ok(library.prepare(recipe, &Silent)?.new)
    }

    /// The same up to ready, with the image's configuration and, if asked for, its entrypoint.
    pub async fn bring_up(
        &self,
        name: &str,
        memory_bytes: u64,
        with_entrypoint: bool,
    ) -> Result<BootedVm, Failure> {
        let vm = self.boot(name, memory_bytes).await?;
        let metadata = &self.image.metadata;
        let command = [metadata.config.entrypoint.clone(), metadata.config.cmd.clone()].concat();
        let config = ImageConfig { start: with_entrypoint.then_some(command), ..ImageConfig::of(metadata) };
        bring_up(&vm.agent, &config, name, LIMIT).await?;
        Ok(vm)
    }
}
