//! Rules, as the kernel runs them: a list of expressions around one register.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::Attributes;

/// NFT_REG_1: 16 bytes, enough for everything here.
const REGISTER: u32 = 1;
const VERDICT_REGISTER: u32 = 0;
const LIST_ELEMENT: u16 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    Equal = 0,
    NotEqual = 1,
    AtMost = 3,
    AtLeast = 5,
}

impl Comparison {
    fn number(self) -> u32 {
        match self {
            Comparison::Equal => 0,
            Comparison::NotEqual => 1,
            Comparison::AtMost => 3,
            Comparison::AtLeast => 5,
        }
    }
}

/// One step. What is loaded is in the register for the next ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expression {
    /// Bytes of the packet, from the start of its Ethernet (0), IP (1) or transport header (2).
    Payload {
        base: u32,
        offset: u32,
        length: u32,
    },
    /// Whether the packet has a header of this number among its IPv6 extension headers: 1 or 0, in one byte.
    HasExtension(u8),
    /// NFT_META_*.
    Meta(u32),
    /// NFT_CT_*.
    Ct(u32),
    /// Makes the register's value the mark of the connection.
    SetCtMark,
    /// What the host would do with the destination: RTN_*.
    DestinationType,
    Mask(Vec<u8>),
    Compare(Comparison, Vec<u8>),
    /// Whether the register's value is in a set.
    In(String),
    Load(Vec<u8>),
    /// Adds the packet to a named counter.
    Count(String),
    /// Continues only with packets beyond a rate.
    Beyond {
        bytes_per_second: u64,
        burst: u32,
    },
    /// Continues only with a few packets a second.
    Few {
        per_second: u64,
        burst: u32,
    },
    /// Hands the beginning of the packet to the listener of the group.
    Log {
        group: u16,
        prefix: &'static str,
        bytes: u32,
    },
    /// Continues only if there are more connections than this that have come here.
    MoreConnections(u32),
    Accept,
    Drop,
    /// Tells the sender that it is forbidden.
    Reject,
    Jump(String),
    Masquerade,
}

impl Expression {
    fn name(&self) -> &'static str {
        match self {
            Expression::Payload { .. } => "payload",
            Expression::HasExtension(_) => "exthdr",
            Expression::Meta(_) => "meta",
            Expression::Ct(_) | Expression::SetCtMark => "ct",
            Expression::DestinationType => "fib",
            Expression::Mask(_) => "bitwise",
            Expression::Compare(..) => "cmp",
            Expression::In(_) => "lookup",
            Expression::Count(_) => "objref",
            Expression::Beyond { .. } | Expression::Few { .. } => "limit",
            Expression::Log { .. } => "log",
            Expression::MoreConnections(_) => "connlimit",
            Expression::Load(_) | Expression::Accept | Expression::Drop | Expression::Jump(_) => "immediate",
            Expression::Reject => "reject",
            Expression::Masquerade => "masq",
        }
    }

    fn data(&self) -> Attributes {
        let new = Attributes::default;
        match self {
            Expression::Payload { base, offset, length } => {
                new().number(1, REGISTER).number(2, *base).number(3, *offset).number(4, *length)
            }
            // One byte at offset 0, of which only the presence is asked for.
            Expression::HasExtension(header) => {
                new().number(1, REGISTER).put(2, &[*header]).number(3, 0).number(4, 1).number(5, 1)
            }
            Expression::Meta(key) | Expression::Ct(key) => new().number(1, REGISTER).number(2, *key),
            Expression::SetCtMark => new().number(2, ct::MARK).number(4, REGISTER),
            Expression::DestinationType => new().number(1, REGISTER).number(2, 3).number(3, 2),
            Expression::Mask(mask) => {
                let length = u32::try_from(mask.len()).unwrap_or_default();
                let zero = vec![0; mask.len()];
                new()
                    .number(1, REGISTER)
                    .number(2, REGISTER)
                    .number(3, length)
                    .nest(4, &value(mask))
                    .nest(5, &value(&zero))
            }
            Expression::Compare(comparison, with) => {
                new().number(1, REGISTER).number(2, comparison.number()).nest(3, &value(with))
            }
            Expression::In(set) => new().text(1, set).number(2, REGISTER),
            Expression::Load(what) => new().number(1, REGISTER).nest(2, &value(what)),
            Expression::Count(counter) => new().number(1, 1).text(2, counter),
            Expression::Beyond { bytes_per_second, burst } => {
                new().long(1, *bytes_per_second).long(2, 1).number(3, *burst).number(4, 1).number(5, 1)
            }
            Expression::Few { per_second, burst } => {
                new().long(1, *per_second).long(2, 1).number(3, *burst).number(4, 0).number(5, 0)
            }
            Expression::Log { group, prefix, bytes } => {
                new().put(1, &group.to_be_bytes()).text(2, prefix).number(3, *bytes)
            }
            Expression::MoreConnections(count) => new().number(1, *count).number(2, 1),
            Expression::Accept => verdict(1, None),
            Expression::Drop => verdict(0, None),
            Expression::Jump(chain) => verdict(-3, Some(chain)),
            // icmpx, admin-prohibited.
            Expression::Reject => new().number(1, 2).put(2, &[3]),
            Expression::Masquerade => new(),
        }
    }
}

