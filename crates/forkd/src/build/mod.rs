//! Builds of images: who carries out the steps of a Dockerfile.
//!
//! ```text
//!   dockerfile::build ──▶ runner ── one guest a step ──▶ guests ── here:    forkd-vmm
//!                           │                               └───── machine: forkd build-guest, over ssh
//!                           │ files: through the agent of the guest, never by mounting its disk
//!                           ▼
//!        cache: base image ◀── layer ◀── layer ◀── layer ──▶ flatten ──▶ image
//! ```
//!
//! Nothing on the host reads or writes a file system that a guest has written. Layers are blocks; what they mean is known in
//! guests only.

mod archive;
mod flatten;
mod guests;
mod here;
mod host_environment;
mod machine;
mod output;
mod runner;
mod sparse;

pub use flatten::{FlattenError, flatten};
pub use guests::{GuestsError, GuestsOptions};
pub use here::Machinery;
pub use machine::GuestRequest;
pub use runner::{GuestRunner, RunError};
pub use sparse::write_sparse;

use std::time::Duration;

/// How long a guest may take to boot and to end, also in an emulator.
pub const LIMIT: Duration = Duration::from_secs(300);

/// Orders between [`machine`] and the guest's keeper there, one a line.
pub const READY: &str = "ready";
pub const END: &str = "end";
