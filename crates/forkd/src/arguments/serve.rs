//! `forkd serve`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use forkd_engine::UidRange;
use forkd_machine::Name;

use super::ServeMcpOptions;
use crate::size::parse_mib;

/// Where a daemon listens for TCP if nothing else is said.
pub const USUAL_LISTEN: &str = "127.0.0.1:8889";

#[derive(Debug, Args)]
pub struct ServeOptions {
    /// TCP address to listen on, or `none`. Addresses other than loopback need a token (forkd token create).
    #[arg(long, default_value = USUAL_LISTEN, value_parser = parse_listen)]
    pub listen: Listen,
    /// Path of the Unix socket [default: forkd.sock in forkd's home].
    #[arg(long, value_name = "PATH", env = crate::daemon::SOCKET_VARIABLE)]
    pub socket: Option<PathBuf>,
    /// Group, by name or number, that may also use the Unix socket. Its members are admins.
    #[arg(long, value_name = "GROUP")]
    pub socket_group: Option<String>,
    /// Certificate chain (PEM); the TCP port then accepts TLS only. Without it, the port accepts plain HTTP, and TLS with certificates
    /// of a CA that the daemon creates in forkd's home.
    #[arg(long, value_name = "PATH", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Private key (PEM) of the certificate.
    #[arg(long, value_name = "PATH", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Domain of this daemon, for certificates of its own CA: NAME and *.NAME; may be repeated
    /// [default: localhost and *.localhost].
    #[arg(long, value_name = "NAME", conflicts_with = "tls_cert")]
    pub domain: Vec<String>,
    /// Append a line of JSON to this file for each request.
    #[arg(long, value_name = "PATH")]
    pub audit_log: Option<PathBuf>,
    /// Policy file: the signatures that pulled snapshots need. Read again for each pull
    /// [default: snapshot-policy.toml in forkd's home, if it exists].
    #[arg(long, value_name = "PATH", env = "FORKD_SNAPSHOT_POLICY")]
    pub snapshot_policy: Option<PathBuf>,
    /// Directory for sandboxes and snapshots [default: engine in forkd's home].
    #[arg(long, value_name = "PATH")]
    pub root: Option<PathBuf>,
    /// Maximum number of sandboxes.
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    pub max_sandboxes: u64,
    /// Maximum memory of one sandbox, in MiB or with a unit (512, 2G) [default: the host's memory].
    #[arg(long, value_name = "SIZE", value_parser = parse_mib)]
    pub max_memory: Option<u64>,
    /// Memory for snapshots that are kept loaded, in MiB or with a unit; the least recently used are unloaded first
    /// [default: a quarter of the host's memory].
    #[arg(long, value_name = "SIZE", value_parser = parse_mib)]
    pub zygote_memory: Option<u64>,
    /// Disk space to keep free, in MiB or with a unit.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_mib)]
    pub free_disk: u64,
    /// Networks of sandboxes, which need root. `auto`: set up networks if possible, otherwise refuse sandboxes that need one;
    /// `required`: exit if networks cannot be set up.
    #[arg(long, value_enum, default_value = "auto", env = "FORKD_NETWORK")]
    pub network: NetworkArgument,
    /// Number of networks to prepare in advance [default: 128; 16 if emulated].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(0..=1000))]
    pub networks_ready: Option<u16>,
    /// Default limit of a sandbox's network traffic per second in each direction, in MiB or with a unit [default: unlimited].
    #[arg(long, value_name = "SIZE", value_parser = parse_mib)]
    pub bandwidth: Option<u64>,
    /// DNS server for sandboxes; may be repeated [default: the host's].
    #[arg(long, value_name = "ADDRESS")]
    pub dns: Vec<IpAddr>,
    /// cgroup (v2) to create the cgroups of sandboxes in, or `none`: then only disk use is limited
    /// [default: forkd below the root cgroup].
    #[arg(long, value_name = "PATH", env = "FORKD_CGROUP", value_parser = parse_cgroup)]
    pub cgroup: Option<Cgroup>,
    #[command(flatten)]
    pub mcp: ServeMcpOptions,
    /// User ids for VM processes, FIRST:COUNT, not used by anything else on this host [default: 2000000001:65535].
    #[arg(long, value_name = "RANGE")]
    pub uid_range: Option<UidRange>,
    /// Second library of kernels and images, used read-only.
    #[arg(long, value_name = "PATH")]
    pub shared_library: Option<PathBuf>,
    /// The guest agent binary [default: forkd-agent next to forkd].
    #[arg(long, value_name = "PATH")]
    pub agent: Option<PathBuf>,
    /// Leave the terminal and the session that it was started in.
    #[arg(long, hide = true)]
    pub detached: bool,
    /// End, with all sandboxes, when no client holds this private daemon any more (forkd hold); stdin is the keeper's lock.
    #[arg(long, hide = true, conflicts_with_all = ["temporary", "root"])]
    pub private: bool,
    /// Serve one command, until stdin ends: the socket, and all else but the library, is in this directory, which is removed.
    #[arg(long, hide = true, value_name = "PATH")]
    pub temporary: Option<PathBuf>,
    /// The machine that guests of builds run in where this host's KVM cannot run them.
    #[arg(long, hide = true, value_name = "NAME", default_value = "default", requires = "temporary")]
    pub machine: Name,
    /// Map the memory pages that forks of a snapshot are known to touch before they run. The list is learned once per snapshot,
    /// from hidden forks.
    #[arg(
        long,
        value_name = "BOOL",
        env = "FORKD_PREFAULT",
        default_value = "true",
        value_parser = clap::builder::BoolishValueParser::new(),
        action = clap::ArgAction::Set
    )]
    pub prefault: bool,
    /// Log filter for stderr: a level, or levels by module (info,forkd_daemon=debug).
    #[arg(long, value_name = "FILTER", env = "FORKD_LOG", default_value = "info")]
    pub log: String,
}

