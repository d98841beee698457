//! `forkd snapshot push`.

use forkd_api::snapshot::{PushSnapshot, PushedSnapshot};

use crate::arguments::SnapshotPushOptions;
use crate::commands::image::pull::credentials;
use crate::commands::{print_value, sheet, with_daemon};
use crate::error::CliError;
use crate::exit::Exit;
use crate::moment::bytes;
use crate::progress::Progress;

pub fn run(options: &SnapshotPushOptions) -> Result<Exit, CliError> {
    let pushed = with_daemon(&options.daemon, async |client| {
        let wanted = PushSnapshot {
            reference: options.reference.clone(),
            credentials: credentials(&client, &options.reference)?,
            mount_from: options.mount_from.clone(),
            yes: options.yes,
        };
        let progress = Progress::new();
        let pushed = client.push_snapshot(&options.tag, &wanted, |told| progress.told(&told)).await;
        progress.finish();
        Ok(pushed?)
    })?;
    print_value(&options.output, &pushed, || render(&pushed))?;
    Ok(Exit::Success)
}

fn render(pushed: &PushedSnapshot) -> String {
    sheet(&[
        ("reference", Some(pushed.reference.clone())),
        ("sent", Some(bytes(pushed.sent_bytes))),
        ("there already", Some(bytes(pushed.present_bytes))),
    ])
}
