//! From what distributions and container builders ship to the files that a VM is started from.
//!
//! | module | what |
//! |---|---|
//! | [`kernel`], [`modules`], [`initramfs`] | a kernel's parts |
//! | [`archive`] | layers of images, unpacked with suspicion |

pub mod archive;
pub mod initramfs;
pub mod kernel;
pub mod modules;
pub mod progress;

pub use progress::{Progress, Silent};
