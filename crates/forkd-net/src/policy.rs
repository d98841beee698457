//! What a sandbox may reach.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::cidr::{Cidr, CidrError};
use crate::name::{NameError, NamePattern};
use crate::rules::ranges::is_internet;

/// More entries than a list may have.
pub const MAX_ENTRIES: usize = 256;
pub const MAX_PORTS: usize = 32;

/// Where packets of a sandbox may go. The host and other sandboxes are never among it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Egress {
    /// Nowhere. Names are not answered either.
    Deny,
    /// To the internet: everywhere but private, link-local, metadata and other special networks.
    #[default]
    Allow,
    /// To what is listed.
    List(Vec<EgressEntry>),
    /// To the internet, as with `Allow`, without these networks.
    Except(Exceptions),
}

/// Networks of the internet that are not reached, and what is reached although it is in one of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exceptions {
    pub deny: Vec<Cidr>,
    /// Wins over `deny`, and opens nothing else: no private network.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<EgressEntry>,
}

/// One line of an allow-list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressEntry {
    pub to: Target,
    /// Of TCP and UDP. Without any, every port and every protocol.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<Ports>,
}

/// A network, an address or a name: `10.1.0.0/16`, `192.0.2.7`, `example.com`, `*.example.com`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Target {
    Network(Cidr),
    Name(NamePattern),
}

/// One port or a range: `443`, `8000-8100`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Ports {
    pub first: u16,
    pub last: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    #[error(transparent)]
    Network(#[from] CidrError),
    #[error(transparent)]
    Name(#[from] NameError),
    #[error("'{0}' is not a port or a range such as 8000-8100")]
    Ports(String),
    #[error("a list has {MAX_ENTRIES} entries at most, not {0}")]
    Entries(usize),
    #[error("an entry has {MAX_PORTS} ports and ranges at most, not {0}")]
    TooManyPorts(usize),
}

/// A sandbox's policy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    #[serde(default)]
    pub egress: Egress,
    /// Bytes a second, in each direction. After a quiet second, as much again at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<u64>,
}

impl Egress {
    /// What is allowed by a list. Names among it are opened by their places in it.
    fn entries(&self) -> &[EgressEntry] {
        match self {
            Egress::Deny | Egress::Allow => &[],
            Egress::List(entries) => entries,
            Egress::Except(exceptions) => &exceptions.allow,
        }
    }
}

impl Policy {
    /// What types cannot say.
    pub fn check(&self) -> Result<(), PolicyError> {
        let entries = self.egress.entries();
        let denied = match &self.egress {
            Egress::Except(exceptions) => exceptions.deny.len(),
            _ => 0,
        };
        if let Some(count) = [entries.len(), denied].into_iter().find(|count| *count > MAX_ENTRIES) {
            return Err(PolicyError::Entries(count));
        }
        match entries.iter().find(|entry| entry.ports.len() > MAX_PORTS) {
            Some(entry) => Err(PolicyError::TooManyPorts(entry.ports.len())),
            None => Ok(()),
        }
    }

    /// Whether a name is answered at all.
    pub fn resolves(&self, name: &str) -> bool {
        match &self.egress {
            Egress::Deny => false,
            Egress::Allow | Egress::Except(_) => !is_internal(name),
            Egress::List(_) => self.entries_of(name).next().is_some(),
        }
    }

    /// The entries that allow a name, by their places in the list.
    pub fn entries_of(&self, name: &str) -> impl Iterator<Item = usize> {
        self.egress.entries().iter().enumerate().filter_map(move |(index, entry)| match &entry.to {
            Target::Name(pattern) if pattern.matches(name) => Some(index),
            _ => None,
        })
    }

    /// Whether an answer to an allowed name may open an address. A name of the internet that leads to the LAN is a trick,
    /// unless the list has that network too.
    pub fn may_open(&self, address: IpAddr) -> bool {
        let listed =
            |entry: &EgressEntry| matches!(&entry.to, Target::Network(network) if network.contains(address));
        match &self.egress {
            Egress::List(entries) => is_internet(address) || entries.iter().any(listed),
            _ => is_internet(address),
        }
    }
}

