//! `forkd snapshot push`.

use forkd_api::snapshot::{PushSnapshot, PushedSnapshot};

use super::key::signing_key;
use super::sign::sign;
use crate::arguments::SnapshotPushOptions;
use crate::commands::image::pull::credentials;
use crate::commands::{print_value, sheet, with_daemon};
use crate::error::CliError;
use crate::exit::Exit;
use crate::moment::bytes;
use crate::progress::Progress;

pub fn run(options: &SnapshotPushOptions) -> Result<Exit, CliError> {
    // Before gigabytes are sent.
    let key = options.sign_key.as_deref().map(signing_key).transpose()?;
    let pushed = with_daemon(&options.daemon, async |client| {
        let wanted = PushSnapshot {
            reference: options.reference.clone(),
            credentials: credentials(&client, &options.reference)?,
            mount_from: options.mount_from.clone(),
            variant: options.variant.clone(),
            // The signature is on all variants of the tag, so none of them may be of somebody else.
            variants_key: key.as_ref().filter(|_| options.variant.is_some()).map(|key| key.public().to_pem()),
            yes: options.yes,
        };
        let progress = Progress::new();
        let pushed = client.push_snapshot(&options.tag, &wanted, |told| progress.told(&told)).await;
        progress.finish();
        let pushed = pushed?;
        if let Some(key) = &key {
            sign(&client, key, &pushed.reference).await.map_err(|source| CliError::PushedUnsigned {
                reference: pushed.reference.clone(),
                source: Box::new(source),
            })?;
        }
        Ok(pushed)
    })?;
    let signer = key.map(|key| key.public().fingerprint());
    print_value(&options.output, &pushed, || render(&pushed, signer))?;
    Ok(Exit::Success)
}

fn render(pushed: &PushedSnapshot, signer: Option<String>) -> String {
    sheet(&[
        ("reference", Some(pushed.reference.clone())),
        ("signed with", signer),
        ("sent", Some(bytes(pushed.sent_bytes))),
        ("there already", Some(bytes(pushed.present_bytes))),
    ])
}
