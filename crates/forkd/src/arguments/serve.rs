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
    /// The TCP address, or `none`. One that is not the loopback's needs a token (forkd token create).
    #[arg(long, default_value = USUAL_LISTEN, value_parser = parse_listen)]
    pub listen: Listen,
    /// The Unix socket [default: forkd.sock among forkd's files].
    #[arg(long, value_name = "PATH", env = crate::daemon::SOCKET_VARIABLE)]
    pub socket: Option<PathBuf>,
    /// A group, by name or number, that may use the Unix socket too. Its members can do everything.
    #[arg(long, value_name = "GROUP")]
    pub socket_group: Option<String>,
    /// Speak TLS on the TCP address, with these certificates in PEM.
    #[arg(long, value_name = "PATH", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The certificate's key in PEM.
    #[arg(long, value_name = "PATH", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Leave a line of JSON in this file for every request.
    #[arg(long, value_name = "PATH")]
    pub audit_log: Option<PathBuf>,
    /// Which snapshots may be pulled from registries, by who has signed them; read anew for each pull
    /// [default: snapshot-policy.toml among forkd's files, if it is there].
    #[arg(long, value_name = "PATH", env = "FORKD_SNAPSHOT_POLICY")]
    pub snapshot_policy: Option<PathBuf>,
    /// The directory of sandboxes and snapshots [default: engine among forkd's files].
    #[arg(long, value_name = "PATH")]
    pub root: Option<PathBuf>,
    /// The most sandboxes at once.
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    pub max_sandboxes: u64,
    /// The most memory of one sandbox [default: the host's].
    #[arg(long, value_name = "SIZE", value_parser = parse_mib)]
    pub max_memory: Option<u64>,
    /// The most memory for snapshots that are kept ready to be forked; those that are not used go first, and are loaded
    /// again when they are [default: a quarter of the host's].
    #[arg(long, value_name = "SIZE", value_parser = parse_mib)]
    pub zygote_memory: Option<u64>,
    /// Disk space that is left free.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_mib)]
    pub free_disk: u64,
    /// Whether sandboxes have networks, which takes root: `auto` gives them some where that is possible, and refuses to make
    /// sandboxes with a network where it is not; `required` does not start there.
    #[arg(long, value_enum, default_value = "auto", env = "FORKD_NETWORK")]
    pub network: NetworkArgument,
    /// Networks that are kept ready for sandboxes [default: 128; 16 in an emulator].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(0..=1000))]
    pub networks_ready: Option<u16>,
    /// The most bytes a second that a sandbox may send, and may receive, if it is not given another limit [default: none].
    #[arg(long, value_name = "SIZE", value_parser = parse_mib)]
    pub bandwidth: Option<u64>,
    /// A server that is asked for the names that sandboxes may know; can be given more than once [default: the host's].
    #[arg(long, value_name = "ADDRESS")]
    pub dns: Vec<IpAddr>,
    /// The cgroup (v2) whose children keep sandboxes within their limits, or `none`: then only disks are limited
    /// [default: forkd, below the root of all].
    #[arg(long, value_name = "PATH", env = "FORKD_CGROUP", value_parser = parse_cgroup)]
    pub cgroup: Option<Cgroup>,
    #[command(flatten)]
    pub mcp: ServeMcpOptions,
    /// The user ids of VM processes, FIRST:COUNT: nobody else on this host may have them [default: 2000000001:65535].
    #[arg(long, value_name = "RANGE")]
    pub uid_range: Option<UidRange>,
    /// A library whose kernels and images are used beside the daemon's own, and only read.
    #[arg(long, value_name = "PATH")]
    pub shared_library: Option<PathBuf>,
    /// The first program of guests [default: the one beside forkd].
    #[arg(long, value_name = "PATH")]
    pub agent: Option<PathBuf>,
    /// Leave the terminal and the session that it was started in.
    #[arg(long, hide = true)]
    pub detached: bool,
    /// End, with all sandboxes, when nobody holds this daemon any more (forkd hold); stdin is the keeper's lock.
    #[arg(long, hide = true, conflicts_with_all = ["temporary", "root"])]
    pub private: bool,
    /// Serve one command, until stdin ends: the socket, and all else but the library, is in this directory, which is removed.
    #[arg(long, hide = true, value_name = "PATH")]
    pub temporary: Option<PathBuf>,
    /// The machine that guests of builds run in where this host's KVM cannot run them.
    #[arg(long, hide = true, value_name = "NAME", default_value = "default", requires = "temporary")]
    pub machine: Name,
    /// Whether children of a snapshot get the pages that they are known to use before they run. Which ones is learned once for
    /// each snapshot, from children that nobody sees.
    #[arg(
        long,
        value_name = "BOOL",
        env = "FORKD_PREFAULT",
        default_value = "true",
        value_parser = clap::builder::BoolishValueParser::new(),
        action = clap::ArgAction::Set
    )]
    pub prefault: bool,
    /// What is logged to stderr: a level, or levels by module, as in info,forkd_daemon=debug.
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
        _ => Err("an absolute path is needed, as in /sys/fs/cgroup/forkd, or none".to_owned()),
    }
}

fn parse_listen(text: &str) -> Result<Listen, String> {
    if text == "none" {
        return Ok(Listen::Nowhere);
    }
    let address = text.replace("localhost:", "127.0.0.1:").parse();
    address
        .map(Listen::At)
        .map_err(|_| "an address and a port are needed, as in 127.0.0.1:8889, or none".to_owned())
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
