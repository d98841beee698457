//! `forkd inspect`.

use forkd_api::named::Named;
use forkd_api::sandbox::{Limits, Sandbox};

use super::{egress, ls, print, print_json, sheet, snapshot, with_daemon};
use crate::arguments::{InspectOptions, Output};
use crate::error::CliError;
use crate::exit::Exit;
use crate::moment::{at, bytes};

pub fn run(options: &InspectOptions) -> Result<Exit, CliError> {
    with_daemon(&options.daemon, async |client| {
        match client.named(&options.id).await? {
            Named::Sandbox(sandbox) => show(&sandbox, &options.output)?,
            Named::Snapshot(snapshot) => snapshot::inspect::show(&snapshot, &options.output)?,
        }
        Ok(Exit::Success)
    })
}

pub(super) fn show(sandbox: &Sandbox, output: &Output) -> Result<(), CliError> {
    if output.json {
        return print_json(sandbox);
    }
    let metadata: Vec<String> =
        sandbox.metadata.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let list = |words: &[String]| (!words.is_empty()).then(|| words.join(", "));
    print(&sheet(&[
        ("id", Some(sandbox.id.clone())),
        ("state", Some(ls::state(sandbox.state).into())),
        ("ended", sandbox.ended.as_ref().map(|ended| format!("{} ({})", ended.detail, at(ended.at_unix)))),
        ("snapshot", Some(sandbox.snapshot_tag.clone())),
        ("created", Some(at(sandbox.created_at_unix))),
        ("expires", sandbox.expires_at_unix.map(at)),
        ("on expiry", (!sandbox.on_expiry.is_end()).then(|| "pause".into())),
        ("wakes", sandbox.wake_on_traffic.then(|| "on traffic".into())),
        ("vcpus", Some(sandbox.vcpus.to_string())),
        ("memory", Some(bytes(sandbox.memory_mib << 20))),
        ("disk", Some(bytes(sandbox.disk_mib << 20))),
        ("egress", sandbox.egress.as_ref().map(egress::line)),
        ("owner", sandbox.owner.clone()),
        ("limits", limits(&sandbox.limits)),
        ("pid", sandbox.pid.map(|pid| pid.to_string())),
        ("branches", list(&sandbox.branches)),
        ("metadata", list(&metadata)),
    ]))
}

/// What it may use of the host, if that is kept.
fn limits(limits: &Limits) -> Option<String> {
    let cpus = limits.cpu_percent.map(|percent| format!("{}.{:02} CPUs", percent / 100, percent % 100));
    let weight = limits.cpu_weight.map(|weight| format!("weight {weight}"));
    let memory = limits.memory_mib.map(|mib| format!("{} of memory", bytes(mib << 20)));
    let rate = |rate: Option<u64>, what: &str| rate.map(|rate| format!("{what} {}/s", bytes(rate)));
    let operations = limits.io_per_sec.map(|count| format!("{count} operations/s"));
    let read = rate(limits.read_bytes_per_sec, "reads");
    let write = rate(limits.write_bytes_per_sec, "writes");
    let network = rate(limits.bandwidth_mib.map(|mib| mib << 20), "network");
    let all = [cpus, weight, memory, read, write, operations, network];
    let all: Vec<String> = all.into_iter().flatten().collect();
    (!all.is_empty()).then(|| all.join(", "))
}
