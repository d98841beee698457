//! `forkd snapshot ls`.

use forkd_api::snapshot::{ListRepository, RepositoryTag, Snapshot, SnapshotStatus};

use crate::arguments::SnapshotLsOptions;
use crate::commands::image::pull::credentials;
use crate::commands::{lines, print_value, say, with_daemon};
use crate::error::CliError;
use crate::exit::Exit;
use crate::moment::{ago, bytes};
use crate::table::{Side, Table};

pub fn run(options: &SnapshotLsOptions) -> Result<Exit, CliError> {
    if let Some(repository) = &options.repository {
        return remote(options, repository);
    }
    let snapshots = with_daemon(&options.daemon, async |client| Ok(client.snapshots().await?))?;
    print_value(&options.output, &snapshots, || match options.quiet {
        true => lines(snapshots.iter().map(|snapshot| &snapshot.tag)),
        false => render(&snapshots),
    })?;
    Ok(Exit::Success)
}

/// What a repository of a registry has.
fn remote(options: &SnapshotLsOptions, repository: &str) -> Result<Exit, CliError> {
    let listed = with_daemon(&options.daemon, async |client| {
        let credentials = credentials(&client, repository)?;
        Ok(client.repository(&ListRepository { repository: repository.to_owned(), credentials }).await?)
    })?;
    print_value(&options.output, &listed, || match options.quiet {
        true => lines(listed.tags.iter().filter(|tag| tag.snapshot).map(|tag| &tag.tag)),
        false => render_remote(&listed.tags),
    })?;
    if listed.truncated {
        say(&format!("forkd: warning: {repository} has more tags than the {} listed", listed.tags.len()));
    }
    Ok(Exit::Success)
}

fn render_remote(tags: &[RepositoryTag]) -> String {
    let mut table = Table::new([
        ("TAG", Side::Left),
        ("SNAPSHOT", Side::Left),
        ("SIZE", Side::Right),
        ("AGE", Side::Right),
        ("DIGEST", Side::Left),
    ]);
    for tag in tags {
        table.row([
            tag.tag.clone(),
            if tag.snapshot { "yes" } else { "no" }.into(),
            tag.size_bytes.map_or_else(|| "-".into(), bytes),
            tag.created_at_unix.map_or_else(|| "-".into(), ago),
            tag.digest.clone(),
        ]);
    }
    table.render()
}

fn render(snapshots: &[Snapshot]) -> String {
    let mut table = Table::new([
        ("TAG", Side::Left),
        ("STATUS", Side::Left),
        ("AGE", Side::Right),
        ("VCPUS", Side::Right),
        ("MEMORY", Side::Right),
        ("DISK", Side::Right),
        ("ON DISK", Side::Right),
        ("PARENT", Side::Left),
        ("FROM", Side::Left),
    ]);
    for snapshot in snapshots {
        let size = snapshot.size.memory_bytes.saturating_add(snapshot.size.disk_bytes);
        table.row([
            snapshot.tag.clone(),
            status(snapshot.status).into(),
            ago(snapshot.created_at_unix),
            snapshot.vcpus.to_string(),
            bytes(snapshot.memory_mib << 20),
            bytes(snapshot.disk_mib << 20),
            bytes(size),
            snapshot.parent.clone().unwrap_or_else(|| "-".into()),
            origin(snapshot),
        ]);
    }
    table.render()
}

/// What it was made of.
fn origin(snapshot: &Snapshot) -> String {
    match (&snapshot.branched_from, &snapshot.image) {
        (Some(sandbox), _) => sandbox.clone(),
        // A digest is as long as a line; its beginning is enough to find it.
        (None, Some(image)) => image.trim_start_matches("sha256:").chars().take(12).collect(),
        (None, None) => "-".into(),
    }
}

pub fn status(status: SnapshotStatus) -> &'static str {
    match status {
        SnapshotStatus::Live => "live",
        SnapshotStatus::Persisting => "persisting",
        SnapshotStatus::Ready => "ready",
        SnapshotStatus::Failed => "failed",
    }
}
