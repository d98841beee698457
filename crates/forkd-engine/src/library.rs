//! The library: kernels and images, and what a snapshot of an image is booted with.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use forkd_image::images::{Image, ImageError, ImageStore};
use forkd_image::kernels::{KernelStore, KernelStoreError};
use forkd_image::progress::Progress;
use forkd_proto::control::{Devices, Disk, Vsock};
use forkd_store::Tag;

use crate::boot::{CID, command_line};
use crate::bring_up::{ImageConfig, ReadyProbe};
use crate::engine::NewSnapshot;
use crate::record::Shape;
use crate::warm_up::WarmUp;

const VCPUS: u8 = 1;
const MEMORY_MIB: u64 = 512;
const DISK_MIB: u64 = 4096;
/// How long a guest may take until it is ready, also in an emulator.
const LIMIT: Duration = Duration::from_secs(300);

/// Where kernels and images are, and what is booted with them.
#[derive(Debug, Clone)]
pub struct Library {
    pub images: ImageStore,
    pub kernels: KernelStore,
    /// The guest's first program.
    pub agent: PathBuf,
    /// Whether guests run in an emulator.
    pub emulated: bool,
}

/// A snapshot as it is asked for: names, no paths. What is not said has a default.
#[derive(Debug, Clone)]
pub struct Recipe {
    pub tag: Tag,
    /// A name or an id.
    pub image: String,
    pub kernel: Option<String>,
    pub vcpus: Option<u8>,
    pub memory_mib: Option<u64>,
    pub disk_mib: Option<u64>,
    /// Beside the image's own.
    pub env: BTreeMap<String, String>,
    pub start: Option<Vec<String>>,
    pub ready: Option<ReadyProbe>,
    pub warm_up: Vec<WarmUp>,
}

#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    #[error(transparent)]
    Image(#[from] ImageError),
    #[error(transparent)]
    Kernel(#[from] KernelStoreError),
}

impl Library {
    /// Finds what a recipe names, and makes what is missing to boot it: the first time, that takes a download. Blocks.
    pub fn prepare(&self, recipe: Recipe, progress: &dyn Progress) -> Result<NewSnapshot, LibraryError> {
        let image = self.images.find(&recipe.image)?;
        let kernel = match &recipe.kernel {
            Some(name) => self.kernels.find(name)?,
            None => self.kernels.ensure_default(progress)?,
        };
        let initramfs = kernel.initramfs(&self.agent, progress)?;
        Ok(NewSnapshot {
            kernel: kernel.vmlinux(),
            initramfs: Some(initramfs),
            command_line: command_line(self.emulated),
            shape: shape(&recipe, &image),
            limit: LIMIT + recipe.ready.as_ref().map_or(Duration::ZERO, |ready| ready.timeout),
            config: config(recipe.env, recipe.start, recipe.ready, &image),
            warm_up: recipe.warm_up,
            tag: recipe.tag,
        })
    }
}

fn shape(recipe: &Recipe, image: &Image) -> Shape {
    let limit_bytes = recipe.disk_mib.unwrap_or(DISK_MIB) << 20;
    let disk = Disk { bytes: limit_bytes.max(image.metadata.size), limit_bytes, base: true };
    Shape {
        vcpus: recipe.vcpus.unwrap_or(VCPUS),
        memory_bytes: recipe.memory_mib.unwrap_or(MEMORY_MIB) << 20,
        devices: Devices {
            console: true,
            disk: Some(disk),
            vsock: Some(Vsock { cid: CID }),
            entropy: true,
            ..Devices::default()
        },
        image: Some(image.id()),
    }
}

fn config(
    env: BTreeMap<String, String>,
    start: Option<Vec<String>>,
    ready: Option<ReadyProbe>,
    image: &Image,
) -> ImageConfig {
    let Image { metadata, .. } = image;
    ImageConfig {
        env: metadata.config.env.clone().into_iter().chain(env).collect(),
        user: Some(metadata.default_user.clone()),
        workdir: metadata.config.workdir.clone(),
        start,
        ready,
    }
}

#[cfg(test)]
mod tests {
    use forkd_image::Silent;
    use forkd_image::digest::Digest;
    use forkd_image::images::{Config, Metadata, Source};

    use super::*;

    fn recipe() -> Recipe {
        Recipe {
            tag: "t".parse().unwrap(),
            image: "none".into(),
            kernel: None,
            vcpus: None,
            memory_mib: None,
            disk_mib: None,
            env: BTreeMap::from([("A".into(), "recipe".into())]),
            start: None,
            ready: None,
            warm_up: Vec::new(),
        }
    }

    fn image(size: u64) -> Image {
        let env = BTreeMap::from([("A".into(), "image".into()), ("B".into(), "image".into())]);
        let metadata = Metadata {
            format: 1,
            id: Digest::of(b"image"),
            source: Source::Archive { file: "x".into() },
            created: 0,
            layers: vec![],
            config: Config { env, ..Config::default() },
            default_user: "user".into(),
            size,
            content: 0,
            inodes: 0,
            digest: Digest::of(b"disk"),
        };
        Image { names: vec![], disk: 0, path: "/x".into(), metadata }
    }

    #[test]
    fn what_is_not_said_has_a_default_and_a_disk_holds_its_image() {
        let small = shape(&recipe(), &image(1 << 20));
        assert_eq!((small.vcpus, small.memory_bytes), (VCPUS, MEMORY_MIB << 20));
        let disk = small.devices.disk.unwrap();
        assert_eq!((disk.bytes, disk.limit_bytes), (DISK_MIB << 20, DISK_MIB << 20));
        let large = shape(&Recipe { disk_mib: Some(1), ..recipe() }, &image(8 << 20)).devices.disk.unwrap();
        assert_eq!((large.bytes, large.limit_bytes), (8 << 20, 1 << 20));
    }

    #[test]
    fn a_recipe_s_environment_outranks_the_image_s() {
        let config = config(recipe().env, None, None, &image(0));
        assert_eq!((config.env["A"].as_str(), config.env["B"].as_str()), ("recipe", "image"));
    }

    #[test]
    fn an_image_that_is_not_there_is_named() {
        let empty = tempfile::tempdir().unwrap();
        let library = Library {
            images: ImageStore::new(empty.path()),
            kernels: KernelStore::new(empty.path()),
            agent: empty.path().join("agent"),
            emulated: false,
        };
        let error = library.prepare(recipe(), &Silent).unwrap_err();
        assert!(matches!(error, LibraryError::Image(ImageError::Unknown(name)) if name == "none"));
    }
}