/// Top-level domains of private networks.
const INTERNAL: [&str; 10] = [
    "corp",
    "home",
    "internal",
    "intranet",
    "invalid",
    "lan",
    "local",
    "localdomain",
    "localhost",
    "private",
];

/// Whether a name, without a dot at its end and in small letters, is one of the host's own network, which its resolver may know:
/// of a domain that the internet does not have, or of an address that is not of the internet. Resolvers in guests ask for
/// top-level domains, too; what a host of one label has for an address is left out of the answer.
fn is_internal(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or_default();
    let reversed = |suffix| name.strip_suffix(suffix).map(|labels: &str| labels.rsplit('.'));
    if let Some(labels) = reversed(".in-addr.arpa") {
        let mut octets = [0; 4];
        for (octet, label) in octets.iter_mut().zip(labels) {
            *octet = label.parse().unwrap_or(0);
        }
        return !is_internet(octets.into());
    }
    if let Some(labels) = reversed(".ip6.arpa") {
        let mut address = 0;
        for (place, label) in labels.take(32).enumerate() {
            address |= u128::from(u8::from_str_radix(label, 16).unwrap_or(0) & 15) << (124 - 4 * place);
        }
        return !is_internet(address.to_be_bytes().into());
    }
    INTERNAL.contains(&last) || name.ends_with(".home.arpa")
}

impl FromStr for Target {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Target, PolicyError> {
        // No name of the internet ends with a number, also before the dot of the root, and none has a colon or a slash.
        let last = text.strip_suffix('.').unwrap_or(text).rsplit('.').next().unwrap_or_default();
        let numeric = !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit());
        if numeric || text.contains([':', '/']) {
            return Ok(Target::Network(text.parse()?));
        }
        Ok(Target::Name(text.parse()?))
    }
}

/// A target, and behind a colon its ports: `example.com:443`, `10.0.0.0/8:80,8000-8100`, `[2001:db8::/32]:443`.
impl FromStr for EgressEntry {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<EgressEntry, PolicyError> {
        let (to, ports) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((to, "")) => (to, None),
            Some((to, rest)) => {
                let ports = rest.strip_prefix(':');
                (to, Some(ports.ok_or_else(|| PolicyError::Ports(shortened(rest)))?))
            }
            // More than one colon is an IPv6 address.
            None => match text.split_once(':') {
                Some((to, ports)) if !ports.contains(':') => (to, Some(ports)),
                _ => (text, None),
            },
        };
        let ports = ports.map(|ports| ports.split(',').map(str::parse).collect::<Result<_, _>>());
        Ok(EgressEntry { to: to.parse()?, ports: ports.transpose()?.unwrap_or_default() })
    }
}

impl fmt::Display for EgressEntry {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.ports.is_empty() {
            return self.to.fmt(formatter);
        }
        let to = self.to.to_string();
        let ports: Vec<String> = self.ports.iter().map(ToString::to_string).collect();
        match to.contains(':') {
            true => write!(formatter, "[{to}]:{}", ports.join(",")),
            false => write!(formatter, "{to}:{}", ports.join(",")),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Network(network) => network.fmt(formatter),
            Target::Name(name) => name.fmt(formatter),
        }
    }
}

impl FromStr for Ports {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Ports, PolicyError> {
        let port = |digits: &str| {
            let sound = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            digits.parse::<u16>().ok().filter(|port| sound && *port > 0)
        };
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (port(first), port(last)) {
            (Some(first), Some(last)) if first <= last => Ok(Ports { first, last }),
            _ => Err(PolicyError::Ports(shortened(text))),
        }
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first == self.last {
            true => write!(formatter, "{}", self.first),
            false => write!(formatter, "{}-{}", self.first, self.last),
        }
    }
}

/// Untrusted text, shortened to what a message can hold.
fn shortened(text: &str) -> String {
    text.chars().take(40).collect()
}

