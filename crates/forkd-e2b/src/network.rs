//! What a sandbox may reach, as E2B says it and as forkd keeps it.
//!
//! ```text
//!   nothing said, or only what may be reached               the internet
//!   allow_internet_access: false, or all of it denied       nothing
//!   all of it denied, and what may be reached               that
//! ```
//!
//! forkd has lists of what may be reached, and none of what may not: networks that are denied one by one are refused here, unless
//! no sandbox reaches them anyway. So is what would have to change packets on their way.

use std::net::{Ipv4Addr, Ipv6Addr};

use forkd_api::hint::HintCode;
use forkd_api::sandbox::{Egress, EgressMode};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use forkd_daemon::error::Answer;
use forkd_daemon::operations::checks::malformed;
use forkd_daemon::operations::egress;

/// Everything, as clients write it.
const ALL: [&str; 2] = ["0.0.0.0/0", "::/0"];

/// The network of a new sandbox, or what replaces it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Network {
    pub allow_public_traffic: Option<bool>,
    pub allow_out: Option<Vec<String>>,
    pub deny_out: Option<Vec<String>>,
    pub dns_servers: Option<Vec<String>>,
    pub egress_proxy: Option<Value>,
    pub mask_request_host: Option<String>,
    pub https_ports: Option<Vec<u16>>,
    pub rules: Option<Value>,
    #[serde(rename = "allow_internet_access")]
    pub allow_internet_access: Option<bool>,
}

/// The same as it is shown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ShownNetwork {
    pub allow_public_traffic: bool,
    pub allow_out: Vec<String>,
    pub deny_out: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mask_request_host: Option<String>,
}

impl Network {
    /// The policy; `None` if nothing is said about it.
    pub fn egress(&self, internet: Option<bool>) -> Answer<Option<forkd_net::Egress>> {
        self.refuse_what_cannot_be_kept()?;
        let allow = self.allow_out.as_deref().unwrap_or_default();
        let deny = self.deny_out.as_deref().unwrap_or_default();
        let denies_all = internet == Some(false) || deny.iter().any(|entry| is_all(entry));
        let one_by_one = deny.iter().find(|entry| !is_all(entry) && !is_never_reached(entry));
        if let (Some(entry), false) = (one_by_one, denies_all) {
            let entry: String = entry.chars().take(80).collect();
            return Err(malformed(format!("denyOut has {entry:?}: only all of the internet can be denied"))
                .hint(HintCode::AllowInstead));
        }
        if allow.is_empty() && deny.is_empty() && internet.is_none() {
            return Ok(None);
        }
        let wanted = match (denies_all, allow.is_empty()) {
            (false, _) => Egress { mode: EgressMode::Allow, allow: Vec::new() },
            (true, _) if allow.iter().any(|entry| is_all(entry)) => {
                Egress { mode: EgressMode::Allow, allow: Vec::new() }
            }
            (true, true) => Egress { mode: EgressMode::Deny, allow: Vec::new() },
            (true, false) => Egress { mode: EgressMode::List, allow: allow.to_vec() },
        };
        egress::convert(wanted).map(Some)
    }

    fn refuse_what_cannot_be_kept(&self) -> Answer<()> {
        let said = |value: &Option<Value>| match value {
            None | Some(Value::Null) => false,
            Some(Value::Object(map)) => !map.is_empty(),
            Some(_) => true,
        };
        let some = |list: bool| if list { Some(()) } else { None };
        let wrong = [
            ("egressProxy", some(said(&self.egress_proxy))),
            ("rules", some(said(&self.rules))),
            ("dnsServers", some(self.dns_servers.as_ref().is_some_and(|list| !list.is_empty()))),
            ("httpsPorts", some(self.https_ports.as_ref().is_some_and(|list| !list.is_empty()))),
        ];
        match wrong.iter().find(|(_, said)| said.is_some()) {
            Some((name, _)) => Err(malformed(format!("network.{name} is not supported by forkd"))),
            None => Ok(()),
        }
    }
}

/// What a policy is in E2B's words: the same again if it is asked for.
pub(crate) fn show(
    policy: Option<&forkd_net::Egress>,
    public_traffic: bool,
    mask_host: Option<String>,
) -> ShownNetwork {
    let deny_all = || vec![ALL[0].to_owned()];
    let (allow_out, deny_out) = match policy.map(egress::show) {
        None | Some(Egress { mode: EgressMode::Allow, .. }) => (Vec::new(), Vec::new()),
        Some(Egress { mode: EgressMode::Deny, .. }) => (Vec::new(), deny_all()),
        Some(Egress { mode: EgressMode::List, allow }) => (allow, deny_all()),
    };
    ShownNetwork { allow_public_traffic: public_traffic, allow_out, deny_out, mask_request_host: mask_host }
}

fn is_all(entry: &str) -> bool {
    ALL.contains(&entry.trim())
}