/// Whether sandboxes have networks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NetworkArgument {
    Auto,
    Required,
    None,
}

/// Where to listen for TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listen {
    Nowhere,
    At(SocketAddr),
}

/// Where the cgroups of VM processes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cgroup {
    Nowhere,
    At(PathBuf),
}

fn parse_cgroup(text: &str) -> Result<Cgroup, String> {
    match text {
        "none" => Ok(Cgroup::Nowhere),
        path if path.starts_with('/') => Ok(Cgroup::At(path.into())),
        _ => Err("expected an absolute path such as /sys/fs/cgroup/forkd, or none".to_owned()),
    }
}

fn parse_listen(text: &str) -> Result<Listen, String> {
    if text == "none" {
        return Ok(Listen::Nowhere);
    }
    let address = text.replace("localhost:", "127.0.0.1:").parse();
    address
        .map(Listen::At)
        .map_err(|_| "expected an address and a port such as 127.0.0.1:8889, or none".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_is_a_path_or_none() {
        assert_eq!(parse_cgroup("none"), Ok(Cgroup::Nowhere));
        assert_eq!(parse_cgroup("/sys/fs/cgroup/a"), Ok(Cgroup::At("/sys/fs/cgroup/a".into())));
        assert!(parse_cgroup("forkd").is_err() && parse_cgroup("").is_err());
    }

    #[test]
    fn addresses_have_ports() {
        assert_eq!(parse_listen("none"), Ok(Listen::Nowhere));
        for good in ["127.0.0.1:1", "localhost:1", "[::1]:8889", "0.0.0.0:80"] {
            assert!(parse_listen(good).is_ok(), "{good}");
        }
        for bad in ["", "127.0.0.1", ":8889", "8889", "host:1", "localhost:x"] {
            assert!(parse_listen(bad).is_err(), "{bad}");
        }
    }
}
