//! What a sandbox may reach, as E2B says it and as forkd keeps it.
//!
//! ```text
//!   nothing said, or only what may be reached               the internet
//!   allow_internet_access: false, or all of it denied       nothing
//!   all of it denied, and what may be reached               that
//!   networks denied                                         the internet without them, but with what may be reached
//! ```
//!
//! What would have to change packets on their way is refused.

use forkd_api::hint::HintCode;
use forkd_api::sandbox::{Egress, EgressMode};
use forkd_net::{Cidr, CidrError};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use forkd_daemon::error::Answer;
use forkd_daemon::operations::checks::malformed;
use forkd_daemon::operations::egress;

/// Everything, as clients write it. It includes IPv6, while `::/0` is IPv6 only.
const ALL: &str = "0.0.0.0/0";

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
        let denied = deny.iter().map(|entry| denied_network(entry)).collect::<Answer<Vec<Cidr>>>()?;
        let denies_all = internet == Some(false) || deny.iter().any(|entry| is_all(entry));
        if allow.is_empty() && deny.is_empty() && internet.is_none() {
            return Ok(None);
        }
        let allows_all = allow.iter().any(|entry| is_all(entry));
        let wanted = match (denies_all, denied.is_empty()) {
            _ if allows_all => EgressMode::Allow.into(),
            (true, _) if allow.is_empty() => EgressMode::Deny.into(),
            (true, _) => Egress { mode: EgressMode::List, allow: allow.to_vec(), deny: Vec::new() },
            (false, true) => EgressMode::Allow.into(),
            (false, false) => {
                let deny = denied.iter().map(ToString::to_string).collect();
                Egress { mode: EgressMode::Allow, allow: allow.to_vec(), deny }
            }
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
    let deny_all = || vec![ALL.to_owned()];
    let (allow_out, deny_out) = match policy.map(egress::show) {
        None => (Vec::new(), Vec::new()),
        Some(Egress { mode: EgressMode::Allow, allow, deny }) => (short(allow), short(deny)),
        Some(Egress { mode: EgressMode::Deny, .. }) => (Vec::new(), deny_all()),
        Some(Egress { mode: EgressMode::List, allow, .. }) => (short(allow), deny_all()),
    };
    ShownNetwork { allow_public_traffic: public_traffic, allow_out, deny_out, mask_request_host: mask_host }
}

/// Addresses as clients write them: `8.8.8.8`, not `8.8.8.8/32`.
fn short(entries: Vec<String>) -> Vec<String> {
    let short = |entry: String| match entry
        .parse::<Cidr>()
        .map(|network| (network.network(), network.prefix()))
    {
        Ok((address, prefix)) if prefix == if address.is_ipv4() { 32 } else { 128 } => address.to_string(),
        _ => entry,
    };
    entries.into_iter().map(short).collect()
}

fn is_all(entry: &str) -> bool {
    entry.trim() == ALL
}

