//! A library for the guest that halts.

use std::fs;
use std::path::Path;

use forkd_image::digest::Digest;
use forkd_image::images::{Config, ImageStore, Metadata, Source};
use forkd_image::kernels::{KernelMetadata, KernelSource, KernelStore};

use crate::engine::firecracker::guest;
use crate::engine::process::Failure;

/// A library with one kernel and one image, which are none to a real guest.
pub fn fill(library: &Path) -> Result<(), Failure> {
    let kernel = KernelMetadata {
        id: "tiny".into(),
        version: "0".into(),
        source: KernelSource::Distribution,
        digest: Digest::of(b"kernel"),
        modules: Vec::new(),
        missing: Vec::new(),
        created: 0,
    };
    let directory = library.join("kernels/tiny");
    fs::create_dir_all(&directory)?;
    fs::write(directory.join("vmlinux"), guest::elf(100))?;
    fs::write(directory.join("metadata.json"), serde_json::to_vec(&kernel)?)?;
    KernelStore::new(library).set_default("tiny")?;
    let image = Metadata {
        format: 1,
        id: Digest::of(b"image"),
        source: Source::Archive { file: "none".into() },
        created: 0,
        layers: Vec::new(),
        config: Config::default(),
        default_user: "root".into(),
        size: 1 << 20,
        content: 0,
        inodes: 0,
        digest: Digest::of(b"disk"),
        recipe: None,
    };
    let store = ImageStore::new(library);
    let directory = store.directory().join(image.id.hex());
    fs::create_dir_all(&directory)?;
    fs::write(directory.join("base.ext4"), vec![0; 1 << 20])?;
    fs::write(directory.join("metadata.json"), serde_json::to_vec(&image)?)?;
    Ok(store.name(&"empty".parse()?, image.id)?)
}
