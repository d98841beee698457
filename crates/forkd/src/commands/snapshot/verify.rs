//! `forkd snapshot verify`.

use forkd_api::snapshot::SnapshotVerification;

use crate::arguments::SnapshotInspectOptions;
use crate::commands::{print_value, sheet, with_daemon};
use crate::error::CliError;
use crate::exit::Exit;
use crate::moment::bytes;

pub fn run(options: &SnapshotInspectOptions) -> Result<Exit, CliError> {
    let verified =
        with_daemon(&options.daemon, async |client| Ok(client.verify_snapshot(&options.tag).await?))?;
    print_value(&options.output, &verified, || render(&verified))?;
    Ok(if verified.intact { Exit::Success } else { Exit::Failure })
}

fn render(verified: &SnapshotVerification) -> String {
    let damage = verified.damage.as_ref();
    sheet(&[
        ("tag", Some(verified.tag.clone())),
        ("result", Some(if verified.intact { "intact" } else { "damaged" }.into())),
        ("file", damage.and_then(|damage| damage.file.clone())),
        ("problem", damage.map(|damage| damage.problem.clone())),
        ("snapshots", Some(verified.snapshots.to_string())),
        ("disk layers", Some(verified.disk_layers.to_string())),
        ("read", Some(bytes(verified.bytes))),
    ])
}
