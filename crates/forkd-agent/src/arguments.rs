//! The command line: PID 1 of a guest needs none, everybody else says `serve` or `--version`.

use std::net::SocketAddr;
use std::str::FromStr;

pub const USAGE: &str = "usage: forkd-agent serve --envd WHERE --interpreter WHERE [--dial WHERE]   (WHERE: IP:PORT or vsock:PORT)\n       forkd-agent --version\n       forkd-agent (as PID 1 of a guest)";

/// The kernel hands words of its command line that it does not know to PID 1, so PID 1's arguments are not ours.
const INIT: u32 = 1;

#[derive(Debug, PartialEq, Eq)]
pub enum Role {
    Init,
    Serve(Options),
    Version,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Options {
    pub envd: Address,
    pub interpreter: Address,
    /// The way to other ports, which nobody needs who is on the same network.
    pub dial: Option<Address>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Address {
    Tcp(SocketAddr),
    Vsock(u32),
}

impl FromStr for Address {
    type Err = UsageError;

    fn from_str(text: &str) -> Result<Self, UsageError> {
        match text.strip_prefix("vsock:") {
            Some(port) => port.parse().map(Self::Vsock).map_err(|_| UsageError),
            None => text.parse().map(Self::Tcp).map_err(|_| UsageError),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub struct UsageError;

/// `serve` and `--version` count even as PID 1: that is a container. No kernel of a guest is given such words.
pub fn parse(arguments: &[String], process_id: u32) -> Result<Role, UsageError> {
    match arguments.split_first() {
        Some((verb, options)) if verb == "serve" => serve(options).map(Role::Serve),
        Some((verb, [])) if verb == "--version" => Ok(Role::Version),
        _ if process_id == INIT => Ok(Role::Init),
        _ => Err(UsageError),
    }
}

fn serve(arguments: &[String]) -> Result<Options, UsageError> {
    let (mut envd, mut interpreter, mut dial) = (None, None, None);
    let mut rest = arguments.iter();
    while let Some(name) = rest.next() {
        let value = rest.next().ok_or(UsageError)?;
        let place = match name.as_str() {
            "--envd" => &mut envd,
            "--interpreter" => &mut interpreter,
            "--dial" => &mut dial,
            _ => return Err(UsageError),
        };
        *place = Some(value.parse()?);
    }
    Ok(Options { envd: envd.ok_or(UsageError)?, interpreter: interpreter.ok_or(UsageError)?, dial })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn serve_needs_both_addresses() {
        let line = words("serve --envd 127.0.0.1:1 --interpreter vsock:2");
        let address = || "127.0.0.1:1".parse().unwrap();
        let expected = Options { envd: address(), interpreter: Address::Vsock(2), dial: None };
        assert_eq!(parse(&line, 77), Ok(Role::Serve(expected)));
        let line = words("serve --envd 127.0.0.1:1 --interpreter 127.0.0.1:1 --dial 127.0.0.1:1");
        let expected = Options { envd: address(), interpreter: address(), dial: Some(address()) };
        assert_eq!(parse(&line, 77), Ok(Role::Serve(expected)));
        for wrong in [
            "",
            "serve",
            "serve --envd 127.0.0.1:1",
            "serve --envd x --interpreter y",
            "serve --envd vsock:-1 --interpreter vsock:1",
            "listen",
        ] {
            assert_eq!(parse(&words(wrong), 77), Err(UsageError), "{wrong}");
        }
    }

    #[test]
    fn pid_1_ignores_what_the_kernel_hands_over() {
        assert_eq!(parse(&words("splash quiet=1"), 1), Ok(Role::Init));
        assert_eq!(parse(&words("quiet --version"), 1), Ok(Role::Init));
    }

    #[test]
    fn the_version_is_printed_as_any_process() {
        assert_eq!(parse(&words("--version"), 77), Ok(Role::Version));
        assert_eq!(parse(&words("--version"), 1), Ok(Role::Version));
    }
}
