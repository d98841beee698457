//! What a sandbox may reach, as the API says it and as the engine has it.

use forkd_api::event::{DropReason, What};
use forkd_api::sandbox::{Egress, EgressMode};
use forkd_net::{Dropped, Entry, Policy, Reason};

use crate::error::Answer;
use crate::routes::checks::malformed;

pub fn convert(wanted: Egress) -> Answer<forkd_net::Egress> {
    let Egress { mode, allow } = wanted;
    if mode != EgressMode::List && !allow.is_empty() {
        return Err(malformed("egress.allow is for the mode list"));
    }
    let egress = match mode {
        EgressMode::Allow => forkd_net::Egress::Allow,
        EgressMode::Deny => forkd_net::Egress::Deny,
        EgressMode::List => forkd_net::Egress::List(entries(&allow)?),
    };
    let policy = Policy { egress, bandwidth: None };
    policy.check().map_err(|error| malformed(format!("egress.allow: {error}")))?;
    Ok(policy.egress)
}

fn entries(allow: &[String]) -> Answer<Vec<Entry>> {
    let entry = |text: &String| text.parse().map_err(|error| malformed(format!("egress.allow: {error}")));
    allow.iter().map(entry).collect()
}

pub fn show(egress: &forkd_net::Egress) -> Egress {
    match egress {
        forkd_net::Egress::Allow => Egress { mode: EgressMode::Allow, allow: Vec::new() },
        forkd_net::Egress::Deny => Egress { mode: EgressMode::Deny, allow: Vec::new() },
        forkd_net::Egress::List(entries) => {
            Egress { mode: EgressMode::List, allow: entries.iter().map(ToString::to_string).collect() }
        }
    }
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
        Egress { mode: EgressMode::List, allow: allow.iter().map(ToString::to_string).collect() }
    }

    #[test]
    fn what_is_shown_is_what_was_asked_for() {
        for egress in [
            Egress::default(),
            Egress { mode: EgressMode::Deny, allow: Vec::new() },
            list(&[]),
            list(&["10.1.0.0/16", "192.0.2.7/32:443", "*.example.com:80,8000-8100", "[2001:db8::/32]:443"]),
        ] {
            assert_eq!(show(&convert(egress.clone()).unwrap()), egress);
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_words() {
        let denied = Egress { mode: EgressMode::Deny, allow: vec!["example.com".into()] };
        let many: Vec<&str> = vec!["example.com"; 257];
        for (wrong, says) in [
            (denied, "for the mode list"),
            (list(&["10.0.0.1/8"]), "egress.allow"),
            (list(&["example.com:0"]), "no port"),
            (list(&["exa mple"]), "egress.allow"),
            (list(&many), "256 entries"),
        ] {
            let error = convert(wrong).unwrap_err();
            assert_eq!(error.code().status(), 400);
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}
