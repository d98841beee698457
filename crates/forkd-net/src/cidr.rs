//! A network: an address and how many of its bits count.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// A network, such as `192.0.2.0/24`, or an address, which is a network of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cidr(IpNet);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CidrError {
    #[error("'{0}' is not an address or a network such as 192.0.2.0/24")]
    Malformed(String),
    #[error("'{0}' has bits beyond its prefix; did you mean {1}?")]
    Bits(String, Cidr),
}

impl Cidr {
    pub fn network(&self) -> IpAddr {
        self.0.addr()
    }

    pub fn prefix(&self) -> u8 {
        self.0.prefix_len()
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address)
    }
}

impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Cidr, CidrError> {
        let shown = || text.chars().take(80).collect::<String>();
        let network = match text.parse::<IpAddr>() {
            Ok(address) => IpNet::from(address),
            Err(_) => text.parse().map_err(|_| CidrError::Malformed(shown()))?,
        };
        match network.trunc() {
            meant if meant == network => Ok(Cidr(network)),
            meant => Err(CidrError::Bits(shown(), Cidr(meant))),
        }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

forkd_proto::as_text!(Cidr, CidrError);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_network_is_refused() {
        for text in ["", "/", "1.2.3.4/", "1.2.3.4/33", "1.2.3.4/+8", "::/129", "example.com", "1.2.3/8"] {
            assert!(matches!(text.parse::<Cidr>(), Err(CidrError::Malformed(_))), "{text}");
        }
        let error = "10.1.2.3/8".parse::<Cidr>().unwrap_err();
        assert_eq!(error.to_string(), "'10.1.2.3/8' has bits beyond its prefix; did you mean 10.0.0.0/8?");
        assert_eq!("192.0.2.7".parse::<Cidr>().unwrap().to_string(), "192.0.2.7/32");
        assert_eq!("0.0.0.0/0".parse::<Cidr>().unwrap().prefix(), 0);
    }

    #[test]
    fn members_are_of_the_same_family() {
        let cidr: Cidr = "192.0.2.0/24".parse().unwrap();
        assert!(cidr.contains([192, 0, 2, 255].into()) && !cidr.contains([192, 0, 3, 0].into()));
        let all: Cidr = "::/0".parse().unwrap();
        assert!(all.contains("2001:db8::1".parse().unwrap()) && !all.contains([192, 0, 2, 1].into()));
    }
}
