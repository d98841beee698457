//! `forkd fork`.

use std::collections::BTreeMap;

use forkd_api::sandbox::{CreateSandboxes, CreatedSandboxes};
use forkd_client::Client;

use super::snapshot::pull::{is_reference, pull};
use super::{lines, print, print_json, say, with_daemon};
use crate::arguments::{ForkOptions, Given};
use crate::error::CliError;
use crate::exit::Exit;
use crate::moment::microseconds;
use crate::signals::Signals;

pub fn run(options: &ForkOptions) -> Result<Exit, CliError> {
    forkd_proto::passes!();
    with_daemon(&options.daemon, async |client| {
        let source = match is_reference(&options.source) {
            true => {
                let snapshot = pull(&client, &options.source, None, None, true).await?;
                say(&format!("forkd: {} is snapshot {}", options.source, snapshot.tag));
                snapshot.tag
            }
            false => options.source.clone(),
        };
        let mut wanted = CreateSandboxes {
            source: Some(source),
            n: options.n,
            partial: options.partial,
            ..Default::default()
        };
        give(&mut wanted, &options.given);
        let created = create(&client, &wanted, &mut Signals::new()?).await?;
        for failure in &created.failures {
            say(&format!("forkd: a sandbox did not start: {}", failure.error));
        }
        if options.output.json {
            print_json(&created)?;
        } else {
            print(&lines(created.sandboxes.iter().map(|sandbox| &sandbox.id)))?;
            let time = microseconds(created.timing.ready_us);
            say(&format!("{} ready, after {time}", created.sandboxes.len()));
        }
        Ok(if created.failures.is_empty() { Exit::Success } else { Exit::Failure })
    })
}

fn give(wanted: &mut CreateSandboxes, given: &Given) {
    let map = |pairs: &[(String, String)]| pairs.iter().cloned().collect::<BTreeMap<_, _>>();
    wanted.ttl_secs = given.ttl;
    wanted.on_expiry = given.on_expiry;
    wanted.wake_on_traffic = given.wake_on_traffic;
    wanted.env = map(&given.env);
    wanted.metadata = map(&given.metadata);
    wanted.egress = given.egress.wanted();
    wanted.limits = given.limits.to_limits();
}

/// Makes sandboxes. The daemon makes them to the end once it was asked, so an interrupted command waits for them
/// and removes them.
pub(super) async fn create(
    client: &Client,
    wanted: &CreateSandboxes,
    signals: &mut Signals,
) -> Result<CreatedSandboxes, CliError> {
    let mut creating = std::pin::pin!(client.create_sandboxes(wanted));
    let asked = tokio::select! {
        created = creating.as_mut() => return Ok(created?),
        asked = signals.end() => asked,
    };
    if let Ok(created) = creating.await {
        for sandbox in created.sandboxes {
            remove(client, &sandbox.id).await;
        }
    }
    Err(CliError::Interrupted(asked.status()))
}

/// Removes a sandbox of this command's own. That it could not be removed is said, and changes nothing else.
pub(super) async fn remove(client: &Client, id: &str) {
    match client.remove_sandbox(id).await {
        Err(error) if !error.is_not_found() => {
            say(&format!("forkd: warning: sandbox {id} could not be removed: {error}"));
        }
        _ => {}
    }
}
