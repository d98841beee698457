//! Tap devices and nftables, tried in a network namespace that ends with the command.

use std::process::Command;
use std::time::Duration;

use super::Problem;
use crate::command;
use crate::tool::{self, MissingTool, Tool};

const LIMIT: Duration = Duration::from_secs(10);

/// The kinds of rule that an egress policy is made of: a set, a verdict on it, address translation.
const RULES: &str = "
table inet forkd_doctor {
    set allowed { type ipv4_addr; flags interval; elements = { 192.0.2.0/24 } }
    chain egress { type filter hook forward priority filter; policy drop; ip daddr @allowed accept; }
    chain nat { type nat hook postrouting priority srcnat; masquerade; }
}
";

/// What every sandbox's rules have beside those: what is dropped is logged to a netlink socket, a few a second, and connections are
/// counted. A rule that logs is refused if its log has no possible reader: nft_log looks for nfnetlink_log.
const LOGGING_RULES: &str = "
table inet forkd_doctor {
    set connections { type ipv4_addr; flags dynamic; }
    chain egress {
        type filter hook forward priority filter; policy drop;
        add @connections { ip saddr ct count over 100 } drop
        limit rate 5/second log prefix \"forkd\" group 1
    }
}
";

pub(super) fn check_tap() -> Result<String, Problem> {
    attempt(tool::IP, &["tuntap", "add", "dev", "forkd-doctor", "mode", "tap"], "")
        .map(|()| "tap devices can be created".into())
        .map_err(|complaint| Problem::failed(complaint, "load the module tun, and run the daemon as root"))
}

pub(super) fn check_nftables() -> Result<String, Problem> {
    attempt(tool::NFT, &["-f", "-"], RULES).map(|()| "nftables rules can be loaded".into()).map_err(
        |complaint| Problem::failed(complaint, "load the module nf_tables, and run the daemon as root"),
    )
}

pub(super) fn check_drop_log() -> Result<String, Problem> {
    let hint = "load the modules nft_log, nfnetlink_log, nft_limit and nft_connlimit, or use a kernel that has them; \
                otherwise sandboxes with a network are refused";
    attempt(tool::NFT, &["-f", "-"], LOGGING_RULES)
        .map(|()| "dropped packets can be logged".into())
        .map_err(|complaint| Problem::failed(complaint, hint))
}

fn attempt(tool: Tool, arguments: &[&str], input: &str) -> Result<(), String> {
    let missing = |error: MissingTool| error.to_string();
    let mut unshare = tool::UNSHARE.command().map_err(missing)?;
    let unshare: &mut Command =
        unshare.arg("--net").arg("--").arg(tool.find().map_err(missing)?).args(arguments);
    let outcome = command::run(unshare, input, LIMIT).map_err(|error| error.to_string())?;
    if outcome.status.success() { Ok(()) } else { Err(outcome.complaint()) }
}
