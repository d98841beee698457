//! Networks of guests that end with the process that started them: those of builds.
//!
//! They have slots of their own, beyond those of sandboxes. A slot is held by a lock that the kernel takes back when its holder
//! ends, however that happens; the next owner of the lock removes the rest.

use std::fs::File;
use std::ops::Deref;
use std::sync::Arc;

use crate::error::{NetError, blocking};
use crate::host::Host;
use crate::lease::Lease;
use crate::plan::Slot;
use crate::policy::Policy;

/// A lease that is released with this value.
#[derive(Debug)]
pub struct TransientLease {
    lease: Lease,
    /// Let go after the release.
    _lock: File,
}

impl TransientLease {
    pub async fn take(host: &Arc<Host>, policy: Policy) -> Result<TransientLease, NetError> {
        let host = Arc::clone(host);
        blocking(move || take(&host, policy)).await
    }
}

fn take(host: &Arc<Host>, policy: Policy) -> Result<TransientLease, NetError> {
    for slot in Slot::transient() {
        let lock = host.lock(&slot.to_string()).map_err(NetError::when("lock a network"))?;
        let Some(lock) = lock else { continue };
        host.clear(slot)?;
        let lease = Lease::make_now(host, slot, policy)?;
        return Ok(TransientLease { lease, _lock: lock });
    }
    Err(NetError::Full(Slot::transient().count()))
}

impl Deref for TransientLease {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}

impl Drop for TransientLease {
    fn drop(&mut self) {
        if let Err(error) = self.lease.release_now() {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "cannot remove a network; it is removed when its slot is next used"
            );
        }
    }
}
