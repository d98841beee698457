//! `forkd wait`.

use std::time::Duration;

use forkd_api::event::{EventQuery, What};
use forkd_api::sandbox::{Ended, SandboxState};
use forkd_client::{Client, ClientError, Lines};
use serde::Serialize;
use tokio::time::{Instant, sleep, timeout};

use super::{print, print_json, with_daemon};
use crate::arguments::WaitOptions;
use crate::error::CliError;
use crate::exit::Exit;
use crate::table::plain;

/// How long a daemon may be away. One that is restarted finds its sandboxes again.
const AWAY: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(500);
/// A filter of events has no more names.
const MOST_NAMES: usize = 100;

#[derive(Serialize)]
struct Waited {
    sandbox: String,
    /// Why it ended; missing if it was removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<Ended>,
}

pub fn run(options: &WaitOptions) -> Result<Exit, CliError> {
    with_daemon(&options.daemon, async |client| {
        let mut waited = Vec::new();
        let all = until_ended(&client, &options.sandboxes, |sandbox, ended| {
            let sandbox = sandbox.to_owned();
            if !options.output.json {
                let why = ended.as_ref().map_or("removed", |ended| &ended.detail);
                print(&format!("{sandbox}  {}\n", plain(why)))?;
            }
            waited.push(Waited { sandbox, ended });
            Ok(())
        });
        match options.timeout {
            None => all.await?,
            Some(seconds) => timeout(Duration::from_secs(seconds), all)
                .await
                .map_err(|_| CliError::StillRunning { seconds })??,
        }
        if options.output.json {
            print_json(&waited)?;
        }
        Ok(Exit::Success)
    })
}

/// Waits until all of these sandboxes have ended or were removed, and reports each.
pub(super) async fn until_ended(
    client: &Client,
    sandboxes: &[String],
    mut report: impl FnMut(&str, Option<Ended>) -> Result<(), CliError>,
) -> Result<(), CliError> {
    let mut left: Vec<&str> = Vec::new();
    for id in sandboxes {
        if !left.contains(&id.as_str()) {
            left.push(id);
        }
    }
    let mut known = false;
    while !left.is_empty() {
        // Before the sandboxes are looked at, so that no end falls between the two.
        let mut events = follow(client, &left).await?;
        let mut running = Vec::new();
        for id in left {
            match client.sandbox(id).await {
                Ok(sandbox) if sandbox.state == SandboxState::Ended => report(id, sandbox.ended)?,
                Ok(_) => running.push(id),
                Err(error) if error.is_not_found() && known => report(id, None)?,
                Err(error) => return Err(error.into()),
            }
        }
        (left, known) = (running, true);
        while !left.is_empty() {
            let (id, ended) = match events.next().await {
                Ok(Some(event)) => match event.what {
                    What::Sandbox { id, ended: Some(ended), .. } => (id, Some(ended)),
                    What::SandboxRemoved { id } => (id, None),
                    What::Missed { .. } => break,
                    _ => continue,
                },
                // The daemon was restarted, perhaps.
                Ok(None) | Err(ClientError::Broken(_) | ClientError::CutOff) => break,
                Err(error) => return Err(error.into()),
            };
            if let Some(place) = left.iter().position(|one| *one == id) {
                left.remove(place);
                report(&id, ended)?;
            }
        }
    }
    Ok(())
}

/// The events of these sandboxes.
async fn follow(client: &Client, sandboxes: &[&str]) -> Result<Lines<forkd_api::event::Event>, CliError> {
    let wanted = EventQuery {
        sandbox: (sandboxes.len() <= MOST_NAMES).then(|| sandboxes.join(",")),
        event: Some("sandbox,sandbox_removed".into()),
        ..EventQuery::default()
    };
    let begun = Instant::now();
    loop {
        match client.events(&wanted).await {
            Err(ClientError::Unreachable { .. } | ClientError::Broken(_)) if begun.elapsed() < AWAY => {
                sleep(PAUSE).await;
            }
            answer => return Ok(answer?),
        }
    }
}
