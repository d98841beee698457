//! Where the host wants to go: `tcp ADDRESS:PORT`, `tcp localhost:PORT` or `unix /PATH`.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

#[derive(Debug, PartialEq, Eq)]
pub enum Target {
    /// Tried in this order.
    Tcp(Vec<SocketAddr>),
    Unix(PathBuf),
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("expected 'tcp ADDRESS:PORT' or 'unix /PATH'")]
pub struct TargetError;

/// sun_path, with its NUL.
const MAX_PATH: usize = 107;

pub fn parse(line: &[u8]) -> Result<Target, TargetError> {
    let text = std::str::from_utf8(line).map_err(|_| TargetError)?;
    let text = text.strip_suffix('\r').unwrap_or(text);
    match text.split_once(' ') {
        Some(("tcp", address)) => tcp(address).map(Target::Tcp).ok_or(TargetError),
        Some(("unix", path)) if path.starts_with('/') && path.len() <= MAX_PATH && !path.contains('\0') => {
            Ok(Target::Unix(path.into()))
        }
        _ => Err(TargetError),
    }
}

fn tcp(address: &str) -> Option<Vec<SocketAddr>> {
    let addresses: Vec<SocketAddr> = match address.strip_prefix("localhost:") {
        // Servers that listen on "localhost" listen on one of the two, and which one differs.
        Some(port) => {
            let port: u16 = port.parse().ok()?;
            vec![(Ipv4Addr::LOCALHOST, port).into(), (Ipv6Addr::LOCALHOST, port).into()]
        }
        None => vec![address.parse().ok()?],
    };
    addresses.iter().all(|address| address.port() != 0).then_some(addresses)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn addresses_and_paths() {
        assert_eq!(parse(b"tcp 10.0.0.1:80"), Ok(Target::Tcp(vec!["10.0.0.1:80".parse().unwrap()])));
        assert_eq!(parse(b"tcp [::1]:80\r"), Ok(Target::Tcp(vec!["[::1]:80".parse().unwrap()])));
        assert!(matches!(parse(b"tcp localhost:80"), Ok(Target::Tcp(both)) if both.len() == 2));
        assert_eq!(parse(b"unix /run/x y"), Ok(Target::Unix("/run/x y".into())));
        for wrong in [&b""[..], b"tcp", b"tcp ", b"tcp example.org:80", b"tcp 1.2.3.4:0", b"unix x", b"\xff"]
        {
            assert_eq!(parse(wrong), Err(TargetError), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn anything_may_come(line in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&line);
        }
    }
}
