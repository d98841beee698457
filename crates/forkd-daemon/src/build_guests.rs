//! Where the guests of builds run: beside the sandboxes of the engine, or wherever the program that starts the daemon has
//! others.

use std::fmt;

use forkd_build::{Guests, GuestsError, Machinery, MachineryOptions};
use forkd_engine::Engine;
use forkd_engine::library::Library;
use forkd_image::Progress;

/// What a guest of a build is to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuestShape {
    pub vcpus: u8,
    pub memory_bytes: u64,
    pub network: bool,
}

/// Finds guests for a build when its first step needs one.
pub trait BuildGuests: fmt::Debug + Send + Sync {
    /// Blocks: the first time, a kernel may have to be downloaded.
    fn find(&self, shape: GuestShape, progress: &dyn Progress) -> Result<Box<dyn Guests>, GuestsError>;

    /// Whether their memory is part of what the engine counts.
    fn are_counted(&self) -> bool {
        true
    }
}

/// Guests as the engine's sandboxes are: on this host, within its cgroups.
#[derive(Debug)]
pub struct EngineGuests {
    pub engine: Engine,
    pub library: Library,
}

impl BuildGuests for EngineGuests {
    fn find(&self, shape: GuestShape, progress: &dyn Progress) -> Result<Box<dyn Guests>, GuestsError> {
        let options = MachineryOptions {
            kernels: self.library.kernels.clone(),
            program: self.engine.program().into(),
            agent: self.library.agent.clone(),
            directory: self.engine.temporary(),
            vcpus: shape.vcpus,
            memory_bytes: shape.memory_bytes,
            network: shape.network,
            cgroups: self.engine.cgroups(),
        };
        Ok(Box::new(Machinery::find(&options, progress)?))
    }
}
