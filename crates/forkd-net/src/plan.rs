//! The address plan: everything a sandbox's network is called, and every address in it, as a function of its slot.
//!
//! ```text
//!   guest                    namespace forkd-0042                          host
//!   eth0 ──────────── tap "guest"      "uplink" ────────── veth "forkd0042" ──▶ out
//!   198.19.255.2      198.19.255.1     198.19.0.170         198.19.0.169
//!   …:ffff::2         …:ffff::1        …:2a::2              …:2a::1
//!   the same in every sandbox          the slot's own
//! ```
//!
//! Children of one snapshot share the memory that their addresses are in, so all guests have the same ones, and each
//! namespace translates them. No bridge joins the namespaces: a bridge of Linux has 1023 ports, and would have to be told not
//! to let sandboxes talk to each other. Here each is a network of two addresses, with the host as its router.
//!
//! 198.18.0.0/15 is set aside for measurements: no internet host and next to no LAN uses it. The IPv6 prefix is a unique local
//! one; its 40 bits are the letters of `forkd`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use forkd_proto::agent::{Ipv6Network, Network};
use serde::{Deserialize, Serialize};

/// Networks that a host has addresses for. The first ones are for sandboxes, the rest for guests that end with the
/// process that started them.
pub const SLOTS: u16 = 4096;
pub const SANDBOXES: u16 = 4000;
/// All of forkd's addresses.
pub const NETWORK4: (Ipv4Addr, u8) = (Ipv4Addr::new(198, 19, 0, 0), 16);
pub const NETWORK6: (Ipv6Addr, u8) = (Ipv6Addr::new(0xfd66, 0x6f72, 0x6b64, 0, 0, 0, 0, 0), 48);

pub const GUEST4: Ipv4Addr = Ipv4Addr::new(198, 19, 255, 2);
pub const GATEWAY4: Ipv4Addr = Ipv4Addr::new(198, 19, 255, 1);
pub const GUEST6: Ipv6Addr = Ipv6Addr::new(0xfd66, 0x6f72, 0x6b64, 0xffff, 0, 0, 0, 2);
pub const GATEWAY6: Ipv6Addr = Ipv6Addr::new(0xfd66, 0x6f72, 0x6b64, 0xffff, 0, 0, 0, 1);
/// Of the networks between guest and namespace, and between namespace and host.
pub const PREFIX4: u8 = 30;
pub const PREFIX6: u8 = 126;

/// Of the guest's interface, and of the tap, which the guest knows as its gateway. Locally administered: the second bit.
pub const GUEST_MAC: [u8; 6] = [0x02, b'f', b'k', 0xff, 0xff, 0x02];
/// What the guest's kernel makes of its MAC.
pub const GUEST_LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0x0066, 0x6bff, 0xfeff, 0xff02);
pub const GATEWAY_MAC: [u8; 6] = [0x02, b'f', b'k', 0xff, 0xff, 0x01];

/// The two ends of a namespace, by the names that they have inside.
pub const TAP: &str = "guest";
pub const UPLINK: &str = "uplink";
/// What the host's ends begin with. Everything of that beginning is forkd's.
pub const LINK_PREFIX: &str = "forkd";
const NAMESPACE_PREFIX: &str = "forkd-";

/// One of the places for a sandbox's network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct Slot(u16);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("there is no slot {0}: they are numbered from 0 to {last}", last = SLOTS - 1)]
pub struct NoSuchSlot(pub u16);

impl TryFrom<u16> for Slot {
    type Error = NoSuchSlot;

    fn try_from(number: u16) -> Result<Slot, NoSuchSlot> {
        if number < SLOTS { Ok(Slot(number)) } else { Err(NoSuchSlot(number)) }
    }
}

impl From<Slot> for u16 {
    fn from(slot: Slot) -> u16 {
        slot.0
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:04}", self.0)
    }
}

impl Slot {
    pub fn all() -> impl Iterator<Item = Slot> {
        (0..SLOTS).map(Slot)
    }

    pub fn sandboxes() -> impl Iterator<Item = Slot> {
        (0..SANDBOXES).map(Slot)
    }

    pub fn is_sandbox(self) -> bool {
        self.0 < SANDBOXES
    }

    pub fn transient() -> impl Iterator<Item = Slot> {
        (SANDBOXES..SLOTS).map(Slot)
    }

    pub fn namespace(self) -> String {
        format!("{NAMESPACE_PREFIX}{self}")
    }

    /// The slot that a namespace of this name is of.
    pub fn of_namespace(name: &str) -> Option<Slot> {
        parse(name.strip_prefix(NAMESPACE_PREFIX)?)
    }

    /// The host's end of the veth.
    pub fn link(self) -> String {
        format!("{LINK_PREFIX}{self}")
    }

    /// The slot that a link of the host is of.
    pub fn of_link(name: &str) -> Option<Slot> {
        parse(name.strip_prefix(LINK_PREFIX)?)
    }

    pub fn host4(self) -> Ipv4Addr {
        self.address4(1)
    }

    pub fn uplink4(self) -> Ipv4Addr {
        self.address4(2)
    }

    pub fn host6(self) -> Ipv6Addr {
        self.address6(1)
    }

    pub fn uplink6(self) -> Ipv6Addr {
        self.address6(2)
    }

    pub fn host_mac(self) -> [u8; 6] {
        self.mac(3)
    }

    pub fn uplink_mac(self) -> [u8; 6] {
        self.mac(4)
    }

