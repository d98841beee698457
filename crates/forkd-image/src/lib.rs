//! From what distributions and container builders ship to the files that a VM is started from.
//!
//! | module | what |
//! |---|---|
//! | [`kernel`], [`modules`], [`initramfs`] | a kernel's parts |
//! | [`kernels`] | kernels with their modules, kept by version |
//! | [`archive`] | layers of images, unpacked with suspicion, by `forkd-source` |
//! | [`images`] | images as ext4 file systems, by digest and by name |
//! | [`registry`], [`import`], [`debian`] | where they come from |
//! | [`dockerfile`], [`recipe`], [`host_environment`] | what a build is made from |
//! | [`builds`] | steps of builds, kept by key |

pub mod builds;
pub mod debian;
pub mod dockerfile;
mod files;
pub mod host_environment;
pub mod images;
pub mod import;
pub mod initramfs;
pub mod kernel;
pub mod kernels;
mod layout;
pub mod modules;
mod oci;
pub mod registry;

pub use files::FileError;
pub use forkd_source::{archive, chain, digest, progress, recipe};
pub use layout::LayoutError;
pub use oci::ConfigError;
pub use progress::{Progress, Silent};
