//! The network of a build's guest: to the internet and nowhere else, with names, for as long as the guest lives.

use std::fmt::Write;
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
        let resolver = lease.resolver(Upstream::default()).await?;
        Ok((GuestNetwork { _resolver: resolver, lease }, prepared))
    }

    /// For the VM process.
    pub fn plan(&self) -> Option<NetworkPlan> {
        let tap = self.lease.tap()?.try_clone_to_owned().ok()?;
        Some(NetworkPlan { tap: Arc::new(tap), device: Net { mac: plan::GUEST_MAC, mtu: None } })
    }

    /// For the guest: words of its kernel's command line.
    pub fn words() -> String {
        let network = plan::guest_network();
        let mut words = String::new();
        let ipv6 = network.ipv6.map(|six| (six.address.into(), six.prefix, six.gateway.map(Into::into)));
        let four = (network.address, network.prefix, network.gateway);
        for (address, prefix, gateway) in [Some(four), ipv6].into_iter().flatten() {
            if let Some(gateway) = gateway {
                // Writing to a string does not fail.
                let _ = write!(words, " forkd.network={address}/{prefix},{gateway}");
            }
        }
        for server in network.dns {
            let _ = write!(words, " forkd.dns={server}");
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guest_is_told_all_of_it() {
        assert_eq!(
            GuestNetwork::words(),
            " forkd.network=198.19.255.2/30,198.19.255.1 \
             forkd.network=fd66:6f72:6b64:ffff::2/126,fd66:6f72:6b64:ffff::1 forkd.dns=198.19.255.1"
        );
    }
}
