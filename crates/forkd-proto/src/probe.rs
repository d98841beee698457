//! What `forkd-vmm probe` prints: one JSON object, a [`ProbeReport`].

use serde::{Deserialize, Serialize};

/// The host as seen by a process that tried to run guest code on it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProbeReport {
    /// What became of the tiny guest.
    pub kvm: KvmFinding,
    /// The rate of the host's time stamp counter, measured against its monotonic clock.
    pub tsc_khz: u64,
}

/// Whether /dev/kvm can run a stock Linux kernel, found by running what such a kernel needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum KvmFinding {
    /// There is no device node.
    NoDevice,
    /// There is one, and this process may not open it.
    NoPermission,
    /// The device is there but does not do what KVM does.
    Broken {
        /// The call that failed, and how.
        reason: String,
    },
    /// Guests run, but through an instruction emulator (nested PVM): too little of the instruction set, too slowly.
    Emulated {
        /// The instruction that failed or the slowdown that was measured.
        reason: String,
        /// How many times slower than the host the guest's loop ran; absent when it never got there.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        slowdown: Option<f64>,
    },
    /// Everything ran at the host's own speed.
    Good {
        /// How many times slower than the host the guest's loop ran: about 1.
        slowdown: f64,
        /// How many VMs were alive at once.
        vms: u32,
    },
}

impl KvmFinding {
    /// The name of the state, as in the JSON.
    pub fn state(&self) -> &'static str {
        match self {
            KvmFinding::NoDevice => "no-device",
            KvmFinding::NoPermission => "no-permission",
            KvmFinding::Broken { .. } => "broken",
            KvmFinding::Emulated { .. } => "emulated",
            KvmFinding::Good { .. } => "good",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_names_match_the_json() {
        let findings = [
            KvmFinding::NoDevice,
            KvmFinding::NoPermission,
            KvmFinding::Broken { reason: "x".into() },
            KvmFinding::Emulated { reason: "x".into(), slowdown: None },
            KvmFinding::Good { slowdown: 1.0, vms: 1 },
        ];
        for finding in findings {
            let json = serde_json::to_value(&finding).unwrap();
            assert_eq!(json["state"], finding.state());
            assert_eq!(serde_json::from_value::<KvmFinding>(json).unwrap(), finding);
        }
    }
}
