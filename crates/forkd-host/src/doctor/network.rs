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

pub(super) fn check_tap() -> Result<String, Problem> {
    attempt(tool::IP, &["tuntap", "add", "dev", "forkd-doctor", "mode", "tap"], "")
        .map(|()| "tap devices can be made".into())
        .map_err(|complaint| Problem::failed(complaint, "load the module tun, and run the daemon as root"))
}

pub(super) fn check_nftables() -> Result<String, Problem> {
    attempt(tool::NFT, &["-f", "-"], RULES).map(|()| "a rule set loads".into()).map_err(|complaint| {
        Problem::failed(complaint, "load the module nf_tables, and run the daemon as root")
    })
}

fn attempt(tool: Tool, arguments: &[&str], input: &str) -> Result<(), String> {
    let missing = |error: MissingTool| error.to_string();
    let mut unshare = tool::UNSHARE.command().map_err(missing)?;
    let unshare: &mut Command =
        unshare.arg("--net").arg("--").arg(tool.find().map_err(missing)?).args(arguments);
    let outcome = command::run(unshare, input, LIMIT).map_err(|error| error.to_string())?;
    if outcome.status.success() { Ok(()) } else { Err(outcome.complaint()) }
}
