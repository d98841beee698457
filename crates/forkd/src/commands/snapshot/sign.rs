//! `forkd snapshot sign`, and the signature of `push`. The private key stays in this process: the daemon gets the signature.

use forkd_api::snapshot::{AddSnapshotSignature, ResolveSnapshot, SnapshotSignature};
use forkd_client::Client;
use forkd_hub::trust::SigningKey;

use super::key::signing_key;
use crate::arguments::SnapshotSignOptions;
use crate::commands::image::pull::credentials;
use crate::commands::{print_value, sheet, with_daemon};
use crate::error::CliError;
use crate::exit::Exit;

pub fn run(options: &SnapshotSignOptions) -> Result<Exit, CliError> {
    let key = signing_key(&options.key)?;
    let signed = with_daemon(&options.daemon, async |client| {
        let reference = &options.reference;
        let wanted =
            ResolveSnapshot { reference: reference.clone(), credentials: credentials(&client, reference)? };
        let found = client.resolve_snapshot(&wanted).await?;
        // Who names a digest signs that one.
        if reference.split_once('@').is_some_and(|(_, digest)| digest != found.digest) {
            return Err(CliError::OtherDigest { reference: reference.clone(), found: found.digest });
        }
        sign(&client, &key, &format!("{}@{}", found.repository, found.digest)).await
    })?;
    print_value(&options.output, &signed, || render(&signed))?;
    Ok(Exit::Success)
}

/// Signs a snapshot in a registry, named by its digest.
pub async fn sign(client: &Client, key: &SigningKey, reference: &str) -> Result<SnapshotSignature, CliError> {
    let parts = reference.split_once('@').and_then(|(name, digest)| Some((name, digest.parse().ok()?)));
    let (repository, digest) = parts.ok_or_else(|| CliError::NoDigest { reference: reference.into() })?;
    let signature = key.sign_manifest(repository, digest).map_err(CliError::of_verb)?;
    let wanted = AddSnapshotSignature {
        reference: reference.into(),
        payload: signature.payload().into(),
        signature: signature.signature().into(),
        key: key.public().to_pem(),
        credentials: credentials(client, reference)?,
    };
    Ok(client.add_snapshot_signature(&wanted).await?)
}

fn render(signed: &SnapshotSignature) -> String {
    let signature = if signed.added { "added" } else { "this key had signed it already" };
    sheet(&[
        ("reference", Some(signed.reference.clone())),
        ("key", Some(signed.key.clone())),
        ("signature", Some(signature.into())),
    ])
}
