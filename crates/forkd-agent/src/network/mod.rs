//! The guest's network, over rtnetlink: the loopback, and one interface with an address and a
//! default route of each family.
//!
//! All of it blocks, for as long as the kernel takes to change a table.

pub mod connections;
mod message;
mod socket;

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use forkd_proto::agent::Network;

use socket::RouteSocket;

const LOOPBACK: &str = "lo";
const DEFAULT_INTERFACE: &str = "eth0";
/// IFNAMSIZ with its NUL.
const MAX_INTERFACE: usize = 15;

#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    #[error("'{0}' is not the name of an interface")]
    Name(String),
    #[error("there is no interface '{name}': {source}")]
    Interface { name: String, source: io::Error },
    #[error("the prefix {0} is too long for the address")]
    Prefix(u8),
    #[error("'{0}' is not a MAC address")]
    Mac(String),
    #[error("address and gateway are of different families")]
    Families,
    #[error("cannot {what}: {source}")]
    Kernel { what: &'static str, source: io::Error },
}

pub fn loopback_up() -> Result<(), NetworkError> {
    let index = index(LOOPBACK)?;
    let mut socket = open()?;
    change(&mut socket, "bring the loopback up", &message::link(index, None, None))
}

/// Gives the interface what `network` says. Doing it twice is the same as once.
pub fn configure(network: &Network, before: Option<&Network>) -> Result<(), NetworkError> {
    check(network)?;
    let index = index(network.interface.as_deref().unwrap_or(DEFAULT_INTERFACE))?;
    let mac = network.mac.as_deref().map(parse_mac).transpose()?;
    let mut socket = open()?;
    let now = addresses(network);
    for old in before.map(addresses).unwrap_or_default() {
        if !now.iter().any(|new| (new.0, new.1) == (old.0, old.1)) {
            // It may be gone already: a guest changes its own addresses too.
            let _ = socket.request(&message::remove_address(index, old.0, old.1));
        }
    }
    change(&mut socket, "set the link up", &message::link(index, network.mtu, mac))?;
    for (address, prefix, gateway) in now {
        change(&mut socket, "set the address", &message::address(index, address, prefix))?;
        if let Some(gateway) = gateway {
            change(&mut socket, "set the default route", &message::default_route(index, gateway))?;
        }
    }
    Ok(())
}

/// Address, prefix and gateway of each family. A guest whose kernel has no IPv6 goes without.
fn addresses(network: &Network) -> Vec<(IpAddr, u8, Option<IpAddr>)> {
    let mut all = vec![(network.address, network.prefix, network.gateway)];
    if let Some(ipv6) = network.ipv6.as_ref().filter(|_| Path::new("/proc/sys/net/ipv6").exists()) {
        all.push((ipv6.address.into(), ipv6.prefix, ipv6.gateway.map(IpAddr::V6)));
    }
    all
}

/// The text of /etc/resolv.conf.
pub fn resolver_configuration(servers: &[IpAddr]) -> String {
    servers.iter().map(|server| format!("nameserver {server}\n")).collect()
}

fn check(network: &Network) -> Result<(), NetworkError> {
    let longest = if network.address.is_ipv4() { 32 } else { 128 };
    if network.prefix > longest {
        return Err(NetworkError::Prefix(network.prefix));
    }
    if let Some(ipv6) = network.ipv6.as_ref().filter(|ipv6| ipv6.prefix > 128) {
        return Err(NetworkError::Prefix(ipv6.prefix));
    }
    match network.gateway {
        Some(gateway) if gateway.is_ipv4() != network.address.is_ipv4() => Err(NetworkError::Families),
        _ => Ok(()),
    }
}

fn parse_mac(text: &str) -> Result<[u8; 6], NetworkError> {
    let parts: Vec<u8> = text
        .split(':')
        .map(|part| u8::from_str_radix(part, 16).ok().filter(|_| part.len() == 2))
        .collect::<Option<_>>()
        .unwrap_or_default();
    parts.try_into().map_err(|_| NetworkError::Mac(text.chars().take(50).collect()))
}

