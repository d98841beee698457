//! The network of a build's guest: to the internet and nowhere else, with names, for as long as the guest lives.

use std::sync::Arc;

use forkd_engine::boot::NetworkPlan;
use forkd_net::{Host, NetError, Policy, Prepared, Resolver, Settings, TransientLease, Upstream, plan};
use forkd_proto::control::Net;

/// A network that goes with this value.
#[derive(Debug)]
pub struct GuestNetwork {
    // Before the lease: its sockets keep the namespace alive.
    _resolver: Resolver,
    lease: TransientLease,
}

impl GuestNetwork {
    /// Makes a network, in the runtime that its names are answered in. Says what was changed on the host.
    pub async fn make() -> Result<(GuestNetwork, Prepared), NetError> {
        let (host, prepared) = Host::prepare(Settings::default()).await?;
        let lease = TransientLease::take(&host, Policy::default()).await?;
        let resolver = lease.resolver(Upstream::default(), None).await?;
        Ok((GuestNetwork { _resolver: resolver, lease }, prepared))
    }

    /// For the VM process.
    pub fn plan(&self) -> Option<NetworkPlan> {
        let tap = self.lease.tap()?.try_clone_to_owned().ok()?;
        Some(NetworkPlan { tap: Arc::new(tap), device: Net { mac: plan::GUEST_MAC, mtu: None } })
    }
}
