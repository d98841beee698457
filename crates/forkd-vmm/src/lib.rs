//! One process, one VM. The binary of the same name is all of this; a test has one of its own, in which a guest can take the
//! process over.

mod boot;
pub mod floor;
pub mod host_cpu;
pub mod probe;
mod process;
mod snapshot;
mod vm;

pub use process::{ControlError, Options, run};
#[cfg(feature = "attacks")]
pub use vm::bus::{Attack, Say};
