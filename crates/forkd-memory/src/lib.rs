//! Guest RAM: where it is in the guest, and how it is mapped in the process.
//!
//! Guest RAM is private memory of the VM's process. That is what makes fork(2) the fork of a VM: the kernel shares every
//! page with the child until one side writes to it.

mod layout;
mod mapping;
mod mend;
mod pagemap;
mod populated;
mod prefault;
mod ram;

pub use layout::{Layout, LayoutError, Region};
pub use mend::Mender;
pub use pagemap::Pagemap;
pub use ram::{GuestRam, RamError, RamRegion};