fn index(name: &str) -> Result<u32, NetworkError> {
    let plain = |character: char| character.is_ascii_alphanumeric() || "._-".contains(character);
    let sound = !name.starts_with('.') && name.chars().all(plain);
    if name.is_empty() || name.len() > MAX_INTERFACE || !sound {
        return Err(NetworkError::Name(name.chars().take(50).collect()));
    }
    let missing = |source| NetworkError::Interface { name: name.to_owned(), source };
    let text = fs::read_to_string(format!("/sys/class/net/{name}/ifindex")).map_err(missing)?;
    text.trim().parse().map_err(|error| missing(io::Error::new(io::ErrorKind::InvalidData, error)))
}

fn open() -> Result<RouteSocket, NetworkError> {
    RouteSocket::open().map_err(|source| NetworkError::Kernel { what: "talk to the kernel", source })
}

fn change(
    socket: &mut RouteSocket,
    what: &'static str,
    request: &message::Request,
) -> Result<(), NetworkError> {
    socket.request(request).map_err(|source| NetworkError::Kernel { what, source })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use forkd_proto::agent::Ipv6Network;

    fn network() -> Network {
        Network {
            interface: Some("lo".into()),
            address: "10.20.30.40".parse().unwrap(),
            prefix: 24,
            gateway: Some("10.20.30.1".parse().unwrap()),
            dns: vec!["1.1.1.1".parse().unwrap()],
            mtu: Some(1400),
            mac: None,
            ipv6: None,
        }
    }

    #[test]
    fn what_cannot_be_is_refused_before_anything_changes() {
        let refuse = |network: Network| configure(&network, None).unwrap_err().to_string();
        assert!(refuse(Network { prefix: 33, ..network() }).contains("prefix"));
        let ipv6 = Ipv6Network { address: "fd00::1".parse().unwrap(), prefix: 129, gateway: None };
        assert!(refuse(Network { ipv6: Some(ipv6), ..network() }).contains("prefix"));
        assert!(refuse(Network { gateway: Some("::1".parse().unwrap()), ..network() }).contains("families"));
        assert!(refuse(Network { mac: Some("1:2:3:4:5:6".into()), ..network() }).contains("MAC"));
        for name in ["", "../../etc", "a/b", ".", "sixteen-letters-"] {
            assert!(refuse(Network { interface: Some(name.into()), ..network() }).contains("not the name"));
        }
        assert_eq!(parse_mac("02:00:00:0a:0B:ff").unwrap(), [2, 0, 0, 10, 11, 255]);
    }

    #[test]
    fn servers_become_lines() {
        assert_eq!(resolver_configuration(&network().dns), "nameserver 1.1.1.1\n");
    }

    #[test]
    fn the_kernel_takes_it() {
        crate::testing::run_in_network_namespace("network::tests::in_a_namespace");
    }

    #[test]
    #[ignore = "changes the network: started in a namespace by the test above"]
    fn in_a_namespace() {
        let addresses = || {
            let output = Command::new("ip").args(["-o", "addr", "show", "lo"]).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        assert!(!addresses().contains("inet"), "this is not a fresh namespace");
        loopback_up().unwrap();
        assert!(addresses().contains("127.0.0.1/8"), "{}", addresses());
        configure(&network(), None).unwrap();
        configure(&network(), None).unwrap();
        let routes = Command::new("ip").args(["route"]).output().unwrap().stdout;
        let routes = String::from_utf8(routes).unwrap();
        assert!(routes.contains("default via 10.20.30.1"), "{routes}");
        let moved = Network { address: "10.20.30.41".parse().unwrap(), ..network() };
        configure(&moved, Some(&network())).unwrap();
        assert!(addresses().contains("10.20.30.41/24"), "{}", addresses());
        assert!(!addresses().contains("10.20.30.40/24"), "{}", addresses());
        // No gateway: the loopback has none for IPv6.
        let ipv6 = Ipv6Network { address: "fd00::2".parse().unwrap(), prefix: 126, gateway: None };
        let both = Network { ipv6: Some(ipv6), ..moved.clone() };
        configure(&both, Some(&moved)).unwrap();
        assert!(addresses().contains("fd00::2/126") && addresses().contains("10.20.30.41/24"));
        configure(&moved, Some(&both)).unwrap();
        assert!(!addresses().contains("fd00::2"), "{}", addresses());
    }
}