fn value(bytes: &[u8]) -> Attributes {
    Attributes::default().put(1, bytes)
}

fn verdict(code: i32, chain: Option<&str>) -> Attributes {
    let code = Attributes::default().put(1, &code.to_be_bytes());
    let verdict = match chain {
        Some(chain) => code.text(2, chain),
        None => code,
    };
    let data = Attributes::default().nest(2, &verdict);
    Attributes::default().number(1, VERDICT_REGISTER).nest(2, &data)
}

mod meta {
    pub const IN_NAME: u32 = 6;
    pub const OUT_NAME: u32 = 7;
    pub const FAMILY: u32 = 15;
    pub const PROTOCOL: u32 = 16;
}

mod ct {
    pub const STATE: u32 = 0;
    pub const MARK: u32 = 3;
}

/// Protocols of IP.
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const ICMP: u8 = 1;
pub const ICMP6: u8 = 58;

/// The number of IPv6's header of fragments.
const FRAGMENT_HEADER: u8 = 44;
/// NFPROTO_*.
const IPV4: u8 = 2;
const IPV6: u8 = 10;
/// Ethernet's numbers.
const ETHER_IPV4: [u8; 2] = [0x08, 0x00];
const ETHER_ARP: [u8; 2] = [0x08, 0x06];
const ETHER_IPV6: [u8; 2] = [0x86, 0xdd];

/// States of a connection.
pub const INVALID: u32 = 1;
pub const ESTABLISHED: u32 = 2;
pub const RELATED: u32 = 4;

/// A rule: conditions from left to right, what to count, and a verdict.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rule(Vec<Expression>);

#[expect(clippy::wrong_self_convention, reason = "a rule reads like a sentence: from a link, to a network")]
impl Rule {
    pub fn new() -> Rule {
        Rule::default()
    }

    /// The expressions as the kernel takes them.
    pub fn encode(&self) -> Attributes {
        self.0.iter().fold(Attributes::default(), |list, expression| {
            let element = Attributes::default().text(1, expression.name()).nest(2, &expression.data());
            list.nest(LIST_ELEMENT, &element)
        })
    }

    pub fn then(mut self, expression: Expression) -> Rule {
        self.0.push(expression);
        self
    }

    fn is(self, load: Expression, value: &[u8]) -> Rule {
        self.compared(load, Comparison::Equal, value)
    }

    fn compared(self, load: Expression, comparison: Comparison, value: &[u8]) -> Rule {
        self.then(load).then(Expression::Compare(comparison, value.to_vec()))
    }

    /// Came in at a link of this name.
    pub fn from_link(self, name: &str) -> Rule {
        self.is(Expression::Meta(meta::IN_NAME), &interface(name))
    }

    pub fn to_link(self, name: &str) -> Rule {
        self.is(Expression::Meta(meta::OUT_NAME), &interface(name))
    }

    /// Came in at a link whose name begins so.
    pub fn from_links(self, comparison: Comparison, prefix: &str) -> Rule {
        self.compared(Expression::Meta(meta::IN_NAME), comparison, prefix.as_bytes())
    }

    pub fn to_links(self, comparison: Comparison, prefix: &str) -> Rule {
        self.compared(Expression::Meta(meta::OUT_NAME), comparison, prefix.as_bytes())
    }

