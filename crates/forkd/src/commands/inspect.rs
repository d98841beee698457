//! `forkd inspect`.

use forkd_api::sandbox::Sandbox;

use super::{egress, ls, print, print_json, sheet, snapshot, with_daemon};
use crate::arguments::{InspectOptions, Output};
use crate::error::CliError;
use crate::exit::Exit;
use crate::moment::{at, bytes};

pub fn run(options: &InspectOptions) -> Result<Exit, CliError> {
    with_daemon(&options.daemon, async |client| {
        match client.sandbox(&options.id).await {
            Ok(sandbox) => {
                show(&sandbox, &options.output)?;
                return Ok(Exit::Success);
            }
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error.into()),
        }
        match client.snapshot(&options.id).await {
            Ok(snapshot) => snapshot::inspect::show(&snapshot, &options.output)?,
            Err(error) if error.is_not_found() => return Err(CliError::NothingToShow(options.id.clone())),
            Err(error) => return Err(error.into()),
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
        ("vcpus", Some(sandbox.vcpus.to_string())),
        ("memory", Some(bytes(sandbox.memory_mib << 20))),
        ("disk", Some(bytes(sandbox.disk_mib << 20))),
        ("egress", sandbox.egress.as_ref().map(egress::line)),
        ("bandwidth", sandbox.bandwidth_mib.map(|mib| format!("{} a second", bytes(mib << 20)))),
        ("pid", sandbox.pid.map(|pid| pid.to_string())),
        ("branches", list(&sandbox.branches)),
        ("metadata", list(&metadata)),
    ]))
}