/// A denied network or address. E2B takes networks whose address has bits beyond the prefix, and so does this.
fn denied_network(entry: &str) -> Answer<Cidr> {
    match entry.trim().parse() {
        Ok(network) | Err(CidrError::Bits(_, network)) => Ok(network),
        Err(CidrError::Malformed(text)) => {
            let message = format!("denyOut: '{text}' is not an address or a network such as 192.0.2.0/24");
            Err(malformed(message).hint(HintCode::AllowInstead))
        }
    }
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
        let texts = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
        let mode = |mode: EgressMode| Some(mode.into());
        let list =
            |allow: &[&str]| Some(Egress { mode: EgressMode::List, allow: texts(allow), deny: Vec::new() });
        let except = |deny: &[&str], allow: &[&str]| {
            Some(Egress { mode: EgressMode::Allow, allow: texts(allow), deny: texts(deny) })
        };
        assert_eq!(wanted("{}", None), None);
        assert_eq!(wanted("{}", Some(true)), mode(EgressMode::Allow));
        assert_eq!(wanted("{}", Some(false)), mode(EgressMode::Deny));
        assert_eq!(wanted(r#"{"denyOut": ["0.0.0.0/0"]}"#, None), mode(EgressMode::Deny));
        assert_eq!(wanted(r#"{"allowOut": ["example.com"]}"#, None), mode(EgressMode::Allow));
        let some = r#"{"denyOut": ["0.0.0.0/0", "8.8.8.8"], "allowOut": ["1.1.1.1/32", "*.example.com"]}"#;
        assert_eq!(wanted(some, None), list(&["1.1.1.1/32", "*.example.com"]));
        assert_eq!(wanted(r#"{"allowOut": ["example.com"]}"#, Some(false)), list(&["example.com"]));
        assert_eq!(
            wanted(r#"{"denyOut": ["0.0.0.0/0"], "allowOut": ["0.0.0.0/0"]}"#, None),
            mode(EgressMode::Allow)
        );
        assert_eq!(wanted(r#"{"rules": {}, "egressProxy": null, "dnsServers": []}"#, None), None);

        // Networks one by one, also with bits beyond their prefix, and with what is allowed of them.
        assert_eq!(wanted(r#"{"denyOut": ["8.8.8.8"]}"#, None), except(&["8.8.8.8/32"], &[]));
        assert_eq!(wanted(r#"{"denyOut": ["10.1.2.3/8"]}"#, Some(true)), except(&["10.0.0.0/8"], &[]));
        let both = r#"{"denyOut": ["8.0.0.0/8", "2a00::/16"], "allowOut": ["8.8.8.8/32", "dns.example"]}"#;
        assert_eq!(wanted(both, None), except(&["8.0.0.0/8", "2a00::/16"], &["8.8.8.8/32", "dns.example"]));
        assert_eq!(wanted(r#"{"denyOut": ["8.8.8.8"]}"#, Some(false)), mode(EgressMode::Deny));

        // All of IPv6 is not all.
        assert_eq!(wanted(r#"{"denyOut": ["::/0"]}"#, None), except(&["::/0"], &[]));
        assert_eq!(wanted(r#"{"denyOut": ["::/0", "0.0.0.0/0"]}"#, None), mode(EgressMode::Deny));
        assert_eq!(wanted(r#"{"denyOut": ["0.0.0.0/0"], "allowOut": ["::/0"]}"#, None), list(&["::/0"]));
    }

    #[test]
    fn what_cannot_be_kept_is_refused_with_words() {
        let many = serde_json::json!({ "denyOut": vec!["8.8.8.8"; 257] }).to_string();
        for (json, says) in [
            (r#"{"denyOut": ["evil.example"]}"#, "denyOut: 'evil.example' is not an address or a network"),
            (r#"{"denyOut": ["0.0.0.0/0", "8.8.8.8:53"]}"#, "denyOut: '8.8.8.8:53' is not"),
            (many.as_str(), "256 entries"),
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
        for policy in [
            r#"{"allowPublicTraffic":true,"allowOut":[],"denyOut":["0.0.0.0/0"]}"#,
            r#"{"allowPublicTraffic":true,"allowOut":["a.example","9.9.9.9"],"denyOut":["0.0.0.0/0"]}"#,
            r#"{"allowPublicTraffic":true,"allowOut":["8.8.4.4"],"denyOut":["8.0.0.0/8","9.9.9.9","2a00::/32","::1"]}"#,
        ] {
            let egress = network(policy).egress(None).unwrap();
            assert_eq!(serde_json::to_string(&show(egress.as_ref(), true, None)).unwrap(), policy);
        }
    }

    proptest! {
        #[test]
        fn any_entry_may_come(entry in "\\PC{0,32}|[0-9.:/a-f]{0,24}") {
            let _ = network(&serde_json::json!({ "denyOut": [entry] }).to_string()).egress(None);
        }
    }
}
