//! The ready probe: tried until it passes, at first often and then less.

use std::net::Ipv4Addr;
use std::time::Duration;

use forkd_envd::Exit;
use tokio::net::TcpStream;

use crate::agent::Agent;
use crate::children::{Signal, Source, Spec, Stdio, Target};
use crate::users;
use forkd_proto::agent::startup::Probe;

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// One attempt of a command. It may hang; the next one may not.
const ATTEMPT: Duration = Duration::from_secs(30);
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Returns when the probe has passed, or never can.
pub async fn pass(agent: &Agent, probe: &Probe) -> Result<(), String> {
    let mut pause = FIRST_PAUSE;
    loop {
        let passed = match probe {
            Probe::Port(port) => TcpStream::connect((Ipv4Addr::LOCALHOST, *port)).await.is_ok(),
            Probe::Command(words) => command(agent, words).await?,
        };
        if passed {
            return Ok(());
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn command(agent: &Agent, words: &[String]) -> Result<bool, String> {
    let mut environment = agent.settings().environment;
    environment.entry("PATH".into()).or_insert_with(|| PATH.into());
    let spec = Spec {
        program: words.first().cloned().unwrap_or_default().into(),
        arguments: words.iter().skip(1).map(Into::into).collect(),
        environment: environment.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
        directory: "/".into(),
        user: users::current(),
        stdio: Stdio::Streams { input: Source::Null, output: Target::Null, error: Target::Null },
    };
    let mut child =
        agent.children.spawn(spec).await.map_err(|error| format!("the ready probe cannot run: {error}"))?;
    match tokio::time::timeout(ATTEMPT, child.exit.wait()).await {
        Ok(exit) => Ok(exit == Exit::Code(0)),
        Err(_) => {
            // It may have ended in this moment.
            let _ = agent.children.signal_group(child.pid, Signal::KILL).await;
            Ok(false)
        }
    }
}
