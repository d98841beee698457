//! Where a daemon is.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The port of daemons that listen on TCP.
const PORT: u16 = 8889;

/// `unix:///path`, `http://host:port` or `https://host:port`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    Unix(PathBuf),
    Tcp {
        tls: bool,
        /// A name or an address, without brackets.
        host: String,
        port: u16,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected unix:///path, http://host:port or https://host:port")]
pub struct AddressError;

impl Address {
    /// Whether what is sent there stays on this host.
    pub fn is_local(&self) -> bool {
        match self {
            Address::Unix(_) => true,
            Address::Tcp { host, .. } => {
                host == "localhost"
                    || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
            }
        }
    }

    /// What goes into the header `host`.
    pub(crate) fn authority(&self) -> String {
        match self {
            Address::Unix(_) => "localhost".into(),
            Address::Tcp { host, port, .. } if host.contains(':') => format!("[{host}]:{port}"),
            Address::Tcp { host, port, .. } => format!("{host}:{port}"),
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Address, AddressError> {
        if let Some(path) = text.strip_prefix("unix://") {
            let fits = path.starts_with('/') && !path.contains('\0');
            return fits.then(|| Address::Unix(path.into())).ok_or(AddressError);
        }
        let (tls, rest) = match (text.strip_prefix("http://"), text.strip_prefix("https://")) {
            (Some(rest), _) => (false, rest),
            (_, Some(rest)) => (true, rest),
            _ => return Err(AddressError),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = match rest.strip_prefix('[') {
            Some(bracketed) => {
                let (host, port) = bracketed.split_once(']').ok_or(AddressError)?;
                host.parse::<std::net::Ipv6Addr>().map_err(|_| AddressError)?;
                let port =
                    if port.is_empty() { None } else { Some(port.strip_prefix(':').ok_or(AddressError)?) };
                (host, port)
            }
            None => match rest.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (rest, None),
            },
        };
        let name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        if host.is_empty() || !(rest.starts_with('[') || host.bytes().all(name)) {
            return Err(AddressError);
        }
        let port = match port {
            Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
                port.parse().ok().filter(|port| *port > 0).ok_or(AddressError)?
            }
            Some(_) => return Err(AddressError),
            None => PORT,
        };
        Ok(Address::Tcp { tls, host: host.to_owned(), port })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(formatter, "unix://{}", path.display()),
            Address::Tcp { tls, .. } => {
                write!(formatter, "{}://{}", if *tls { "https" } else { "http" }, self.authority())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn addresses_are_read_and_written_alike() {
        for text in
            ["unix:///run/forkd.sock", "http://127.0.0.1:8889", "https://host.example:1", "http://[::1]:8889"]
        {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        let short: Address = "https://host/".parse().unwrap();
        assert_eq!(short.to_string(), "https://host:8889");
        assert!(!short.is_local());
        for local in ["http://localhost:1", "http://[::1]:1", "http://127.1.2.3", "unix:///x"] {
            assert!(local.parse::<Address>().unwrap().is_local(), "{local}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for wrong in [
            "",
            "host:1",
            "unix://x",
            "unix://",
            "http://",
            "http://:1",
            "http://h:",
            "http://h:0",
            "http://h:65536",
            "http://h:+1",
            "http://u@h",
            "http://h/path",
            "http://h?x",
            "http://[::1",
            "http://[::1]1",
            "http://[x]:1",
            "ftp://h",
            "http://h h",
            "http://::1",
        ] {
            assert_eq!(wrong.parse::<Address>(), Err(AddressError), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn anything_that_is_read_is_written_so_that_it_is_read_again(text in "(unix|http|https)://[a-z0-9:/.\\[\\]@-]{0,20}") {
            if let Ok(address) = text.parse::<Address>() {
                prop_assert_eq!(address.to_string().parse::<Address>(), Ok(address));
            }
        }
    }
}
