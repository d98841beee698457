//! The image's own programs that want to know of a fork, in the order of their names:
//!
//! - `/etc/forkd/fork.d/*` while the guest's programs are still frozen, so that a server finds the files that it should have
//!   when it runs again. These must not wait for an answer of a frozen program.
//! - `/etc/forkd/thaw.d/*` when programs run again and before the guest serves anybody, for what needs their answer.
//!
//! In a child of a live branch nothing is frozen, and both run one after the other.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::agent::Agent;
use crate::children::{Signal, Source, SpawnError, Spec, Stdio, Target};
use crate::listing;
use crate::users;
use forkd_envd::Exit;
use forkd_proto::agent::identity::IdentityRequest;

const LIMIT: Duration = Duration::from_secs(10);
const MAX_HOOKS: usize = 100;
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    #[error("{}", .0.describe())]
    Failed(Exit),
    #[error("took more than {} s and was killed", .0.as_secs())]
    Slow(Duration),
}

/// Runs them one after the other. Returns what went wrong; a failure keeps none of the others from running.
pub async fn run(agent: &Agent, directory: &Path, identity: &IdentityRequest) -> Vec<String> {
    let programs = match programs(directory) {
        Ok(programs) => programs,
        Err(error) => return vec![format!("cannot read the hooks: {error}")],
    };
    let mut problems = Vec::new();
    for program in programs {
        let environment = environment(agent, identity);
        if let Err(problem) = run_beside(agent, program.clone().into(), Vec::new(), environment, LIMIT).await
        {
            problems.push(format!("{}: {problem}", program.display()));
        }
    }
    problems
}

/// Runs a program as root, outside of the cgroup that is frozen, and waits for its success.
pub async fn run_beside(
    agent: &Agent,
    program: OsString,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    limit: Duration,
) -> Result<(), RunError> {
    let spec = Spec {
        program,
        arguments,
        environment,
        directory: "/".into(),
        user: users::current(),
        stdio: Stdio::Streams { input: Source::Null, output: Target::Null, error: Target::Null },
    };
    let mut child = agent.children.spawn_beside(spec).await?;
    match tokio::time::timeout(limit, child.exit.wait()).await {
        Ok(Exit::Code(0)) => Ok(()),
        Ok(exit) => Err(RunError::Failed(exit)),
        Err(_) => {
            // It may have ended in this moment.
            let _ = agent.children.signal_group(child.pid, Signal::KILL).await;
            Err(RunError::Slow(limit))
        }
    }
}

/// The environment that all programs of the sandbox have.
pub fn settings_environment(agent: &Agent) -> Vec<(OsString, OsString)> {
    let mut all = agent.settings().environment;
    all.entry("PATH".into()).or_insert_with(|| PATH.into());
    all.into_iter().map(|(name, value)| (name.into(), value.into())).collect()
}

fn environment(agent: &Agent, identity: &IdentityRequest) -> Vec<(OsString, OsString)> {
    let mut all = settings_environment(agent);
    // Of a name that is there twice, the last counts.
    all.extend([
        ("FORKD_ID".into(), identity.id.clone().into()),
        ("FORKD_INDEX".into(), identity.index.to_string().into()),
        ("FORKD_GENERATION".into(), identity.generation.to_string().into()),
    ]);
    all
}

fn programs(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let executable = |data: std::fs::Metadata| data.is_file() && data.permissions().mode() & 0o111 != 0;
    let mut found = listing::paths(directory)?;
    found.retain(|path| std::fs::metadata(path).is_ok_and(executable));
    found.sort();
    found.truncate(MAX_HOOKS);
    Ok(found)
}
