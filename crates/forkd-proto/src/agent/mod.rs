//! Messages between the host and the agent in a guest, beside those of the envd protocol: JSON over HTTP, under `/forkd/`.
//!
//! An agent lives as long as the snapshot that it is in, so hosts of many versions talk to it, and it to them. A field that is
//! unknown is passed over; one that is new must be optional; what changes meaning gets a new version. The messages of each
//! generation are kept as files under `protocol` and must be understood for ever.

pub mod account;
pub mod identity;
pub mod startup;

use std::net::{IpAddr, Ipv6Addr};

use serde::{Deserialize, Serialize};

/// The version of these messages.
pub const VERSION: u32 = 1;

/// The oldest that is understood: what agents speak whose snapshots do not say.
pub const OLDEST_VERSION: u32 = 1;

/// The vsock port at which the agent connects its caller to a port or a socket of the guest.
pub const DIAL_PORT: u32 = 1;

/// The vsock port at which the agent takes its identity, in agents that do: see [`identity`].
pub const IDENTITY_PORT: u32 = 2;

/// Looked at before the rest, since another version's fields may be others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Header {
    pub version: u32,
}

/// What the host gives a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// `eth0` without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    pub address: IpAddr,
    pub prefix: u8,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    #[serde(default)]
    pub dns: Vec<IpAddr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// Beside the address above. Agents that do not know it go without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Ipv6Network>,
}

/// A second address of the same interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ipv6Network {
    pub address: Ipv6Addr,
    pub prefix: u8,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<Ipv6Addr>,
}
