//! Namespaces in which a test or a benchmark is alone. The host's networks are one daemon's, and what has to have them must not
//! meet another.

use std::ffi::OsStr;
use std::fs;
use std::process::Command;

use forkd_engine::Networking;

use crate::engine::process::Failure;

/// An empty /run, for the names of networks, and then a program with its arguments. The shell stays: as the first process of a
/// namespace it also collects those that nobody else does.
const SCRIPT: &str = "mount -t tmpfs none /run && \"$0\" \"$@\"; exit $?";
/// A link that leads nowhere: somewhere for packets to go.
const UPLINK: &str = "ip link set lo up && ip link add wan0 type veth peer name wan1 && ip addr add 5.5.5.1/24 dev wan0 \
                      && ip link set wan0 up && ip link set wan1 up && ip route add default dev wan0";

/// A program with networks and mounts of its own.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    unshare(&["--net", "--mount"], program)
}

/// The same with processes of its own, too: what it starts ends with it, and it ends with whoever started it.
pub fn contained(program: impl AsRef<OsStr>) -> Command {
    unshare(&["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"], program)
}

fn unshare(namespaces: &[&str], program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("unshare");
    command.args(namespaces).args(["sh", "-c", SCRIPT]).arg(program);
    command
}

/// Whether this process may make such namespaces.
pub fn is_possible() -> bool {
    command("true").status().is_ok_and(|status| status.success())
}

/// Makes a default route in a namespace that has none.
pub fn make_uplink() -> Result<(), Failure> {
    match Command::new("sh").args(["-c", UPLINK]).status()? {
        status if status.success() => Ok(()),
        status => Err(format!("no uplink can be made: {status}").into()),
    }
}

/// Networks, for an engine that is alone.
pub fn networking() -> Networking {
    Networking::Pooled {
        host: forkd_net::Settings::default(),
        pool: forkd_net::PoolSettings { ready: 2, ..Default::default() },
        bandwidth: None,
    }
}

/// The networks of sandboxes, by the names of their namespaces and links.
pub fn networks() -> (Vec<String>, Vec<String>) {
    let mut namespaces: Vec<String> = fs::read_dir("/run/netns")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    let devices = fs::read_to_string("/proc/net/dev").unwrap_or_default();
    let links = devices.lines().filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned()));
    let mut links: Vec<String> = links.filter(|link| link.starts_with("forkd")).collect();
    namespaces.sort();
    links.sort();
    (namespaces, links)
}