    pub fn ipv4(self) -> Rule {
        self.is(Expression::Meta(meta::FAMILY), &[IPV4])
    }

    pub fn ipv6(self) -> Rule {
        self.is(Expression::Meta(meta::FAMILY), &[IPV6])
    }

    pub fn protocol(self, protocol: u8) -> Rule {
        self.is(Expression::Meta(meta::PROTOCOL), &[protocol])
    }

    /// The family is named first: without it the same bytes mean something else in the other one's header.
    pub fn to_network(self, network: IpAddr, prefix: u8) -> Rule {
        let family = if network.is_ipv4() { self.ipv4() } else { self.ipv6() };
        let rule = family.then(destination(network));
        match network {
            IpAddr::V4(network) => rule.masked(&network.octets(), prefix),
            IpAddr::V6(network) => rule.masked(&network.octets(), prefix),
        }
    }

    pub fn from_network(self, network: IpAddr, prefix: u8) -> Rule {
        let family = if network.is_ipv4() { self.ipv4() } else { self.ipv6() };
        let rule = family.then(source(network));
        match network {
            IpAddr::V4(network) => rule.masked(&network.octets(), prefix),
            IpAddr::V6(network) => rule.masked(&network.octets(), prefix),
        }
    }

    fn masked(self, network: &[u8], prefix: u8) -> Rule {
        let bits = network.len() * 8;
        let prefix = usize::from(prefix).min(bits);
        let mask: Vec<u8> = (0..network.len())
            .map(|byte| match prefix.saturating_sub(byte * 8) {
                0 => 0,
                ones @ 1..=7 => 0xff << (8 - ones),
                _ => 0xff,
            })
            .collect();
        let network = network.iter().zip(&mask).map(|(byte, mask)| byte & mask).collect();
        let rule = if prefix == bits { self } else { self.then(Expression::Mask(mask)) };
        rule.then(Expression::Compare(Comparison::Equal, network))
    }

    /// A fragment of an IPv4 packet: more follow, or it is not the first.
    pub fn fragment4(self) -> Rule {
        self.ipv4()
            .then(Expression::Payload { base: 1, offset: 6, length: 2 })
            .then(Expression::Mask(vec![0x3f, 0xff]))
            .then(Expression::Compare(Comparison::NotEqual, vec![0; 2]))
    }

    /// A fragment of an IPv6 packet.
    pub fn fragment6(self) -> Rule {
        self.ipv6().is(Expression::HasExtension(FRAGMENT_HEADER), &[1])
    }

    /// To one of a set's addresses.
    pub fn to_set(self, ipv4: bool, set: &str) -> Rule {
        let (rule, load) = match ipv4 {
            true => (self.ipv4(), destination(Ipv4Addr::UNSPECIFIED.into())),
            false => (self.ipv6(), destination(Ipv6Addr::UNSPECIFIED.into())),
        };
        rule.then(load).then(Expression::In(set.into()))
    }

    /// To a port. The protocol is named before.
    pub fn to_ports(self, first: u16, last: u16) -> Rule {
        let rule = self.then(Expression::Payload { base: 2, offset: 2, length: 2 });
        if first == last {
            return rule.then(Expression::Compare(Comparison::Equal, first.to_be_bytes().into()));
        }
        rule.then(Expression::Compare(Comparison::AtLeast, first.to_be_bytes().into()))
            .then(Expression::Compare(Comparison::AtMost, last.to_be_bytes().into()))
    }

    /// ICMP, with a type between these.
    pub fn icmp_types(self, first: u8, last: u8) -> Rule {
        self.then(Expression::Payload { base: 2, offset: 0, length: 1 })
            .then(Expression::Compare(Comparison::AtLeast, vec![first]))
            .then(Expression::Compare(Comparison::AtMost, vec![last]))
    }

    /// The destination is of this type to the host: RTN_*.
    pub fn to_type(self, kind: u32) -> Rule {
        self.is(Expression::DestinationType, &kind.to_ne_bytes())
    }

    /// The connection is in one of these states.
    pub fn in_state(self, states: u32) -> Rule {
        self.then(Expression::Ct(ct::STATE))
            .then(Expression::Mask(states.to_ne_bytes().into()))
            .then(Expression::Compare(Comparison::NotEqual, vec![0; 4]))
    }