    fn address4(self, index: u32) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(NETWORK4.0) + u32::from(self.0) * 4 + index)
    }

    fn address6(self, index: u128) -> Ipv6Addr {
        Ipv6Addr::from(u128::from(NETWORK6.0) | u128::from(self.0) << 64 | index)
    }

    fn mac(self, index: u8) -> [u8; 6] {
        let [high, low] = self.0.to_be_bytes();
        [0x02, b'f', b'k', high, low, index]
    }
}

fn parse(digits: &str) -> Option<Slot> {
    let sound = digits.len() == 4 && digits.bytes().all(|byte| byte.is_ascii_digit());
    Slot::try_from(digits.parse::<u16>().ok().filter(|_| sound)?).ok()
}

/// What a guest is told of its network, the same in every sandbox.
pub fn guest_network() -> Network {
    Network {
        interface: None,
        address: IpAddr::V4(GUEST4),
        prefix: PREFIX4,
        gateway: Some(IpAddr::V4(GATEWAY4)),
        dns: vec![IpAddr::V4(GATEWAY4)],
        mtu: None,
        mac: None,
        ipv6: Some(Ipv6Network { address: GUEST6, prefix: PREFIX6, gateway: Some(GATEWAY6) }),
    }
}

/// The same as words of its kernel's command line, for its agent.
pub fn guest_words() -> String {
    let network = guest_network();
    let four = (network.address, network.prefix, network.gateway);
    let six = network.ipv6.map(|six| (six.address.into(), six.prefix, six.gateway.map(Into::into)));
    let families = [Some(four), six].into_iter().flatten();
    let addresses = families.filter_map(|(address, prefix, gateway)| {
        gateway.map(|gateway| format!(" forkd.network={address}/{prefix},{gateway}"))
    });
    let servers = network.dns.iter().map(|server| format!(" forkd.dns={server}"));
    addresses.chain(servers).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn within4(address: Ipv4Addr) -> bool {
        u32::from(address) >> (32 - NETWORK4.1) == u32::from(NETWORK4.0) >> (32 - NETWORK4.1)
    }

    fn within6(address: Ipv6Addr) -> bool {
        u128::from(address) >> (128 - NETWORK6.1) == u128::from(NETWORK6.0) >> (128 - NETWORK6.1)
    }

    #[test]
    fn nothing_is_given_twice() {
        let mut addresses: BTreeSet<IpAddr> =
            [GUEST4.into(), GATEWAY4.into(), GUEST6.into(), GATEWAY6.into()].into();
        let mut macs = BTreeSet::from([GUEST_MAC, GATEWAY_MAC]);
        let mut networks = BTreeSet::from([u32::from(GUEST4) >> 2]);
        for slot in Slot::all() {
            for address in [slot.host4(), slot.uplink4()] {
                assert!(within4(address) && addresses.insert(address.into()), "{address}");
            }
            for address in [slot.host6(), slot.uplink6()] {
                assert!(within6(address) && addresses.insert(address.into()), "{address}");
            }
            assert!(macs.insert(slot.host_mac()) && macs.insert(slot.uplink_mac()));
            assert!(networks.insert(u32::from(slot.host4()) >> 2));
            assert_eq!(u32::from(slot.host4()) >> 2, u32::from(slot.uplink4()) >> 2);
        }
        assert_eq!(macs.len(), 2 + 2 * usize::from(SLOTS));
        assert!(macs.iter().all(|mac| mac[0] & 3 == 2), "unicast, locally administered");
    }

    /// The address that RFC 4291 makes of a MAC.
    #[test]
    fn the_link_local_address_is_of_the_mac() {
        let [a, b, c, d, e, f] = GUEST_MAC;
        let octets = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f];
        assert_eq!(GUEST_LINK_LOCAL, Ipv6Addr::from(octets));
    }

    #[test]
    fn the_picture_is_right() {
        let slot = Slot::try_from(42).unwrap();
        assert_eq!((slot.namespace().as_str(), slot.link().as_str()), ("forkd-0042", "forkd0042"));
        assert_eq!(slot.host4().to_string(), "198.19.0.169");
        assert_eq!(slot.uplink4().to_string(), "198.19.0.170");
        assert_eq!(slot.uplink6().to_string(), "fd66:6f72:6b64:2a::2");
        assert_eq!(Slot::try_from(SLOTS), Err(NoSuchSlot(SLOTS)));
    }

    #[test]
    fn the_guest_is_told_all_of_it() {
        assert_eq!(
            guest_words(),
            " forkd.network=198.19.255.2/30,198.19.255.1 \
             forkd.network=fd66:6f72:6b64:ffff::2/126,fd66:6f72:6b64:ffff::1 forkd.dns=198.19.255.1"
        );
    }

    proptest! {
        #[test]
        fn names_lead_back_to_their_slots(number in 0..SLOTS) {
            let slot = Slot::try_from(number).unwrap();
            prop_assert_eq!(Slot::of_namespace(&slot.namespace()), Some(slot));
            prop_assert_eq!(Slot::of_link(&slot.link()), Some(slot));
            // IFNAMSIZ with its NUL.
            prop_assert!(slot.link().len() < 16);
        }

        #[test]
        fn other_names_are_nobody_s(name in "forkd-?[0-9a-z+]{0,6}") {
            for slot in [Slot::of_namespace(&name), Slot::of_link(&name)].into_iter().flatten() {
                prop_assert!(name == slot.namespace() || name == slot.link());
            }
        }
    }
}
