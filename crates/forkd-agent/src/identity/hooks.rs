//! The image's own programs that want to know of a fork: `/etc/forkd/fork.d/*`, in the order of their names.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::agent::Agent;
use crate::children::{Exit, Signal, Source, Spec, Stdio, Target};
use crate::listing;
use crate::runtime::blocking;
use crate::users;
use forkd_proto::agent::identity::IdentityRequest;

const LIMIT: Duration = Duration::from_secs(10);
const MAX_HOOKS: usize = 100;
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Runs them one after the other. Returns what went wrong; a failure keeps none of the others from running.
pub async fn run(agent: &Agent, directory: PathBuf, identity: &IdentityRequest) -> Vec<String> {
    let programs = match blocking(move || programs(&directory)).await {
        Ok(Ok(programs)) => programs,
        Ok(Err(error)) | Err(error) => return vec![format!("cannot read the hooks: {error}")],
    };
    let mut problems = Vec::new();
    for program in programs {
        if let Err(problem) = run_one(agent, &program, identity).await {
            problems.push(format!("{}: {problem}", program.display()));
        }
    }
    problems
}

async fn run_one(agent: &Agent, program: &Path, identity: &IdentityRequest) -> Result<(), String> {
    let spec = Spec {
        program: program.into(),
        arguments: Vec::new(),
        environment: environment(agent, identity),
        directory: "/".into(),
        user: users::current(),
        stdio: Stdio::Streams { input: Source::Null, output: Target::Null, error: Target::Null },
    };
    let mut child = agent.children.spawn(spec).await.map_err(|error| error.to_string())?;
    match tokio::time::timeout(LIMIT, child.exit.wait()).await {
        Ok(Exit::Code(0)) => Ok(()),
        Ok(exit) => Err(exit.describe()),
        Err(_) => {
            // It may have ended in this moment.
            let _ = agent.children.signal_group(child.pid, Signal::KILL).await;
            Err(format!("took more than {} s and was killed", LIMIT.as_secs()))
        }
    }
}

fn environment(agent: &Agent, identity: &IdentityRequest) -> Vec<(OsString, OsString)> {
    let mut all = agent.settings().environment;
    all.entry("PATH".into()).or_insert_with(|| PATH.into());
    all.insert("FORKD_ID".into(), identity.id.clone());
    all.insert("FORKD_INDEX".into(), identity.index.to_string());
    all.insert("FORKD_GENERATION".into(), identity.generation.to_string());
    all.into_iter().map(|(name, value)| (name.into(), value.into())).collect()
}

fn programs(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let executable = |data: std::fs::Metadata| data.is_file() && data.permissions().mode() & 0o111 != 0;
    let mut found = listing::paths(directory)?;
    found.retain(|path| std::fs::metadata(path).is_ok_and(executable));
    found.sort();
    found.truncate(MAX_HOOKS);
    Ok(found)
}
