//! What is saved of the vsock device: who the guest is, and nothing of its connections.

use serde::{Deserialize, Serialize};

use super::muxer::HOST_PORTS;

/// The context id of a guest: 3 to 2^32 - 2. The ids below mean the hypervisor and the host, the last one any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuestCid(u32);

impl GuestCid {
    pub fn get(self) -> u32 {
        self.0
    }
}

impl TryFrom<u64> for GuestCid {
    type Error = VsockError;

    fn try_from(cid: u64) -> Result<GuestCid, VsockError> {
        match u32::try_from(cid) {
            Ok(cid @ 3..=0xffff_fffe) => Ok(GuestCid(cid)),
            _ => Err(VsockError::Cid(cid)),
        }
    }
}

/// The device without its sockets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VsockState {
    pub cid: u64,
    /// Ports go on from here, so that a packet which the guest has left over never meets a new connection.
    pub next_port: u32,
    /// A driver has started the device.
    pub active: bool,
}

impl VsockState {
    /// Saved state comes from a file that anyone may have written.
    pub(super) fn check(&self) -> Result<(), VsockError> {
        GuestCid::try_from(self.cid)?;
        if !HOST_PORTS.contains(&self.next_port) {
            return Err(VsockError::Port(self.next_port));
        }
        Ok(())
    }
}

/// The vsock device cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum VsockError {
    #[error("the context id {0} is not that of a guest (3 to 4294967294)")]
    Cid(u64),
    #[error("the next port {0} is not one of the host's side")]
    Port(u32),
    #[error("cannot prepare the listening socket")]
    Listener(#[source] std::io::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_guests_have_these_ids() {
        for good in [3, 4, 0xffff_fffe] {
            assert_eq!(u64::from(GuestCid::try_from(good).unwrap().get()), good);
        }
        for bad in [0, 1, 2, 0xffff_ffff, 0x1_0000_0003, u64::MAX] {
            assert!(GuestCid::try_from(bad).is_err(), "{bad}");
        }
    }
}
