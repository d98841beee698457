//! The kernel's command line: the few `forkd.` words that a guest needs before anybody can talk to it.
//!
//! | word | meaning | default |
//! |---|---|---|
//! | `forkd.root=DEVICE` | the root disk | `/dev/vda` |
//! | `forkd.rootfstype=TYPE` | its filesystem | `ext4` |
//! | `forkd.rootflags=OPTIONS` | mount options of the filesystem | none |
//! | `forkd.ro` | mounts it read-only | |
//! | `forkd.network=ADDRESS/PREFIX,GATEWAY` | the network, once for each family | none |
//! | `forkd.dns=ADDRESS` | the resolver, for this boot only: the image does not keep it | the image's |

use std::net::IpAddr;
use std::path::PathBuf;

use forkd_proto::agent::Network;

#[derive(Debug, PartialEq, Eq)]
pub struct BootOptions {
    pub root: PathBuf,
    pub filesystem: String,
    pub flags: String,
    pub read_only: bool,
    pub networks: Vec<Network>,
    pub resolvers: Vec<IpAddr>,
}

impl Default for BootOptions {
    fn default() -> Self {
        Self {
            root: "/dev/vda".into(),
            filesystem: "ext4".into(),
            flags: String::new(),
            read_only: false,
            networks: Vec::new(),
            resolvers: Vec::new(),
        }
    }
}

/// Unknown words are for other programs. What follows ` -- ` is for other programs.
pub fn parse(line: &str) -> BootOptions {
    let mut options = BootOptions::default();
    for word in line.split_whitespace().take_while(|word| *word != "--") {
        let Some(word) = word.strip_prefix("forkd.") else { continue };
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        match name {
            "root" if value.starts_with("/dev/") => options.root = value.into(),
            "rootfstype" if !value.is_empty() => options.filesystem = value.into(),
            "rootflags" => options.flags = value.into(),
            "ro" => options.read_only = true,
            "network" => options.networks.extend(network(value)),
            "dns" => options.resolvers.extend(value.parse::<IpAddr>()),
            _ => {}
        }
    }
    options
}

/// `ADDRESS/PREFIX,GATEWAY`.
fn network(value: &str) -> Option<Network> {
    let (address, gateway) = value.split_once(',')?;
    let (address, prefix) = address.split_once('/')?;
    Some(Network {
        interface: None,
        address: address.parse().ok()?,
        prefix: prefix.parse().ok()?,
        gateway: Some(gateway.parse().ok()?),
        dns: Vec::new(),
        mtu: None,
        mac: None,
        ipv6: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_words_count_and_others_do_not() {
        assert_eq!(parse("console=ttyS0 quiet root=/dev/sda"), BootOptions::default());
        let options = parse("quiet forkd.root=/dev/vdb forkd.rootflags=noatime,a=b forkd.ro forkd.new=1\n");
        let expected = BootOptions {
            root: "/dev/vdb".into(),
            flags: "noatime,a=b".into(),
            read_only: true,
            ..BootOptions::default()
        };
        assert_eq!(options, expected);
    }

    #[test]
    fn networks_are_told_one_by_one() {
        let options =
            parse("forkd.network=10.0.0.2/30,10.0.0.1 forkd.network=fd00::2/126,fd00::1 forkd.dns=10.0.0.1");
        let [four, six] = &options.networks[..] else { panic!("{options:?}") };
        assert_eq!((four.address.to_string().as_str(), four.prefix), ("10.0.0.2", 30));
        assert_eq!(six.gateway, Some("fd00::1".parse().unwrap()));
        assert_eq!(options.resolvers, ["10.0.0.1".parse::<IpAddr>().unwrap()]);
    }

    #[test]
    fn nonsense_changes_nothing() {
        for line in ["forkd.network=1.2.3.4", "forkd.network=1.2.3.4/x,1.2.3.5", "forkd.dns=here"] {
            assert_eq!(parse(line), BootOptions::default(), "{line}");
        }
        for line in ["forkd.root=", "forkd.root=vda", "forkd.root", "forkd.rootfstype=", "-- forkd.ro", ""] {
            assert_eq!(parse(line), BootOptions::default(), "{line}");
        }
    }
}
