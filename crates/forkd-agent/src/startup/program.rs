//! The image's start command, watched until the guest is ready.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use forkd_envd::Exit;
use tokio::net::unix::pipe;

use super::probe;
use crate::agent::Agent;
use crate::children::{ExitWatch, Output, Source, Spec, Stdio, Target};
use crate::runtime::blocking;
use crate::users::Users;
use forkd_proto::agent::startup::{ConfigRequest, Start};

/// How much of its output is kept, to report why it failed.
const LAST_WORDS: usize = 4096;
const CHUNK: usize = 4096;
/// After its exit, for output that is still in the pipe. Others may hold the pipe open for ever.
const REST: Duration = Duration::from_millis(200);
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Starts the command, if there is one, and waits until the guest is ready or cannot become so.
pub async fn start_and_wait(agent: &Agent, config: &ConfigRequest) -> Result<(), String> {
    let mut started = match &config.start {
        Some(start) => Some(run(agent, start).await?),
        None => None,
    };
    let Some(ready) = &config.ready else { return Ok(()) };
    let limit = Duration::from_millis(ready.timeout_ms);
    let probing = tokio::time::timeout(limit, probe::pass(agent, &ready.probe));
    tokio::select! {
        passed = probing => passed.unwrap_or_else(|_| Err(late(limit))),
        failure = failed(started.as_mut()) => Err(failure),
    }
}

fn late(limit: Duration) -> String {
    format!("the ready probe did not pass within {} s", limit.as_secs_f64())
}

/// A started command: how it ends, and then its last words.
struct Started {
    exit: ExitWatch,
    last_words: tokio::task::JoinHandle<String>,
}

/// Ready when the command has failed. One that ends with status 0 may have started something else.
async fn failed(started: Option<&mut Started>) -> String {
    let Some(started) = started else { return std::future::pending().await };
    let exit = started.exit.wait().await;
    if exit == Exit::Code(0) {
        return std::future::pending().await;
    }
    let last_words = (&mut started.last_words).await.unwrap_or_default();
    format!("the start command ended before the guest was ready ({}): {last_words}", exit.describe())
}

async fn run(agent: &Agent, start: &Start) -> Result<Started, String> {
    let settings = agent.settings();
    let name = start.user.clone().unwrap_or(settings.default_user);
    let user = blocking(move || Users::read().find(&name)).await.map_err(|error| error.to_string())?;
    let user = user.map_err(|error| error.to_string())?;
    let directory = start.workdir.clone().map(Into::into).or(settings.default_workdir);
    let mut environment = settings.environment;
    environment.entry("PATH".into()).or_insert_with(|| PATH.into());
    environment.entry("HOME".into()).or_insert_with(|| user.home.to_string_lossy().into_owned());
    let (reader, writer) = io::pipe().map_err(|error| error.to_string())?;
    let both = writer.try_clone().map_err(|error| error.to_string())?;
    let spec = Spec {
        program: start.command.first().cloned().unwrap_or_default().into(),
        arguments: start.command.iter().skip(1).map(Into::into).collect(),
        environment: environment.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
        directory: directory.unwrap_or_else(|| "/".into()),
        user,
        stdio: Stdio::Streams {
            input: Source::Null,
            output: Target::Descriptor(writer.into()),
            error: Target::Descriptor(both.into()),
        },
    };
    let child = agent.children.spawn(spec).await.map_err(|error| error.to_string())?;
    let receiver = pipe::Receiver::from_owned_fd(reader.into()).map_err(|error| error.to_string())?;
    let last_words = tokio::spawn(listen(Output::Pipe(receiver), child.exit.clone()));
    Ok(Started { exit: child.exit, last_words })
}

/// Reads all that the command prints, for as long as it lives, and keeps the end.
async fn listen(mut output: Output, mut exit: ExitWatch) -> String {
    let mut kept = Vec::new();
    let mut keep = |chunk: &Bytes| {
        kept.extend_from_slice(chunk);
        kept.drain(..kept.len().saturating_sub(LAST_WORDS));
    };
    loop {
        tokio::select! {
            biased;
            chunk = output.read(CHUNK) => match chunk {
                Ok(chunk) if !chunk.is_empty() => keep(&chunk),
                _ => break,
            },
            _ = exit.wait() => {
                while let Ok(Ok(chunk)) = tokio::time::timeout(REST, output.read(CHUNK)).await {
                    if chunk.is_empty() {
                        break;
                    }
                    keep(&chunk);
                }
                break;
            }
        }
    }
    String::from_utf8_lossy(&kept).trim().to_owned()
}
