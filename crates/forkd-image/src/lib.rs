//! From what distributions and container builders ship to the files that a VM is started from.
//!
//! | module | what |
//! |---|---|
//! | [`kernel`], [`modules`], [`initramfs`] | a kernel's parts |
//! | [`archive`] | layers of images, unpacked with suspicion |
//! | [`images`] | images as ext4 file systems, by digest and by name |

pub mod archive;
pub mod digest;
mod files;
pub mod images;
pub mod initramfs;
pub mod kernel;
pub mod modules;
pub mod progress;

pub use files::FileError;
pub use progress::{Progress, Silent};
