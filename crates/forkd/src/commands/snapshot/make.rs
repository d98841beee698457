//! `forkd snapshot make`, and `forkd snapshot IMAGE`, which is short for it.

use forkd_api::error::ErrorCode;
use forkd_api::sandbox::BranchSandbox;
use forkd_api::snapshot::{CreateSnapshot, Progress as SnapshotProgress, ReadyProbe, Snapshot};
use forkd_client::{Client, ClientError};
use forkd_machine::Progress as _;

use crate::arguments::{SnapshotCreateOptions, SnapshotShape};
use crate::commands::{branch, with_daemon};
use crate::error::CliError;
use crate::exit::Exit;
use crate::progress::Progress;

pub fn run(options: &SnapshotCreateOptions) -> Result<Exit, CliError> {
    with_daemon(&options.daemon, async |client| {
        let source = match (&options.snapshot, &options.image) {
            (None, Some(name)) => source(&client, name).await?,
            (snapshot, _) => snapshot.clone().map(Source::Snapshot),
        };
        let snapshot = match (&options.from, source) {
            (Some(sandbox), _) => {
                let wanted = BranchSandbox { tag: options.tag.clone(), wait: !options.no_wait };
                client.branch(sandbox, &wanted).await?
            }
            (None, Some(source)) => make(&client, &wanted(options, &source)).await?,
            // The grammar asks for one of them.
            (None, None) => return Ok(Exit::Failure),
        };
        branch::show(&snapshot, &options.output)?;
        Ok(Exit::Success)
    })
}

/// What a snapshot is made of.
enum Source {
    Image(String),
    Snapshot(String),
}

/// What a name means: an image, or else a snapshot. If it is neither, the daemon says that there is no such image.
async fn source(client: &Client, name: &str) -> Result<Option<Source>, CliError> {
    let image = || Source::Image(name.to_owned());
    match client.image(name).await {
        Err(ClientError::Refused(refusal)) if refusal.code == Some(ErrorCode::NotFound) => {
            let is_snapshot = client.snapshot(name).await.is_ok();
            Ok(Some(if is_snapshot { Source::Snapshot(name.to_owned()) } else { image() }))
        }
        _ => Ok(Some(image())),
    }
}

fn wanted(options: &SnapshotCreateOptions, source: &Source) -> CreateSnapshot {
    let ready = (options.ready_port.is_some() || options.ready_command.is_some()).then(|| ReadyProbe {
        port: options.ready_port,
        command: options.ready_command.as_ref().map(|words| words.0.clone()),
        timeout_secs: options.ready_timeout,
    });
    let (name, of_source) = match source {
        Source::Image(image) => (image, of_image(image, &options.shape)),
        Source::Snapshot(snapshot) => {
            let of_image = of_image(snapshot, &options.shape);
            (snapshot, CreateSnapshot { image: None, snapshot: Some(snapshot.clone()), ..of_image })
        }
    };
    CreateSnapshot {
        tag: Some(options.tag.clone().unwrap_or_else(|| slug(name))),
        run: options.run.clone(),
        env: options.env.iter().cloned().collect(),
        start: options.start.as_ref().map(|words| words.0.clone()),
        ready,
        warm_up: options.warm_up.clone(),
        host_certs: options.host_certs,
        e2b: options.e2b,
        wait: !options.no_wait,
        ..of_source
    }
}

/// A snapshot of an image, without a name yet.
pub fn of_image(image: &str, shape: &SnapshotShape) -> CreateSnapshot {
    CreateSnapshot {
        tag: None,
        image: Some(image.to_owned()),
        snapshot: None,
        run: Vec::new(),
        kernel: shape.kernel.clone(),
        vcpus: shape.vcpus,
        memory_mib: shape.memory,
        disk_mib: shape.disk,
        cpu: shape.cpu.unwrap_or_default(),
        env: Default::default(),
        start: None,
        ready: None,
        warm_up: Vec::new(),
        host_certs: false,
        e2b: false,
        network: !shape.no_network,
        wait: true,
    }
}

/// Makes a snapshot and shows how far it is.
pub async fn make(client: &Client, wanted: &CreateSnapshot) -> Result<Snapshot, CliError> {
    let progress = Progress::new();
    let name = wanted.tag.as_deref().or(wanted.image.as_deref()).unwrap_or_default();
    let made = client.create_snapshot(wanted, |told| show(&progress, name, told)).await;
    progress.finish();
    Ok(made?)
}

/// Shows how far a snapshot is.
pub fn show(progress: &Progress, name: &str, told: SnapshotProgress) {
    match told {
        SnapshotProgress::Step(step) => progress.step(&format!("snapshot {name}: {step}")),
        SnapshotProgress::Output(line) => progress.detail(&crate::table::plain(&line)),
        SnapshotProgress::Snapshot(_) | SnapshotProgress::Built(_) | SnapshotProgress::Error(_) => {}
    }
}

/// What a tag can be made of: an image's name with everything else replaced.
pub fn slug(name: &str) -> String {
    let fits = |character: char| {
        character.is_ascii_lowercase() || character.is_ascii_digit() || ".-_".contains(character)
    };
    let replaced: String = name
        .to_ascii_lowercase()
        .chars()
        .map(|character| if fits(character) { character } else { '-' })
        .collect();
    replaced.trim_matches(|character: char| !character.is_ascii_alphanumeric()).chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_images_become_tags() {
        for (name, tag) in [
            ("python:3.12-slim", "python-3.12-slim"),
            ("Registry.example/Owner/name:tag", "registry.example-owner-name-tag"),
            ("./x/", "x"),
        ] {
            assert_eq!(slug(name), tag);
        }
        assert_eq!(slug(&"a".repeat(99)).len(), 64);
    }
}
