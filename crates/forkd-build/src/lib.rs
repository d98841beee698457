//! Builds of images: who carries out the steps of a Dockerfile.
//!
//! ```text
//!   dockerfile::build ──▶ runner ── one guest a step ──▶ Guests ── here: forkd-vmm, or somewhere else
//!                           │                                      (the command line has guests in the machine)
//!                           │ files: through the agent of the guest, never by mounting its disk
//!                           ▼
//!        cache: base image ◀── layer ◀── layer ◀── layer ──▶ flatten ──▶ image
//! ```
//!
//! Nothing on the host reads or writes a file system that a guest has written. Layers are blocks; what they mean is known in
//! guests only. The requester cancels a build through its progress; no incomplete files are kept.

mod archive;
mod build;
mod context;
mod flatten;
mod guests;
mod here;
mod network;
mod output;
mod runner;
mod wait;

pub use build::{Build, BuildImageError, build_image};
pub use context::{CONTEXT_LIMITS, UnpackError, UnpackedContext};
pub use flatten::{FlattenError, flatten};
pub use guests::{FindGuests, Guests, GuestsError, RunningGuest};
pub use here::{BuildVm, Machinery, MachineryOptions};
pub use network::GuestNetwork;
pub use runner::RunError;
pub use wait::{Interrupted, Wait};

use std::time::Duration;

/// How long a guest may take to boot and to end, also in an emulator.
pub const LIMIT: Duration = Duration::from_secs(300);
