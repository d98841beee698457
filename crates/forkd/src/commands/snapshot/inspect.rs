//! `forkd snapshot inspect`.

use forkd_api::snapshot::Snapshot;

use super::ls::status;
use crate::arguments::{Output, SnapshotInspectOptions};
use crate::commands::{print, print_json, sheet, with_daemon};
use crate::error::CliError;
use crate::exit::Exit;
use crate::moment::{at, bytes, microseconds};

pub fn run(options: &SnapshotInspectOptions) -> Result<Exit, CliError> {
    let snapshot = with_daemon(&options.daemon, async |client| Ok(client.snapshot(&options.tag).await?))?;
    show(&snapshot, &options.output)?;
    Ok(Exit::Success)
}

pub fn show(snapshot: &Snapshot, output: &Output) -> Result<(), CliError> {
    if output.json {
        return print_json(snapshot);
    }
    print(&sheet(&[
        ("tag", Some(snapshot.tag.clone())),
        ("names", (!snapshot.names.is_empty()).then(|| snapshot.names.join(", "))),
        ("status", Some(status(snapshot.status).into())),
        ("error", snapshot.error.clone()),
        ("created", Some(at(snapshot.created_at_unix))),
        ("image", snapshot.image.clone()),
        ("parent", snapshot.parent.clone()),
        ("children", (!snapshot.children.is_empty()).then(|| snapshot.children.join(", "))),
        ("branched from", snapshot.branched_from.clone()),
        ("pause", snapshot.pause_us.map(microseconds)),
        ("vcpus", Some(snapshot.vcpus.to_string())),
        ("cpu", Some(snapshot.cpu.name().into())),
        ("memory", Some(bytes(snapshot.memory_mib << 20))),
        ("disk", Some(bytes(snapshot.disk_mib << 20))),
        ("memory on disk", Some(bytes(snapshot.size.memory_bytes))),
        ("disk on disk", Some(bytes(snapshot.size.disk_bytes))),
        ("loaded", Some(if snapshot.loaded { "yes" } else { "no" }.into())),
    ]))
}
