//! `forkd ping`.

use std::time::Instant;

use forkd_api::exec::Exec;
use serde::Serialize;

use super::{print, print_json, with_daemon};
use crate::arguments::PingOptions;
use crate::error::CliError;
use crate::exit::Exit;
use crate::moment::microseconds;

/// How long an agent may take to run a program that does nothing.
const AGENT_SECS: u64 = 10;

#[derive(Serialize)]
struct Answer {
    address: String,
    version: String,
    api: String,
    daemon_us: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    sandbox: Option<String>,
    /// Until a program that does nothing has run in the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    sandbox_us: Option<u64>,
}

pub fn run(options: &PingOptions) -> Result<Exit, CliError> {
    let answer = with_daemon(&options.daemon, async |client| {
        // The first one has made the connection.
        client.health().await?;
        let begun = Instant::now();
        let version = client.version().await?;
        let daemon_us = since(begun);
        let mut answer = Answer {
            address: client.address().to_string(),
            version: version.version,
            api: version.api,
            daemon_us,
            sandbox: options.sandbox.clone(),
            sandbox_us: None,
        };
        if let Some(id) = &options.sandbox {
            let nothing = Exec {
                args: vec!["true".into()],
                env: Default::default(),
                cwd: None,
                user: None,
                stdin: None,
                timeout_secs: AGENT_SECS,
            };
            let begun = Instant::now();
            client.exec(id, &nothing).await?;
            answer.sandbox_us = Some(since(begun));
        }
        Ok(answer)
    })?;
    if options.output.json {
        print_json(&answer)?;
    } else {
        let Answer { address, version, daemon_us, .. } = &answer;
        print(&format!("forkd {version} at {address} answers in {}\n", microseconds(*daemon_us)))?;
        if let (Some(id), Some(us)) = (&answer.sandbox, answer.sandbox_us) {
            print(&format!("sandbox {id} has run a program in {}\n", microseconds(us)))?;
        }
    }
    Ok(Exit::Success)
}

fn since(begun: Instant) -> u64 {
    u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX)
}