macro_rules! text {
    ($($name:ty),*) => {
        $(
            impl TryFrom<String> for $name {
                type Error = PolicyError;

                fn try_from(text: String) -> Result<$name, PolicyError> {
                    text.parse()
                }
            }

            impl From<$name> for String {
                fn from(value: $name) -> String {
                    value.to_string()
                }
            }
        )*
    };
}

text!(Target, Ports);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn list(value: serde_json::Value) -> Policy {
        Policy { egress: serde_json::from_value(json!({ "list": value })).unwrap(), bandwidth: None }
    }

    #[test]
    fn names_of_the_host_s_own_network_are_not_answered() {
        let allow = Policy::default();
        for internal in [
            "localhost",
            "db.internal",
            "a.b.corp",
            "printer.local",
            "nas.home.arpa",
            "1.0.0.10.in-addr.arpa",
            "254.169.254.169.in-addr.arpa",
            "10.in-addr.arpa",
            "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa",
            "d.f.ip6.arpa",
            "x.y.in-addr.arpa",
        ] {
            assert!(!allow.resolves(internal), "{internal}");
        }
        for internet in [
            "",
            "com",
            "example.com",
            "internal.example.com",
            "8.8.8.8.in-addr.arpa",
            "8.8.8.8.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.6.8.4.0.6.8.4.1.0.0.2.ip6.arpa",
        ] {
            assert!(allow.resolves(internet), "{internet}");
        }
        // A listed target is wanted.
        assert!(list(json!([{ "to": "db.internal" }])).resolves("db.internal"));
    }

    #[test]
    fn policies_are_read_and_written() {
        let value = json!({
            "egress": { "list": [
                { "to": "10.1.0.0/16", "ports": ["443", "8000-8100"] },
                { "to": "*.example.com" },
                { "to": "2001:db8::1/128" },
            ] },
            "bandwidth": 1_000_000,
        });
        let policy: Policy = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(serde_json::to_value(&policy).unwrap(), value);
        assert_eq!(serde_json::from_value::<Policy>(json!({})).unwrap(), Policy::default());
        assert_eq!(
            serde_json::from_value::<Policy>(json!({ "egress": "deny" })).unwrap().egress,
            Egress::Deny
        );
        for wrong in ["1.2.3", "10.0.0.1/8", "exa mple", "", "*", "*.com*", "a/b", "1.2.3.4.5"] {
            assert!(wrong.parse::<Target>().is_err(), "{wrong}");
        }
        for wrong in ["", "0", "-", "1-", "9-8", "65536", "+1", "http"] {
            assert!(wrong.parse::<Ports>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_open_what_is_of_the_internet_or_listed() {
        let policy =
            list(json!([{ "to": "*.example.com" }, { "to": "10.0.0.0/8" }, { "to": "a.example.com" }]));
        assert_eq!(policy.entries_of("a.example.com").collect::<Vec<_>>(), [0, 2]);
        assert!(policy.resolves("b.example.com") && !policy.resolves("example.com"));
        assert!(policy.may_open("1.1.1.1".parse().unwrap()));
        assert!(policy.may_open("10.1.1.1".parse().unwrap()));
        assert!(!policy.may_open("169.254.169.254".parse().unwrap()));
        assert!(Policy::default().resolves("anything.at.all"));
        assert!(!Policy { egress: Egress::Deny, bandwidth: None }.resolves("example.com"));
    }

    #[test]
    fn exceptions_resolve_names_of_the_internet() {
        let value = json!({ "egress": { "except": {
            "deny": ["8.8.0.0/16", "2001:db8::/32"],
            "allow": [{ "to": "*.example.com", "ports": ["443"] }, { "to": "10.0.0.0/8" }],
        } } });
        let policy: Policy = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(serde_json::to_value(&policy).unwrap(), value);
        assert!(policy.resolves("anything.example") && !policy.resolves("db.internal"));
        assert_eq!(policy.entries_of("a.example.com").collect::<Vec<_>>(), [0]);
        assert_eq!(policy.entries_of("example.com").count(), 0);
        // No exception of this mode opens the LAN.
        assert!(policy.may_open([8, 8, 8, 8].into()) && !policy.may_open([10, 1, 1, 1].into()));
        let without = json!({ "egress": { "except": { "deny": ["example.com"] } } });
        assert!(serde_json::from_value::<Policy>(without).is_err(), "a name cannot be denied");
    }

    #[test]
    fn entries_are_written_as_people_write_them() {
        let ports = |first, last| Ports { first, last };
        for (text, to, expected) in [
            ("example.com", "example.com", vec![]),
            ("*.example.com:443", "*.example.com", vec![ports(443, 443)]),
            ("10.0.0.0/8:80,8000-8100", "10.0.0.0/8", vec![ports(80, 80), ports(8000, 8100)]),
            ("2001:db8::1", "2001:db8::1", vec![]),
            ("[2001:db8::/32]:443", "2001:db8::/32", vec![ports(443, 443)]),
            ("[2001:db8::1]", "2001:db8::1", vec![]),
        ] {
            assert_eq!(text.parse(), Ok(EgressEntry { to: to.parse().unwrap(), ports: expected }), "{text}");
        }
        for wrong in [
            "",
            ":443",
            "example.com:",
            "example.com:http",
            "example.com:1,",
            "[2001:db8::1]443",
            "[",
            "[]:1",
        ] {
            assert!(wrong.parse::<EgressEntry>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn lists_have_an_end() {
        let entry = EgressEntry { to: "1.2.3.4".parse().unwrap(), ports: Vec::new() };
        let long = Policy { egress: Egress::List(vec![entry.clone(); MAX_ENTRIES + 1]), bandwidth: None };
        assert_eq!(long.check(), Err(PolicyError::Entries(MAX_ENTRIES + 1)));
        let wide = EgressEntry { ports: vec![Ports { first: 1, last: 1 }; MAX_PORTS + 1], ..entry.clone() };
        let wide = Policy { egress: Egress::List(vec![wide]), bandwidth: None };
        assert_eq!(wide.check(), Err(PolicyError::TooManyPorts(MAX_PORTS + 1)));
        let except = |deny, allow| {
            let deny = vec!["1.2.3.4".parse().unwrap(); deny];
            let egress = Egress::Except(Exceptions { deny, allow: vec![entry.clone(); allow] });
            Policy { egress, bandwidth: None }.check()
        };
        assert_eq!(except(MAX_ENTRIES, MAX_ENTRIES), Ok(()));
        assert_eq!(except(MAX_ENTRIES + 1, 0), Err(PolicyError::Entries(MAX_ENTRIES + 1)));
        assert_eq!(except(1, MAX_ENTRIES + 1), Err(PolicyError::Entries(MAX_ENTRIES + 1)));
    }

    proptest! {
        #[test]
        fn ports_survive(first in 1..=u16::MAX, length in 0..1000u16) {
            let ports = Ports { first, last: first.saturating_add(length) };
            prop_assert_eq!(ports.to_string().parse::<Ports>().unwrap(), ports);
        }

        #[test]
        fn entries_survive(
            to in "([1-9]\\.2\\.3\\.4|10\\.0\\.0\\.0/8|[a-z]{1,9}\\.example|\\*\\.example\\.com|2001:db8::[1-9]|2001:db8::/32)",
            ports in proptest::collection::vec((1..60_000u16, 0..9u16), 0..4),
        ) {
            let ports = ports.into_iter().map(|(first, length)| Ports { first, last: first + length }).collect();
            let entry = EgressEntry { to: to.parse().unwrap(), ports };
            prop_assert_eq!(entry.to_string().parse::<EgressEntry>().unwrap(), entry);
        }

        #[test]
        fn no_entry_panics(text in "[a-z0-9.:,/*\\[\\]-]{0,60}") {
            if let Ok(entry) = text.parse::<EgressEntry>() {
                prop_assert_eq!(entry.to_string().parse::<EgressEntry>().unwrap(), entry);
            }
        }

        #[test]
        fn no_target_panics(text in ".{0,60}") {
            if let Ok(target) = text.parse::<Target>() {
                prop_assert_eq!(target.to_string().parse::<Target>().unwrap(), target);
            }
        }
    }
}
