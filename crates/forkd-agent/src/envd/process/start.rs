//! `Start`: a new process, and its stream.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::response::Response;
use forkd_envd::connect::{Code, ConnectError};
use forkd_envd::process::{KEEPALIVE, StartRequest};

use super::environment::{directory, variables};
use super::input::ProcessInputs;
use super::pump::Pump;
use super::subscribers::Subscribers;
use super::table::Process;
use crate::agent::Agent;
use crate::children::{Child, ExitWatch, Signal, Source, SpawnError, Spec, Stdio, Target};
use crate::connect::{self, error_response};
use crate::envd::caller;

pub async fn start(State(agent): State<Arc<Agent>>, request: Request) -> Response {
    serve(agent, request).await.unwrap_or_else(|error| error_response(&error))
}

async fn serve(agent: Arc<Agent>, request: Request) -> Result<Response, ConnectError> {
    let (headers, message) = connect::read_request::<StartRequest>(request).await?;
    let limit = connect::timeout(&headers)?;
    let spec = specify(&agent, &headers, &message).await?;
    let (sender, response) = connect::respond(&headers, KEEPALIVE)?;
    // A task of its own: from here on the process is the sandbox's, and a client that goes away must not leave it half known.
    let started = tokio::spawn(async move {
        let child = agent.children.spawn(spec).await.map_err(|error| refusal(&error))?;
        if let Some(limit) = limit {
            tokio::spawn(kill_after(limit, Arc::clone(&agent), child.pid, child.exit.clone()));
        }
        let (process, pump) = take_apart(child, message);
        process.subscribers.add(sender).await;
        agent.processes.insert(Arc::clone(&process));
        tokio::spawn(pump.run(agent, process));
        Ok(())
    });
    started.await.map_err(|error| ConnectError::new(Code::Internal, error.to_string()))??;
    Ok(response)
}

async fn specify(agent: &Agent, headers: &HeaderMap, message: &StartRequest) -> Result<Spec, ConnectError> {
    let config = &message.process;
    if config.cmd.is_empty() {
        return Err(ConnectError::invalid("the request names no program"));
    }
    let user = caller::user(agent, headers).await?;
    let settings = agent.settings();
    let stdio = match &message.pty {
        Some(pty) => Stdio::Terminal(pty.size()?),
        None => {
            let input = if message.stdin.unwrap_or(true) { Source::Pipe } else { Source::Null };
            Stdio::Streams { input, output: Target::Pipe, error: Target::Pipe }
        }
    };
    Ok(Spec {
        program: config.cmd.clone().into(),
        arguments: config.args.iter().map(Into::into).collect(),
        environment: variables(&user, &settings, config),
        directory: directory(&user, &settings, config.cwd.as_deref()).await?,
        user,
        stdio,
    })
}

fn take_apart(child: Child, message: StartRequest) -> (Arc<Process>, Pump) {
    let process = Process {
        pid: child.pid,
        tag: message.tag,
        config: message.process,
        inputs: ProcessInputs::new(child.input),
        terminal: child.terminal,
        subscribers: Subscribers::new(child.pid),
    };
    (Arc::new(process), Pump { output: child.output, error: child.error, exit: child.exit })
}

/// The time limit of the call is the process's, whether or not the client still listens.
async fn kill_after(limit: Duration, agent: Arc<Agent>, pid: u32, mut exit: ExitWatch) {
    if tokio::time::timeout(limit, exit.wait()).await.is_err() {
        // It may have ended in this moment.
        let _ = agent.children.signal_group(pid, Signal::KILL).await;
    }
}

fn refusal(error: &SpawnError) -> ConnectError {
    let code = match error {
        SpawnError::NotFound(_) => Code::NotFound,
        SpawnError::Denied(_) => Code::PermissionDenied,
        SpawnError::Invalid(_) => Code::InvalidArgument,
        SpawnError::Exhausted(_) => Code::ResourceExhausted,
        SpawnError::Start { .. } => Code::Internal,
    };
    ConnectError::new(code, error.to_string())
}