/// Whether it is a network, or an address, that no sandbox reaches unless it is on its list: private ones and those of the host.
fn is_never_reached(entry: &str) -> bool {
    let (address, bits) = entry.trim().split_once('/').map_or((entry.trim(), None), |(a, b)| (a, Some(b)));
    let bits: Option<u8> = match bits.map(str::parse).transpose() {
        Ok(bits) => bits,
        Err(_) => return false,
    };
    if let Ok(address) = address.parse::<Ipv4Addr>() {
        let inside = |network: [u8; 4], length: u8| {
            let mask = u32::MAX << (32 - u32::from(length));
            bits.is_none_or(|bits| (length..=32).contains(&bits))
                && address.to_bits() & mask == Ipv4Addr::from(network).to_bits()
        };
        return [
            ([10, 0, 0, 0], 8),
            ([172, 16, 0, 0], 12),
            ([192, 168, 0, 0], 16),
            ([169, 254, 0, 0], 16),
            ([127, 0, 0, 0], 8),
        ]
        .into_iter()
        .any(|(network, length)| inside(network, length));
    }
    let Ok(address) = address.parse::<Ipv6Addr>() else { return false };
    let unique_local =
        address.segments()[0] & 0xfe00 == 0xfc00 && bits.is_none_or(|bits| (7..=128).contains(&bits));
    let link_local =
        address.segments()[0] & 0xffc0 == 0xfe80 && bits.is_none_or(|bits| (10..=128).contains(&bits));
    unique_local || link_local
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn network(json: &str) -> Network {
        serde_json::from_str(json).unwrap()
    }

    fn wanted(json: &str, internet: Option<bool>) -> Option<Egress> {
        network(json).egress(internet).unwrap().as_ref().map(egress::show)
    }

    #[test]
    fn rules_become_a_policy() {
        let mode = |mode| Some(Egress { mode, allow: Vec::new() });
        let list = |allow: &[&str]| {
            Some(Egress { mode: EgressMode::List, allow: allow.iter().map(ToString::to_string).collect() })
        };
        assert_eq!(wanted("{}", None), None);
        assert_eq!(wanted("{}", Some(true)), mode(EgressMode::Allow));
        assert_eq!(wanted("{}", Some(false)), mode(EgressMode::Deny));
        assert_eq!(wanted(r#"{"denyOut": ["0.0.0.0/0"]}"#, None), mode(EgressMode::Deny));
        assert_eq!(wanted(r#"{"allowOut": ["example.com"]}"#, None), mode(EgressMode::Allow));
        assert_eq!(wanted(r#"{"denyOut": ["10.0.0.0/8", "192.168.1.1"]}"#, None), mode(EgressMode::Allow));
        let some = r#"{"denyOut": ["0.0.0.0/0", "8.8.8.8"], "allowOut": ["1.1.1.1/32", "*.example.com"]}"#;
        assert_eq!(wanted(some, None), list(&["1.1.1.1/32", "*.example.com"]));
        assert_eq!(wanted(r#"{"allowOut": ["example.com"]}"#, Some(false)), list(&["example.com"]));
        assert_eq!(
            wanted(r#"{"denyOut": ["0.0.0.0/0"], "allowOut": ["0.0.0.0/0"]}"#, None),
            mode(EgressMode::Allow)
        );
        assert_eq!(wanted(r#"{"rules": {}, "egressProxy": null, "dnsServers": []}"#, None), None);
    }

    #[test]
    fn what_cannot_be_kept_is_refused_with_words() {
        for (json, says) in [
            (r#"{"denyOut": ["8.8.8.8"]}"#, "only all of the internet"),
            (r#"{"denyOut": ["10.0.0.0/7"]}"#, "only all of the internet"),
            (r#"{"denyOut": ["evil.example"]}"#, "only all of the internet"),
            (r#"{"rules": {"a.example": []}}"#, "network.rules is not supported"),
            (r#"{"egressProxy": {"address": "x"}}"#, "network.egressProxy is not supported"),
            (r#"{"dnsServers": ["1.1.1.1"]}"#, "network.dnsServers is not supported"),
            (r#"{"httpsPorts": [443]}"#, "network.httpsPorts is not supported"),
            (r#"{"denyOut": ["0.0.0.0/0"], "allowOut": ["exa mple"]}"#, "egress.allow"),
        ] {
            let error = network(json).egress(None).unwrap_err();
            assert_eq!(error.code().status(), 400);
            assert!(error.to_string().contains(says), "{json}: {error}");
        }
    }

    #[test]
    fn what_is_shown_can_be_asked_for() {
        for policy in
            [r#"{"denyOut": ["0.0.0.0/0"]}"#, r#"{"denyOut": ["0.0.0.0/0"], "allowOut": ["a.example"]}"#]
        {
            let egress = network(policy).egress(None).unwrap();
            let shown = serde_json::to_string(&show(egress.as_ref(), true, None)).unwrap();
            assert_eq!(network(&shown).egress(None).unwrap(), egress);
        }
    }

    proptest! {
        #[test]
        fn any_entry_may_come(entry in "\\PC{0,32}|[0-9.:/a-f]{0,24}") {
            let _ = network(&serde_json::json!({ "denyOut": [entry] }).to_string()).egress(None);
        }

        #[test]
        fn only_private_networks_are_never_reached(address in any::<[u8; 4]>(), bits in 0u8..=32) {
            let address = Ipv4Addr::from(address);
            let never = address.is_private() || address.is_link_local() || address.is_loopback();
            if is_never_reached(&format!("{address}/{bits}")) {
                prop_assert!(never && bits >= 8);
            }
            prop_assert_eq!(is_never_reached(&address.to_string()), never);
        }
    }
}
