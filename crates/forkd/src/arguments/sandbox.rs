//! Verbs for sandboxes, from their beginning to their end.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use forkd_api::sandbox::{Egress, EgressMode, Limits, OnExpiry, SandboxState};

use super::{DaemonOptions, Output, parse_pair, parse_seconds};
use crate::size::parse_mib;

#[derive(Debug, Args)]
pub struct ForkOptions {
    /// A snapshot; or a sandbox, which is branched first and keeps running; or registry.example/team/app:tag, a snapshot that is pulled
    /// if it is missing.
    #[arg(value_name = "SNAPSHOT|SANDBOX|REFERENCE")]
    pub source: String,
    /// Number of sandboxes.
    #[arg(short, long = "n", value_name = "COUNT", default_value_t = 1)]
    pub n: u32,
    /// Keep the sandboxes that started even if others failed.
    #[arg(long)]
    pub partial: bool,
    #[command(flatten)]
    pub given: Given,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

/// What a new sandbox is given.
#[derive(Debug, Args)]
pub struct Given {
    /// Time to live, such as 90, 10m or 2h [default: unlimited].
    #[arg(long, value_name = "TIME", value_parser = parse_seconds)]
    pub ttl: Option<u64>,
    /// Action when the time to live is over.
    #[arg(long, value_name = "end|pause", default_value = "end", hide_default_value = true, value_parser = on_expiry_parser(), requires = "ttl")]
    pub on_expiry: OnExpiry,
    /// Resume a paused sandbox when a request for it arrives, for another --ttl.
    #[arg(long)]
    pub wake_on_traffic: bool,
    /// Set an environment variable for all programs of the sandboxes.
    #[arg(long, short, value_name = "NAME=VALUE", value_parser = parse_pair)]
    pub env: Vec<(String, String)>,
    /// Attach metadata, which lists can be filtered by.
    #[arg(long, visible_alias = "label", value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub metadata: Vec<(String, String)>,
    #[command(flatten)]
    pub egress: EgressArguments,
    #[command(flatten)]
    pub limits: LimitOptions,
}

fn on_expiry_parser() -> impl TypedValueParser<Value = OnExpiry> {
    PossibleValuesParser::new(["end", "pause"]).map(|name| match name.as_str() {
        "pause" => OnExpiry::Pause,
        _ => OnExpiry::End,
    })
}

/// What a sandbox may reach.
#[derive(Debug, Args)]
pub struct EgressArguments {
    /// Outgoing connections: to the internet, or none.
    #[arg(long, value_enum, value_name = "MODE", conflicts_with_all = ["allow", "deny"])]
    pub egress: Option<EgressArgument>,
    /// Allow connections only to this network, address or domain; may be repeated. With --deny: an exception from the denied networks.
    /// Ports and ranges of ports may follow a colon, separated by commas; IPv6 then needs brackets: 10.1.0.0/16, *.example.com,
    /// example.com:443, 10.0.0.0/8:80,8000-8100, [2001:db8::/32]:443.
    #[arg(long, value_name = "TARGET")]
    pub allow: Vec<String>,
    /// Allow the internet except for this network or address: 8.8.8.0/24, 2001:db8::1; may be repeated.
    #[arg(long, value_name = "NETWORK")]
    pub deny: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EgressArgument {
    /// To the internet, but not to private networks.
    Allow,
    /// None.
    Deny,
}

impl EgressArguments {
    /// What is asked for, if anything is.
    pub fn wanted(&self) -> Option<Egress> {
        let mode = match self.egress {
            Some(EgressArgument::Allow) => EgressMode::Allow,
            Some(EgressArgument::Deny) => EgressMode::Deny,
            None if !self.deny.is_empty() => EgressMode::Allow,
            None if !self.allow.is_empty() => EgressMode::List,
            None => return None,
        };
        Some(Egress { mode, allow: self.allow.clone(), deny: self.deny.clone() })
    }
}

#[derive(Debug, Args)]
pub struct EgressOptions {
    /// The sandbox's id.
    pub sandbox: String,
    #[command(flatten)]
    pub egress: EgressArguments,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct BandwidthOptions {
    /// The sandbox's id.
    pub sandbox: String,
    /// Bytes per second in each direction, in MiB or with a unit (512, 2G); `default` for the daemon's default.
    #[arg(value_name = "SIZE", value_parser = parse_bandwidth)]
    pub size: Option<Bandwidth>,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

/// A bandwidth on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bandwidth {
    Default,
    Mib(u64),
}

fn parse_bandwidth(text: &str) -> Result<Bandwidth, String> {
    match text {
        "default" => Ok(Bandwidth::Default),
        size => parse_mib(size).map(Bandwidth::Mib),
    }
}

/// What a new sandbox may use of the host.
#[derive(Debug, Args)]
#[command(next_help_heading = "Limits")]
pub struct LimitOptions {
    /// CPU limit in CPUs, such as 0.5 [default: its number of vCPUs].
    #[arg(long, value_name = "COUNT", value_parser = parse_percent)]
    pub cpus: Option<u64>,
    /// CPU weight under contention, 1 to 10000 [default: 100].
    #[arg(long, value_name = "WEIGHT", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub cpu_weight: Option<u16>,
    /// Host memory, in MiB or with a unit (512, 2G), not counting what is shared with the snapshot
    /// [default: guest memory plus overhead].
    #[arg(long, value_name = "SIZE", value_parser = parse_mib)]
    pub memory_limit: Option<u64>,
    /// Amount of data that may be written to the disk, in MiB or with a unit [default: the snapshot's disk size].
    #[arg(long, value_name = "SIZE", value_parser = parse_mib)]
    pub disk_limit: Option<u64>,
    /// Network traffic per second in each direction, in MiB or with a unit [default: the daemon's --bandwidth].
    #[arg(long, value_name = "SIZE", value_parser = parse_mib)]
    pub bandwidth: Option<u64>,
    /// Data read from disk per second, in MiB or with a unit [default: unlimited].
    #[arg(long, value_name = "SIZE", value_parser = parse_mib)]
    pub read_rate: Option<u64>,
    /// Data written to disk per second, in MiB or with a unit [default: unlimited].
    #[arg(long, value_name = "SIZE", value_parser = parse_mib)]
    pub write_rate: Option<u64>,
    /// Disk I/O operations per second [default: unlimited].
    #[arg(long, value_name = "COUNT")]
    pub io_rate: Option<u64>,
}

impl LimitOptions {
    pub fn to_limits(&self) -> Limits {
        Limits {
            disk_mib: self.disk_limit,
            bandwidth_mib: self.bandwidth,
            memory_mib: self.memory_limit,
            cpu_percent: self.cpus,
            cpu_weight: self.cpu_weight,
            read_bytes_per_sec: self.read_rate.map(|mib| mib << 20),
            write_bytes_per_sec: self.write_rate.map(|mib| mib << 20),
            io_per_sec: self.io_rate,
        }
    }
}

/// A number of CPUs with at most two decimals, in hundredths.
fn parse_percent(text: &str) -> Result<u64, String> {
    let wrong = || "expected a number of CPUs, such as 2 or 0.25".to_owned();
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(part) || part.len() > 2 {
        return Err(wrong());
    }
    let whole: u64 = whole.parse().map_err(|_| wrong())?;
    let part: u64 = format!("{part:0<2}").parse().map_err(|_| wrong())?;
    match whole.checked_mul(100).and_then(|whole| whole.checked_add(part)) {
        None | Some(0) => Err(wrong()),
        Some(percent) => Ok(percent),
    }
}

#[derive(Debug, Args)]
pub struct BranchOptions {
    /// The sandbox's id.
    pub sandbox: String,
    /// The snapshot's name [default: generated].
    #[arg(long, short)]
    pub tag: Option<String>,
    /// Wait until the snapshot is on disk; it can be forked before that.
    #[arg(long)]
    pub wait: bool,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct SandboxLsOptions {
    /// Include sandboxes that have ended.
    #[arg(long, short)]
    pub all: bool,
    /// List only sandboxes in this state.
    #[arg(long, value_enum)]
    pub state: Option<StateArgument>,
    /// List only sandboxes forked from this snapshot.
    #[arg(long, value_name = "TAG")]
    pub snapshot: Option<String>,
    /// List only sandboxes with this metadata.
    #[arg(long, visible_alias = "label", value_name = "KEY=VALUE")]
    pub metadata: Option<String>,
    /// Print ids only.
    #[arg(long, short, conflicts_with = "json")]
    pub quiet: bool,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StateArgument {
    Starting,
    Running,
    Paused,
    Ended,
}

impl From<StateArgument> for SandboxState {
    fn from(argument: StateArgument) -> SandboxState {
        match argument {
            StateArgument::Starting => SandboxState::Starting,
            StateArgument::Running => SandboxState::Running,
            StateArgument::Paused => SandboxState::Paused,
            StateArgument::Ended => SandboxState::Ended,
        }
    }
}

#[derive(Debug, Args)]
pub struct InspectOptions {
    /// A sandbox's id, or a snapshot's tag.
    #[arg(value_name = "SANDBOX|SNAPSHOT")]
    pub id: String,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct KillOptions {
    /// Ids of sandboxes.
    #[arg(value_name = "SANDBOX", required_unless_present_any = ["all", "snapshot"])]
    pub sandboxes: Vec<String>,
    /// End all sandboxes.
    #[arg(long, conflicts_with = "sandboxes")]
    pub all: bool,
    /// End all sandboxes that were forked from this snapshot.
    #[arg(long, alias = "tag", value_name = "TAG", conflicts_with_all = ["sandboxes", "all"])]
    pub snapshot: Option<String>,
    /// Accepted as of `docker rm`. Running sandboxes are ended in any case.
    #[arg(long, short, hide = true)]
    pub force: bool,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct TtlOptions {
    /// The sandbox's id.
    pub sandbox: String,
    /// Time to live from now on, such as 90, 10m or 2h; `never` for no limit [default: show the remaining time].
    #[arg(value_name = "TIME", value_parser = parse_ttl)]
    pub ttl: Option<Ttl>,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

/// A time to live on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ttl {
    Seconds(u64),
    Never,
}

fn parse_ttl(text: &str) -> Result<Ttl, String> {
    match text {
        "never" => Ok(Ttl::Never),
        time => parse_seconds(time).map(Ttl::Seconds).map_err(|error| format!("{error}, or never")),
    }
}

#[derive(Debug, Args)]
pub struct WaitOptions {
    /// Ids of sandboxes.
    #[arg(value_name = "SANDBOX", required = true)]
    pub sandboxes: Vec<String>,
    /// Fail if they have not all ended after this time, such as 90, 10m or 2h.
    #[arg(long, value_name = "TIME", value_parser = parse_seconds)]
    pub timeout: Option<u64>,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct PortForwardOptions {
    /// The sandbox's id.
    pub sandbox: String,
    /// PORT of the sandbox, or LOCAL:PORT (8080:80). An empty LOCAL (:80) takes any free port.
    #[arg(value_name = "[LOCAL:]PORT", required = true, value_parser = crate::commands::port_forward::parse)]
    pub ports: Vec<Forward>,
    /// The local address to listen on.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub bind: std::net::IpAddr,
    #[command(flatten)]
    pub daemon: DaemonOptions,
}

/// A port of a sandbox and the local port that leads to it; 0 is any that is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forward {
    pub local: u16,
    pub remote: u16,
}

/// Verbs that do the same to each of some sandboxes.
#[derive(Debug, Args)]
pub struct SandboxesOptions {
    /// Ids of sandboxes.
    #[arg(value_name = "SANDBOX", required = true)]
    pub sandboxes: Vec<String>,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct RollbackOptions {
    /// The sandbox's id.
    pub sandbox: String,
    /// The tag of one of its branches.
    pub tag: String,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct PingOptions {
    /// Also check the agent of this sandbox.
    pub sandbox: Option<String>,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct CleanupOptions {
    /// Remove them instead of only listing them.
    #[arg(long, short)]
    pub yes: bool,
    /// Include snapshots made by `forkd run` that no sandbox or snapshot is based on.
    #[arg(long)]
    pub runs: bool,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_to_live_may_have_no_limit() {
        assert_eq!(parse_ttl("10m"), Ok(Ttl::Seconds(600)));
        assert_eq!(parse_ttl("never"), Ok(Ttl::Never));
        assert!(parse_ttl("0").is_err() && parse_ttl("soon").is_err());
    }

    #[test]
    fn cpus_have_hundredths() {
        for (text, percent) in [("1", 100), ("0.5", 50), ("2.25", 225), ("0.01", 1), ("64", 6400)] {
            assert_eq!(parse_percent(text), Ok(percent), "{text}");
        }
        for bad in ["", "0", "0.0", ".5", "1.", "-1", "1.234", "x", "1e3", "99999999999999999999"] {
            assert!(parse_percent(bad).is_err(), "{bad}");
        }
    }
}