    pub fn marked(self, mark: u32) -> Rule {
        self.is(Expression::Ct(ct::MARK), &mark.to_ne_bytes())
    }

    pub fn mark(self, mark: u32) -> Rule {
        self.then(Expression::Load(mark.to_ne_bytes().into())).then(Expression::SetCtMark)
    }

    /// The Ethernet address of the sender.
    pub fn sender(self, comparison: Comparison, mac: [u8; 6]) -> Rule {
        self.compared(Expression::Payload { base: 0, offset: 6, length: 6 }, comparison, &mac)
    }

    /// A frame with IPv4, and the packet's source.
    pub fn frame4(self, source: Ipv4Addr) -> Rule {
        self.frame(ETHER_IPV4).is(Expression::Payload { base: 1, offset: 12, length: 4 }, &source.octets())
    }

    /// A frame with IPv6, and the packet's source.
    pub fn frame6(self, source: Ipv6Addr, prefix: u8) -> Rule {
        self.frame(ETHER_IPV6)
            .then(Expression::Payload { base: 1, offset: 8, length: 16 })
            .masked(&source.octets(), prefix)
    }

    /// A frame with ARP, and who it says is speaking: MAC and address.
    pub fn arp(self, mac: [u8; 6], address: Ipv4Addr) -> Rule {
        self.frame(ETHER_ARP)
            .is(Expression::Payload { base: 1, offset: 8, length: 6 }, &mac)
            .is(Expression::Payload { base: 1, offset: 14, length: 4 }, &address.octets())
    }

    fn frame(self, kind: [u8; 2]) -> Rule {
        self.is(Expression::Payload { base: 0, offset: 12, length: 2 }, &kind)
    }

    pub fn count(self, counter: &str) -> Rule {
        self.then(Expression::Count(counter.into()))
    }

    pub fn accept(self) -> Rule {
        self.then(Expression::Accept)
    }

    pub fn drop(self) -> Rule {
        self.then(Expression::Drop)
    }

    pub fn reject(self) -> Rule {
        self.then(Expression::Reject)
    }

    pub fn jump(self, chain: &str) -> Rule {
        self.then(Expression::Jump(chain.into()))
    }
}

fn destination(address: IpAddr) -> Expression {
    match address {
        IpAddr::V4(_) => Expression::Payload { base: 1, offset: 16, length: 4 },
        IpAddr::V6(_) => Expression::Payload { base: 1, offset: 24, length: 16 },
    }
}

fn source(address: IpAddr) -> Expression {
    match address {
        IpAddr::V4(_) => Expression::Payload { base: 1, offset: 12, length: 4 },
        IpAddr::V6(_) => Expression::Payload { base: 1, offset: 8, length: 16 },
    }
}

/// A name as the kernel compares it: with zeros to IFNAMSIZ.
fn interface(name: &str) -> [u8; 16] {
    let mut bytes = [0; 16];
    for (to, from) in bytes.iter_mut().zip(name.bytes()) {
        *to = from;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The mask and the compared bytes of a rule.
    fn network(text: &str, prefix: u8) -> (Option<Vec<u8>>, Vec<u8>) {
        let rule = Rule::new().to_network(text.parse().unwrap(), prefix);
        let mask = rule.0.iter().find_map(|expression| match expression {
            Expression::Mask(mask) => Some(mask.clone()),
            _ => None,
        });
        let Some(Expression::Compare(Comparison::Equal, value)) = rule.0.last() else {
            panic!("{rule:?}");
        };
        (mask, value.clone())
    }

    #[test]
    fn networks_are_masks_and_comparisons() {
        assert_eq!(network("10.0.0.0", 8), (Some(vec![255, 0, 0, 0]), vec![10, 0, 0, 0]));
        assert_eq!(network("172.16.5.0", 12), (Some(vec![255, 240, 0, 0]), vec![172, 16, 0, 0]));
        assert_eq!(network("192.0.2.7", 32), (None, vec![192, 0, 2, 7]));
        assert_eq!(network("1.2.3.4", 0), (Some(vec![0; 4]), vec![0; 4]));
        assert_eq!(network("fe80::1", 10).0.unwrap()[..3], [255, 192, 0]);
    }
}
