//! Where guests of a build run: behind traits, because only some callers have a machine.

use std::io;

use forkd_engine::agent::{Agent, AgentError};
use forkd_engine::boot::{BootError, DiskPlan};
use forkd_engine::shutdown::EndError;
use forkd_image::Progress;
use forkd_net::NetError;

use crate::wait::{Interrupted, Wait};

#[derive(Debug, thiserror::Error)]
pub enum GuestsError {
    #[error(transparent)]
    Kernel(#[from] forkd_image::kernels::KernelStoreError),
    #[error("the step's guest failed")]
    Boot(#[from] BootError),
    #[error("no network for the guest; --network none builds without one")]
    Network(#[from] NetError),
    #[error(transparent)]
    End(#[from] EndError),
    #[error("cannot ask the guest to shut down")]
    Ask(#[source] AgentError),
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
    /// What only this kind of guests can fail with.
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),
    #[error("cannot {0}")]
    Io(&'static str, #[source] io::Error),
}

/// Makes guests.
pub trait Guests {
    /// Boots a guest on a disk. What it writes will be in a new file, the disk's top.
    fn start(&self, wait: &Wait<'_>, disk: &DiskPlan) -> Result<Box<dyn RunningGuest>, GuestsError>;

    /// Forgets what was read of files that were replaced.
    fn forget_files(&self) {}
}

/// A guest whose agent answers. Unless it is finished, nothing is left of it.
pub trait RunningGuest {
    fn agent(&self) -> &Agent;

    /// What the guest's console says, as far as it is here.
    fn console(&self) -> Option<String> {
        None
    }

    fn has_network(&self) -> bool {
        false
    }

    /// Ends the guest in order. Its top layer is then whole.
    fn finish(self: Box<Self>, wait: &Wait<'_>) -> Result<(), GuestsError>;
}

/// Finds out where guests can run and what they boot from, when the first step needs one.
pub type FindGuests<'a> = dyn Fn(&dyn Progress) -> Result<Box<dyn Guests>, GuestsError> + 'a;
