//! The status register.
//!
//! ```text
//!   0 ─▶ ACKNOWLEDGE ─▶ DRIVER ─▶ FEATURES_OK ─▶ DRIVER_OK
//!   ▲    seen it        can drive  features       queues are used
//!   │                   it         are settled         │
//!   └── written as 0, ◀── any state ◀──────────────────┘
//!       a reset            + FAILED          set by the driver, which has given up
//!                          + NEEDS_RESET     set by the device, after a fault of the driver
//! ```
//!
//! Bits are only ever added, in this order, until a reset.

use virtio_bindings::virtio_config::{
    VIRTIO_CONFIG_S_ACKNOWLEDGE as ACKNOWLEDGE, VIRTIO_CONFIG_S_DRIVER as DRIVER,
    VIRTIO_CONFIG_S_DRIVER_OK as DRIVER_OK, VIRTIO_CONFIG_S_FAILED as FAILED,
    VIRTIO_CONFIG_S_FEATURES_OK as FEATURES_OK, VIRTIO_CONFIG_S_NEEDS_RESET as NEEDS_RESET,
};

/// The states without failures, in their order.
const PROGRESS: [u32; 5] = [
    0,
    ACKNOWLEDGE,
    ACKNOWLEDGE | DRIVER,
    ACKNOWLEDGE | DRIVER | FEATURES_OK,
    ACKNOWLEDGE | DRIVER | FEATURES_OK | DRIVER_OK,
];

/// A value that the register can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Status(u32);

impl Status {
    /// Takes a value from saved state, if it is one that the register can have.
    pub fn from_bits(bits: u32) -> Option<Status> {
        PROGRESS.contains(&(bits & !FAILED & !NEEDS_RESET)).then_some(Status(bits))
    }

    pub fn bits(self) -> u32 {
        self.0
    }

    /// The status after the driver wrote `written`, which is not 0. None if it may not write that now.
    pub fn after(self, written: u32) -> Option<Status> {
        // A driver that read the register before writes this bit back. It is the device's.
        let own = self.0 & NEEDS_RESET;
        let next = Status::from_bits((written & !NEEDS_RESET) | own)?;
        (next.0 & self.0 == self.0).then_some(next)
    }

    pub fn set_needs_reset(&mut self) {
        self.0 |= NEEDS_RESET;
    }

    /// Takes back what a driver may not have: the features are not good, or it tried to skip them.
    pub fn without_features_ok(self) -> Status {
        Status(self.0 & !(FEATURES_OK | DRIVER_OK))
    }

    /// A driver is there, and may choose features.
    pub fn chooses_features(self) -> bool {
        self.0 & DRIVER != 0 && !self.has_features_ok() && !self.has_failed()
    }

    /// Queues may be set up.
    pub fn sets_up_queues(self) -> bool {
        self.has_features_ok() && !self.has_driver_ok() && !self.has_failed()
    }

    pub fn has_driver(self) -> bool {
        self.0 & DRIVER != 0
    }

    pub fn has_features_ok(self) -> bool {
        self.0 & FEATURES_OK != 0
    }

    pub fn has_driver_ok(self) -> bool {
        self.0 & DRIVER_OK != 0
    }

    pub fn needs_reset(self) -> bool {
        self.0 & NEEDS_RESET != 0
    }

    pub fn has_failed(self) -> bool {
        self.0 & (FAILED | NEEDS_RESET) != 0
    }

    /// Queues are in use.
    pub fn is_running(self) -> bool {
        self.has_driver_ok() && !self.has_failed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_only_grows_and_in_order() {
        let mut status = Status::default();
        for next in [1, 3, 11, 15] {
            assert_eq!(status.after(next | 16), None);
            status = status.after(next).unwrap();
            assert_eq!(status.bits(), next);
        }
        assert!(status.is_running());
        for wrong in [1, 3, 11, 7, 14, 31, 0x10f] {
            assert_eq!(status.after(wrong), None, "{wrong}");
        }
        let failed = status.after(0x8f).unwrap();
        assert!(!failed.is_running());
        assert_eq!(failed.after(15), None);
    }

    #[test]
    fn only_the_device_sets_and_keeps_needs_reset() {
        let status = Status::default().after(0x41).unwrap();
        assert_eq!(status.bits(), 1);
        let mut status = status.after(15).unwrap();
        status.set_needs_reset();
        assert_eq!(status.after(15).unwrap().bits(), 15 | 64);
    }
}
