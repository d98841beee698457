//! Host names of sandboxes' ports: `8000-i1abc.example.org`.

/// What a host name says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Named<'a> {
    /// A port of a sandbox.
    Port(u16, &'a str),
    /// It has the form, and a port that is none.
    NoPort,
    /// Nothing about a sandbox.
    Other,
}

/// Reads the first label of an authority: a port, a dash, an id. Only the form counts: names of hosts that are not sandboxes,
/// as `10-0-0-1.example.org`, have more dashes or none.
pub(crate) fn parse(authority: &str) -> Named<'_> {
    let Some((label, domain)) = authority.split_once('.') else { return Named::Other };
    let Some((port, id)) = label.split_once('-') else { return Named::Other };
    if domain.is_empty() || !port.bytes().all(|byte| byte.is_ascii_digit()) || port.is_empty() || !is_id(id) {
        return Named::Other;
    }
    match port.parse() {
        Ok(0) | Err(_) => Named::NoPort,
        Ok(port) => Named::Port(port, id),
    }
}

/// Whether a text can be the id of a sandbox.
pub(crate) fn is_id(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        && text.bytes().any(|byte| byte.is_ascii_lowercase())
}

/// The domain below which the ports of sandboxes have names, from the authority that a client knows this daemon by. Addresses
/// of the loopback have one, which browsers and curl bring to the loopback; other addresses have none.
pub(crate) fn domain_of(authority: &str) -> Option<String> {
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => {
            (host, format!(":{port}"))
        }
        _ => (authority, String::new()),
    };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    if let Ok(address) = bare.parse::<std::net::IpAddr>() {
        return address.is_loopback().then(|| format!("localhost{port}"));
    }
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-".contains(&byte);
    if host.is_empty() || host.len() > 253 || !host.bytes().all(plain) {
        return None;
    }
    Some(format!("{}{port}", host.strip_prefix("api.").unwrap_or(host)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ports_of_sandboxes_have_names() {
        assert_eq!(parse("8000-i1a.localhost:8889"), Named::Port(8000, "i1a"));
        assert_eq!(parse("49983-abc.my.domain"), Named::Port(49983, "abc"));
        for wrong in ["0-i1.x", "65536-i1.x", "99999999999-i1.x"] {
            assert_eq!(parse(wrong), Named::NoPort, "{wrong}");
        }
        for other in [
            "",
            "localhost:8889",
            "127.0.0.1",
            "api.my.domain",
            "10-0-0-1.example.org",
            "80-1.example.org",
            "8000-i1",
            "8000-I1.x",
            "-i1.x",
            "x-i1.x",
            "8000-i_1.x",
            "8000-i1.",
            "[::1]:8889",
        ] {
            assert_eq!(parse(other), Named::Other, "{other}");
        }
    }

    #[test]
    fn a_domain_is_what_a_client_knows_the_daemon_by() {
        for (authority, domain) in [
            ("127.0.0.1:8889", Some("localhost:8889")),
            ("[::1]:8889", Some("localhost:8889")),
            ("localhost", Some("localhost")),
            ("api.my.domain", Some("my.domain")),
            ("forkd.example:443", Some("forkd.example:443")),
            ("192.0.2.1:80", None),
            ("", None),
            ("a b", None),
        ] {
            assert_eq!(domain_of(authority).as_deref(), domain, "{authority}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(port in 1..=u16::MAX, id in "i[a-z0-9]{1,20}", domain in "[a-z]{1,8}(\\.[a-z]{1,8}){0,2}(:[0-9]{1,5})?") {
            let authority = format!("{port}-{id}.{domain}");
            prop_assert_eq!(parse(&authority), Named::Port(port, &id));
        }

        #[test]
        fn any_text_may_come(text in "\\PC{0,64}") {
            let _ = (parse(&text), domain_of(&text));
        }
    }
}
