//! `forkd run`: a new sandbox, a command in it, and its end.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};

use forkd_api::error::ErrorCode;
use forkd_api::exec::Exec;
use forkd_api::library::{ImageSummary, PullImage};
use forkd_api::sandbox::CreateSandboxes;
use forkd_api::snapshot::CreateSnapshot;
use forkd_client::Client;

use super::{fork, image, say, snapshot};
use crate::arguments::{How, RunOptions, SnapshotShape};
use crate::daemon;
use crate::error::CliError;
use crate::exit::Exit;
use crate::progress::Progress;
use crate::session::{self, Mode};
use crate::signals::Signals;
use crate::terminal;

/// How much longer than its command a sandbox lives that was not removed.
const SPARE_SECS: u64 = 600;

pub fn run(options: &RunOptions) -> Result<Exit, CliError> {
    super::asynchronously(async {
        let client = daemon::find_or_start(&options.daemon).await?;
        let tag = snapshot_of(&client, options).await?;
        let wanted = CreateSandboxes {
            snapshot_tag: Some(tag),
            n: 1,
            // For when this command is killed and can remove nothing.
            ttl_secs: (!options.keep).then_some(options.how.timeout.saturating_add(SPARE_SECS)),
            egress: options.egress.wanted(),
            limits: options.limits.to_limits(),
            ..Default::default()
        };
        let mut signals = Signals::new()?;
        let created = fork::create(&client, &wanted, &mut signals).await?;
        let Some(sandbox) = created.sandboxes.first() else {
            return Err(CliError::Io("run", io::Error::other("the daemon made no sandbox")));
        };
        let (exec, mode) = plan(&options.how, &options.command);
        let ended = session::run(&client, &sandbox.id, &exec, mode, &mut signals).await;
        if options.keep {
            say(&format!("forkd: sandbox {} is kept; forkd kill {0} removes it", sandbox.id));
        } else {
            fork::remove(&client, &sandbox.id).await;
        }
        ended
    })
}

/// What is run, and how it meets this terminal. Without a command, a shell, which has a terminal if there is one.
pub(super) fn plan(how: &How, command: &[String]) -> (Exec, Mode) {
    let terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    let tty = how.tty || (command.is_empty() && terminal);
    let stdin = how.interactive || terminal::stdin_is_given() || (command.is_empty() && terminal);
    let mut env: BTreeMap<String, String> = BTreeMap::new();
    if tty && let Ok(term) = std::env::var("TERM") {
        env.insert("TERM".into(), term);
    }
    env.extend(how.env.iter().cloned());
    let exec = Exec {
        args: if command.is_empty() { shell(tty) } else { command.to_vec() },
        env,
        cwd: how.cwd.clone(),
        user: how.user.clone(),
        stdin: None,
        timeout_secs: how.timeout,
    };
    (exec, Mode { stdin, tty })
}

/// The best shell that a guest has.
pub(super) fn shell(login: bool) -> Vec<String> {
    let login = if login { " -l" } else { "" };
    let script =
        format!("if command -v bash >/dev/null 2>&1; then exec bash{login}; else exec sh{login}; fi");
    ["/bin/sh", "-c", &script].map(String::from).into()
}

/// The snapshot of this name, or one of the image of this name, which is made if need be.
async fn snapshot_of(client: &Client, options: &RunOptions) -> Result<String, CliError> {
    let (source, shape) = (&options.source, &options.shape);
    match client.snapshot(source).await {
        Ok(_) if shape_is_given(shape) => return Err(CliError::ShapeOfSnapshot(source.clone())),
        Ok(snapshot) => return Ok(snapshot.tag),
        Err(error) if error.is_not_found() || error.code() == Some(ErrorCode::Malformed) => {}
        Err(error) => return Err(error.into()),
    }
    let image = image_of(client, options).await?;
    let wanted = CreateSnapshot { wait: false, ..snapshot::make::of_image(&image, shape) };
    Ok(snapshot::make::make(client, &wanted).await?.tag)
}

fn shape_is_given(shape: &SnapshotShape) -> bool {
    let SnapshotShape { vcpus, memory, disk, cpu, no_network, kernel } = shape;
    let sized = vcpus.is_some() || memory.is_some() || disk.is_some();
    sized || cpu.is_some() || kernel.is_some() || *no_network
}

/// A name of the image that is meant, which is pulled if that was asked for.
async fn image_of(client: &Client, options: &RunOptions) -> Result<String, CliError> {
    let source = &options.source;
    match client.image(source).await {
        Ok(_) => return Ok(source.clone()),
        Err(error) if error.is_not_found() && options.pull => {}
        Err(error) if error.is_not_found() => return Err(CliError::NothingToRun(source.clone())),
        Err(error) => return Err(error.into()),
    }
    let credentials = image::pull::credentials(client, source)?;
    let wanted = PullImage { reference: source.clone(), name: None, size_mib: None, credentials };
    let progress = Progress::new();
    let pulled = client.pull_image(&wanted, |told| progress.told(&told)).await;
    progress.finish();
    let ImageSummary { id, names, .. } = pulled?.summary;
    Ok(names.into_iter().next().unwrap_or(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: SnapshotShape =
        SnapshotShape { vcpus: None, memory: None, disk: None, cpu: None, no_network: false, kernel: None };

    #[test]
    fn a_shape_is_given_by_any_part_of_it() {
        assert!(!shape_is_given(&ANY) && shape_is_given(&SnapshotShape { vcpus: Some(1), ..ANY }));
    }

    #[test]
    fn without_a_command_there_is_a_shell() {
        let how = How {
            interactive: false,
            tty: true,
            env: vec![("TERM".into(), "x".into())],
            cwd: None,
            user: None,
            timeout: 7,
        };
        let (exec, mode) = plan(&how, &[]);
        assert!(mode.tty && exec.args.join(" ").contains("bash -l"));
        // What is said is what counts.
        assert_eq!((exec.env["TERM"].as_str(), exec.timeout_secs), ("x", 7));
        let (exec, _) = plan(&how, &["a".into(), "b".into()]);
        assert_eq!(exec.args, ["a", "b"]);
    }
}
