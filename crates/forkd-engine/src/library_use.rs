//! What the code that makes and removes images asks the engine.

use std::path::{Path, PathBuf};

use forkd_image::digest::Digest;

use crate::engine::Engine;
use crate::error::EngineError;
use crate::limits::admission::AdmissionRequest;
use crate::limits::owner::{Claim, Holding, Owner};

impl Engine {
    /// `forkd-vmm`.
    pub fn program(&self) -> &Path {
        &self.shared.program
    }

    /// Directory for the sockets of guests that are not sandboxes. Removed when the next daemon starts.
    pub fn temporary(&self) -> PathBuf {
        self.shared.paths.temporary()
    }

    /// Whether this host and the owner's limits have room for a guest that is not a sandbox. It counts as one until the claim
    /// is dropped.
    pub async fn admit_guest(
        &self,
        owner: &Owner,
        vcpus: u8,
        memory_bytes: u64,
    ) -> Result<Claim, EngineError> {
        let wanted = Holding { sandboxes: 1, memory_bytes, vcpus: vcpus.into(), ..Holding::default() };
        let claim = self.shared.claim(owner, wanted).await?;
        self.shared.admit(AdmissionRequest { sandboxes: 0, memory_bytes }, None).await?;
        Ok(claim)
    }

    /// What has an image below its disk, as words.
    pub fn users_of(&self, image: Digest) -> Vec<String> {
        let snapshots = self.snapshots().into_iter().filter(|it| it.record.shape.image == Some(image));
        let sandboxes = self.sandboxes().into_iter().filter(|it| it.end.is_none());
        let sandboxes = sandboxes.filter(|it| it.record.shape.image == Some(image));
        let snapshots = snapshots.map(|it| format!("snapshot {}", it.record.tag));
        snapshots.chain(sandboxes.map(|it| format!("sandbox {}", it.record.id))).collect()
    }
}
