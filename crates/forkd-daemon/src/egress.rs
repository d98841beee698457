//! What a sandbox may reach, as the API says it and as the engine has it.

use forkd_api::event::{DropReason, What};
use forkd_api::sandbox::{Egress, EgressMode};
use forkd_net::{Cidr, Dropped, EgressEntry, Exceptions, Policy, Reason};

use crate::error::Answer;
use crate::routes::checks::malformed;

pub fn convert(wanted: Egress) -> Answer<forkd_net::Egress> {
    let Egress { mode, allow, deny } = wanted;
    if mode != EgressMode::Allow && !deny.is_empty() {
        return Err(malformed("egress.deny needs the mode allow"));
    }
    if mode != EgressMode::List && deny.is_empty() && !allow.is_empty() {
        return Err(malformed("egress.allow needs the mode list, or the mode allow with egress.deny"));
    }
    let egress = match mode {
        EgressMode::Allow if !deny.is_empty() => {
            forkd_net::Egress::Except(Exceptions { deny: networks(&deny)?, allow: entries(&allow)? })
        }
        EgressMode::Allow => forkd_net::Egress::Allow,
        EgressMode::Deny => forkd_net::Egress::Deny,
        EgressMode::List => forkd_net::Egress::List(entries(&allow)?),
    };
    let policy = Policy { egress, bandwidth: None };
    policy.check().map_err(|error| malformed(format!("egress: {error}")))?;
    Ok(policy.egress)
}

fn entries(allow: &[String]) -> Answer<Vec<EgressEntry>> {
    let entry = |text: &String| text.parse().map_err(|error| malformed(format!("egress.allow: {error}")));
    allow.iter().map(entry).collect()
}

fn networks(deny: &[String]) -> Answer<Vec<Cidr>> {
    let network = |text: &String| text.parse().map_err(|error| malformed(format!("egress.deny: {error}")));
    deny.iter().map(network).collect()
}

pub fn show(egress: &forkd_net::Egress) -> Egress {
    match egress {
        forkd_net::Egress::Allow => EgressMode::Allow.into(),
        forkd_net::Egress::Deny => EgressMode::Deny.into(),
        forkd_net::Egress::List(entries) => {
            Egress { mode: EgressMode::List, allow: texts(entries), deny: Vec::new() }
        }
        forkd_net::Egress::Except(Exceptions { deny, allow }) => {
            Egress { mode: EgressMode::Allow, allow: texts(allow), deny: texts(deny) }
        }
    }
}

fn texts(list: &[impl ToString]) -> Vec<String> {
    list.iter().map(ToString::to_string).collect()
}

/// An event.
pub fn dropped(id: String, dropped: Dropped) -> What {
    let Dropped { reason, protocol, destination, port, name } = dropped;
    let reason = match reason {
        Reason::Refused => DropReason::Refused,
        Reason::Spoofed => DropReason::Spoofed,
        Reason::OverLimit => DropReason::OverLimit,
    };
    let protocol = protocol.map(|number| match number {
        1 => "icmp".into(),
        6 => "tcp".into(),
        17 => "udp".into(),
        58 => "icmpv6".into(),
        other => other.to_string(),
    });
    What::Dropped { id, reason, protocol, destination: destination.map(|to| to.to_string()), port, name }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(allow: &[&str]) -> Egress {
        Egress { mode: EgressMode::List, allow: texts(allow), deny: Vec::new() }
    }

    fn except(deny: &[&str], allow: &[&str]) -> Egress {
        Egress { mode: EgressMode::Allow, allow: texts(allow), deny: texts(deny) }
    }

    #[test]
    fn what_is_shown_is_what_was_asked_for() {
        for egress in [
            Egress::default(),
            EgressMode::Deny.into(),
            list(&[]),
            except(&["8.8.8.0/24", "2001:db8::/32"], &["8.8.8.8/32:443", "*.example.com"]),
            list(&["10.1.0.0/16", "192.0.2.7/32:443", "*.example.com:80,8000-8100", "[2001:db8::/32]:443"]),
        ] {
            assert_eq!(show(&convert(egress.clone()).unwrap()), egress);
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_words() {
        let denied = Egress { mode: EgressMode::Deny, ..list(&["example.com"]) };
        let allowed = Egress { mode: EgressMode::Allow, ..list(&["example.com"]) };
        let both = Egress { mode: EgressMode::List, ..except(&["8.8.8.8"], &["example.com"]) };
        let many_denied: Vec<&str> = vec!["8.8.8.8"; 257];
        let many: Vec<&str> = vec!["example.com"; 257];
        for (wrong, says) in [
            (denied, "needs the mode list"),
            (list(&["10.0.0.1/8"]), "egress.allow"),
            (list(&["example.com:0"]), "not a port"),
            (list(&["exa mple"]), "egress.allow"),
            (list(&many), "256 entries"),
            (allowed, "the mode allow with egress.deny"),
            (both, "egress.deny needs the mode allow"),
            (except(&["example.com"], &[]), "egress.deny: 'example.com'"),
            (except(&["8.8.8.8:53"], &[]), "egress.deny"),
            (except(&["8.8.8.8/8"], &[]), "did you mean 8.0.0.0/8?"),
            (except(&many_denied, &[]), "256 entries"),
        ] {
            let error = convert(wrong).unwrap_err();
            assert_eq!(error.code().status(), 400);
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}
