//! `forkd mcp`: sandboxes as tools of a model, over stdin and stdout.

mod config_file;
pub mod install;

use std::sync::Arc;

use forkd_client::Client;
use forkd_mcp::{Failure, FindDaemon, McpService, serve_stdio};
use tokio::sync::Mutex;

use super::asynchronously;
use crate::arguments::{DaemonOptions, McpOptions};
use crate::daemon;
use crate::error::CliError;
use crate::exit::Exit;
use crate::logging;

pub fn run(options: McpOptions) -> Result<Exit, CliError> {
    let serve = options.serve;
    logging::start(&serve.log)?;
    let found = Found { options: serve.daemon, client: Mutex::default() };
    let service = McpService::new(serve.behaviour.settings(), Arc::new(found));
    asynchronously(async { serve_stdio(service).await.map_err(CliError::of_verb) })?;
    Ok(Exit::Success)
}

/// The daemon that other commands would find. It is looked for when it is needed: it may start later than the client.
#[derive(Debug)]
struct Found {
    options: DaemonOptions,
    client: Mutex<Option<Client>>,
}

impl FindDaemon for Found {
    fn find<'a>(
        &'a self,
        _: &'a forkd_mcp::Extensions,
    ) -> std::pin::Pin<Box<dyn Future<Output = Result<Client, Failure>> + Send + 'a>> {
        Box::pin(async {
            let mut kept = self.client.lock().await;
            if let Some(client) = &*kept
                && client.health().await.is_ok()
            {
                return Ok(client.clone());
            }
            let found = daemon::find(&self.options).await.map_err(|error| unfound(&error))?;
            *kept = Some(found.clone());
            Ok(found)
        })
    }
}

fn unfound(error: &CliError) -> Failure {
    let failure = Failure::new("Cannot find the daemon", error.to_string());
    match error.hint() {
        Some(hint) => failure.next(format!("ask the user to start one: {hint}")),
        None => failure,
    }
}
