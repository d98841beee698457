//! A network: an address and how many of its bits count.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A network, such as `192.0.2.0/24`, or an address, which is a network of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cidr {
    network: IpAddr,
    prefix: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CidrError {
    #[error("'{0}' is no address and no network such as 192.0.2.0/24")]
    Malformed(String),
    #[error("'{0}' has bits beyond its prefix; did you mean {1}?")]
    Bits(String, Cidr),
}

impl Cidr {
    pub fn network(&self) -> IpAddr {
        self.network
    }

    pub fn prefix(&self) -> u8 {
        self.prefix
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        Cidr::covers(self.network, self.prefix, address)
    }

    pub(crate) fn covers(network: IpAddr, prefix: u8, address: IpAddr) -> bool {
        match (network, address) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let differs = u32::from(network) ^ u32::from(address);
                differs.checked_shr(32 - u32::from(prefix.min(32))).unwrap_or(0) == 0
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let differs = u128::from(network) ^ u128::from(address);
                differs.checked_shr(128 - u32::from(prefix.min(128))).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

/// The address with all bits beyond the prefix zero.
fn first(address: IpAddr, prefix: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0);
            IpAddr::V4((u32::from(address) & mask).into())
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix.min(128))).unwrap_or(0);
            IpAddr::V6((u128::from(address) & mask).into())
        }
    }
}

impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Cidr, CidrError> {
        let shown = || text.chars().take(80).collect::<String>();
        let malformed = || CidrError::Malformed(shown());
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| malformed())?;
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            None => longest,
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                digits.parse().ok().filter(|prefix| *prefix <= longest).ok_or_else(malformed)?
            }
            Some(_) => return Err(malformed()),
        };
        let meant = Cidr { network: first(address, prefix), prefix };
        if meant.network == address { Ok(meant) } else { Err(CidrError::Bits(shown(), meant)) }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.network, self.prefix)
    }
}

impl TryFrom<String> for Cidr {
    type Error = CidrError;

    fn try_from(text: String) -> Result<Cidr, CidrError> {
        text.parse()
    }
}

impl From<Cidr> for String {
    fn from(cidr: Cidr) -> String {
        cidr.to_string()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

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

    proptest! {
        #[test]
        fn members_agree_in_the_bits_that_count(bits in any::<u32>(), prefix in 0..=32u8, other in any::<u32>()) {
            let cidr = Cidr { network: first(Ipv4Addr::from(bits).into(), prefix), prefix };
            let same = (0..prefix).all(|bit| (bits >> (31 - bit)) & 1 == (other >> (31 - bit)) & 1);
            prop_assert_eq!(cidr.contains(Ipv4Addr::from(other).into()), same);
            prop_assert_eq!(cidr.to_string().parse::<Cidr>().unwrap(), cidr);
        }

        #[test]
        fn the_same_for_the_long_ones(bits in any::<u128>(), prefix in 0..=128u8, flip in 0..128u8) {
            let cidr = Cidr { network: first(Ipv6Addr::from(bits).into(), prefix), prefix };
            let other = bits ^ (1 << (127 - flip));
            prop_assert_eq!(cidr.contains(Ipv6Addr::from(other).into()), flip >= prefix);
            prop_assert!(!cidr.contains(Ipv4Addr::LOCALHOST.into()));
        }
    }
}
