//! Networks that are not the internet: where a sandbox must not get by default.
//!
//! They are the special-purpose registries of IANA, and what embeds an IPv4 address in an IPv6 one: behind a translator, an
//! address of the LAN could be reached by its IPv6 twin.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// Networks with their prefixes.
pub const NOT_THE_INTERNET4: [(Ipv4Addr, u8); 15] = [
    // This host, on this network.
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    // Between a carrier and its customers.
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    // Link-local, with the metadata services of clouds.
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 0, 2, 0), 24),
    (Ipv4Addr::new(192, 88, 99, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    // Measurements: forkd's own addresses are here.
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(198, 51, 100, 0), 24),
    (Ipv4Addr::new(203, 0, 113, 0), 24),
    // Multicast.
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    // Reserved, and broadcast.
    (Ipv4Addr::new(240, 0, 0, 0), 4),
];

pub const NOT_THE_INTERNET6: [(Ipv6Addr, u8); 13] = [
    // Unspecified, loopback, and IPv4 addresses in the old ways: `::`, `::1`, `::a.b.c.d`, `::ffff:a.b.c.d`.
    (Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 0), 80),
    // IPv4 behind translators, everybody's and a network's own.
    (Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96),
    (Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, 0, 0), 48),
    // Thrown away by routers.
    (Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 0), 64),
    // Protocols, with Teredo.
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23),
    // Documentation.
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20),
    // IPv4 in 6to4.
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16),
    (Ipv6Addr::new(0x5f00, 0, 0, 0, 0, 0, 0, 0), 16),
    // Unique local: private, forkd's own, and metadata services of clouds.
    (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7),
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10),
    // Site-local, as it once was.
    (Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 0), 10),
    // Multicast.
    (Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8),
];

/// All of them.
pub fn not_the_internet() -> impl Iterator<Item = (IpAddr, u8)> {
    let four = NOT_THE_INTERNET4.into_iter().map(|(network, prefix)| (network.into(), prefix));
    four.chain(NOT_THE_INTERNET6.into_iter().map(|(network, prefix)| (network.into(), prefix)))
}

/// Whether an address is one of the internet.
pub fn is_internet(address: IpAddr) -> bool {
    !not_the_internet().any(|(network, prefix)| IpNet::new_assert(network, prefix).contains(&address))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::plan::{GATEWAY4, GATEWAY6, GUEST4, GUEST6, Slot};

    #[test]
    fn what_must_not_be_reached_is_not_the_internet() {
        let not = [
            "127.0.0.1",
            "10.1.2.3",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "100.100.100.200",
            "0.0.0.0",
            "255.255.255.255",
            "224.0.0.251",
            "::1",
            "::",
            "::ffff:169.254.169.254",
            "::10.0.0.1",
            "64:ff9b::a9fe:a9fe",
            "2002:a9fe:a9fe::1",
            "fd00:ec2::254",
            "fe80::1",
            "ff02::1",
        ];
        for address in not {
            assert!(!is_internet(address.parse().unwrap()), "{address}");
        }
        let slot = Slot::try_from(4095).unwrap();
        for address in [GATEWAY4, GUEST4, slot.host4(), slot.uplink4()] {
            assert!(!is_internet(address.into()));
        }
        for address in [GATEWAY6, GUEST6, slot.host6(), slot.uplink6()] {
            assert!(!is_internet(address.into()));
        }
        for address in ["1.1.1.1", "172.32.0.1", "100.128.0.1", "192.169.0.1", "2606:4700::1111", "2a00::1"] {
            assert!(is_internet(address.parse().unwrap()), "{address}");
        }
    }

    proptest! {
        /// What the standard library says of an address, where it says something.
        #[test]
        fn the_standard_library_agrees(bits in any::<u32>()) {
            let address = Ipv4Addr::from(bits);
            let odd = address.is_private() || address.is_loopback() || address.is_link_local()
                || address.is_multicast() || address.is_broadcast() || address.is_documentation();
            prop_assert!(!odd || !is_internet(address.into()));
        }
    }
}
