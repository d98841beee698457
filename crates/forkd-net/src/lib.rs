//! A sandbox's network on the host: a namespace with a tap for the VM and a veth to the outside, and rules that decide what
//! goes through. Everything is made over netlink; nothing is started.
//!
//! ```text
//!   guest ── tap ─┐ namespace of the sandbox                        ┌ host
//!                 ├─ guard: no spoofing      ┌─ its resolver        ├─ not to the host, not to other sandboxes
//!                 ├─ egress: the policy      └─ asked by the guest  ├─ masquerade
//!                 └─ masquerade ── veth ────────────────────────────┴──▶ outside
//! ```
//!
//! - [`plan`]: names and addresses, all of them functions of a slot
//! - [`Host`]: what is prepared once: the host's table, and forwarding
//! - [`Lease`]: one sandbox's network, from making to release
//! - [`Pool`]: networks that wait for sandboxes, and those that are found again; `reset` makes used ones as good as new
//! - [`Policy`]: what it may reach, and [`Resolver`]: the names that it may know

mod cidr;
mod conntrack;
mod drops;
mod error;
mod host;
mod lease;
mod log_socket;
mod name;
mod namespace;
mod netlink;
mod nft;
pub mod plan;
mod policy;
mod pool;
mod reset;
mod resolver;
mod rules;
mod sysctl;
mod tap;
#[cfg(test)]
mod tests;
mod transient;

pub use cidr::{Cidr, CidrError};
pub use drops::{Dropped, Notice, Reason};
pub use error::NetError;
pub use host::{Host, Prepared, Settings};
pub use lease::{Access, Counters, Lease, Tenancy};
pub use name::{NameError, NamePattern};
pub use nft::Counter;
pub use plan::Slot;
pub use policy::{Egress, EgressEntry, Exceptions, Policy, PolicyError, Ports, Target};
pub use pool::{Hold, Network, Others, Pool, PoolSettings, PoolStats, Recovered};
pub use resolver::{Resolver, Upstream};
pub use transient::TransientLease;
