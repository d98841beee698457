//! What a host's CPU and KVM can give a guest, and whether that is enough for one from elsewhere.

use std::fmt;

use serde::{Deserialize, Serialize};

/// KVM takes a rate that differs by so much for the same, in millionths.
const TSC_TOLERANCE: u64 = 250;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostCpu {
    /// As CPUID has it.
    pub vendor: Option<String>,
    /// By the names that manifests have.
    pub features: Vec<String>,
    pub tsc_khz: u32,
    /// Whether a guest can be given another rate.
    pub scales_tsc: bool,
    /// The version of saved VMs that this host's VM processes take.
    pub state_version: u32,
}

/// What a guest was shown of the CPU that it ran on.
#[derive(Debug, Clone, Copy)]
pub struct GuestCpu<'a> {
    pub vendor: Option<&'a str>,
    pub features: &'a [String],
    pub tsc_khz: Option<u32>,
    /// The version of its saved state.
    pub state_version: u32,
}

/// What a host lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lacking {
    Vendor { guest: String, host: String },
    Features(Vec<String>),
    TscRate { guest: u32, host: u32 },
    StateVersion { guest: u32, host: u32 },
}

impl fmt::Display for Lacking {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lacking::Vendor { guest, host } => {
                write!(formatter, "it ran on a CPU of {guest}, this host has one of {host}")
            }
            Lacking::Features(missing) => {
                write!(
                    formatter,
                    "it needs CPU features that this host does not have: {}",
                    missing.join(", ")
                )
            }
            Lacking::StateVersion { guest, host } => write!(
                formatter,
                "the state of its CPUs and devices has version {guest}, this forkd takes version {host}; use the forkd that made it, or one of the same release"
            ),
            Lacking::TscRate { guest, host } => write!(
                formatter,
                "its time stamp counter runs at {guest} kHz, this host's at {host} kHz, and KVM cannot change that here"
            ),
        }
    }
}

impl HostCpu {
    /// Whether a guest can go on here. What the guest's snapshot does not say is not compared.
    pub fn check(&self, guest: GuestCpu<'_>) -> Result<(), Lacking> {
        if guest.state_version != self.state_version {
            return Err(Lacking::StateVersion { guest: guest.state_version, host: self.state_version });
        }
        if let (Some(guest), Some(host)) = (guest.vendor, self.vendor.as_deref())
            && guest != host
        {
            return Err(Lacking::Vendor { guest: guest.into(), host: host.into() });
        }
        let missing: Vec<_> =
            guest.features.iter().filter(|&name| !self.features.contains(name)).cloned().collect();
        if !missing.is_empty() {
            return Err(Lacking::Features(missing));
        }
        match guest.tsc_khz {
            Some(guest) if !self.scales_tsc && !is_same_rate(guest, self.tsc_khz) => {
                Err(Lacking::TscRate { guest, host: self.tsc_khz })
            }
            _ => Ok(()),
        }
    }
}

fn is_same_rate(one: u32, other: u32) -> bool {
    u64::from(one.abs_diff(other)) * 1_000_000 <= u64::from(other) * TSC_TOLERANCE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> HostCpu {
        HostCpu {
            vendor: Some("AuthenticAMD".into()),
            features: vec!["avx".into(), "avx2".into()],
            tsc_khz: 2_400_000,
            scales_tsc: false,
            state_version: 1,
        }
    }

    #[test]
    fn what_is_lacking_is_named() {
        let features = vec!["avx2".to_owned(), "avx512f".into(), "sha_ni".into()];
        let guest = GuestCpu {
            vendor: Some("AuthenticAMD"),
            features: &features[..1],
            tsc_khz: Some(2_400_100),
            state_version: 1,
        };
        assert_eq!(host().check(guest), Ok(()));
        let lacking = host().check(GuestCpu { features: &features, ..guest }).unwrap_err();
        assert_eq!(
            lacking.to_string(),
            "it needs CPU features that this host does not have: avx512f, sha_ni"
        );
        let lacking = host().check(GuestCpu { vendor: Some("GenuineIntel"), ..guest }).unwrap_err();
        assert_eq!(lacking.to_string(), "it ran on a CPU of GenuineIntel, this host has one of AuthenticAMD");
        let faster = GuestCpu { tsc_khz: Some(3_000_000), ..guest };
        assert!(matches!(host().check(faster), Err(Lacking::TscRate { guest: 3_000_000, .. })));
        assert_eq!(HostCpu { scales_tsc: true, ..host() }.check(faster), Ok(()));
        let newer = host().check(GuestCpu { state_version: 2, ..guest }).unwrap_err().to_string();
        assert!(newer.contains("has version 2, this forkd takes version 1"), "{newer}");
        let unsaid = GuestCpu { vendor: None, features: &[], tsc_khz: None, state_version: 1 };
        assert_eq!(host().check(unsaid), Ok(()));
    }
}
