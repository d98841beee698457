//! What a VM boots from: kernels as ELF images and initial RAM disks.

pub mod initramfs;
pub mod kernel;
pub mod modules;
