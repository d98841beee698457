//! `forkd stats`.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use forkd_api::error::ErrorCode;
use forkd_api::sandbox::{ListSandboxes, SandboxState, SandboxStats};
use forkd_client::Client;
use serde::Serialize;

use super::{print, print_json, with_daemon};
use crate::arguments::StatsOptions;
use crate::error::CliError;
use crate::exit::Exit;
use crate::moment::{bytes, microseconds};
use crate::table::{Side, Table};

/// Clears the screen from its top.
const CLEAR: &str = "\u{1b}[H\u{1b}[J";

#[derive(Debug, Serialize)]
struct Used {
    id: String,
    snapshot_tag: String,
    #[serde(flatten)]
    stats: SandboxStats,
    #[serde(skip)]
    at: Option<Instant>,
}

pub fn run(options: &StatsOptions) -> Result<Exit, CliError> {
    with_daemon(&options.daemon, async |client| {
        if options.output.json {
            print_json(&look(&client, &options.sandboxes).await?)?;
            return Ok(Exit::Success);
        }
        let live = !options.no_stream && io::stdout().is_terminal();
        let mut before = BTreeMap::new();
        loop {
            let used = look(&client, &options.sandboxes).await?;
            let table = render(&used, &before);
            if !live {
                print(&table)?;
                return Ok(Exit::Success);
            }
            print(&format!("{CLEAR}{table}"))?;
            before = used.into_iter().map(|used| (used.id.clone(), used)).collect();
            tokio::time::sleep(Duration::from_secs(options.interval)).await;
        }
    })
}

/// What those sandboxes use that are named, or all that there are.
async fn look(client: &Client, names: &[String]) -> Result<Vec<Used>, CliError> {
    let mut found = Vec::new();
    if names.is_empty() {
        let all = client.sandboxes(&ListSandboxes::default()).await?;
        found.extend(all.into_iter().filter(|sandbox| sandbox.state != SandboxState::Ended));
    }
    for name in names {
        found.push(client.sandbox(name).await?);
    }
    let mut used = Vec::new();
    for sandbox in found {
        let stats = match client.stats(&sandbox.id).await {
            Ok(stats) => stats,
            // It has gone since it was listed.
            Err(error)
                if names.is_empty()
                    && matches!(error.code(), Some(ErrorCode::NotFound | ErrorCode::WrongState)) =>
            {
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        used.push(Used {
            id: sandbox.id,
            snapshot_tag: sandbox.snapshot_tag,
            stats,
            at: Some(Instant::now()),
        });
    }
    Ok(used)
}

fn render(used: &[Used], before: &BTreeMap<String, Used>) -> String {
    let mut table = Table::new([
        ("ID", Side::Left),
        ("SNAPSHOT", Side::Left),
        ("CPU", Side::Right),
        ("CPU TIME", Side::Right),
        ("PRIVATE", Side::Right),
        ("SHARED", Side::Right),
        ("DISK", Side::Right),
        ("SENT", Side::Right),
        ("RECEIVED", Side::Right),
    ]);
    for one in used {
        table.row([
            one.id.clone(),
            one.snapshot_tag.clone(),
            before.get(&one.id).and_then(|before| load(before, one)).unwrap_or_else(|| "-".into()),
            microseconds(one.stats.cpu_us),
            bytes(one.stats.memory_private_bytes),
            bytes(one.stats.memory_shared_bytes),
            bytes(one.stats.disk_bytes),
            one.stats.network.map(|network| bytes(network.sent_bytes)).unwrap_or_else(|| "-".into()),
            one.stats.network.map(|network| bytes(network.received_bytes)).unwrap_or_else(|| "-".into()),
        ]);
    }
    table.render()
}

/// How much of one CPU was used between two looks.
fn load(before: &Used, now: &Used) -> Option<String> {
    let passed = now.at?.checked_duration_since(before.at?)?.as_micros();
    let used = u128::from(now.stats.cpu_us.saturating_sub(before.stats.cpu_us));
    Some(format!("{}%", (used * 100).checked_div(passed)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_is_what_was_used_since_the_last_look() {
        let begun = Instant::now();
        let used = |cpu_us, ms| Used {
            id: "i".into(),
            snapshot_tag: "base".into(),
            stats: SandboxStats { cpu_us, ..Default::default() },
            at: Some(begun + Duration::from_millis(ms)),
        };
        assert_eq!(load(&used(100_000, 0), &used(600_000, 1000)).unwrap(), "50%");
        assert_eq!(load(&used(0, 0), &used(4_000_000, 2000)).unwrap(), "200%");
        assert_eq!(load(&used(0, 0), &used(1, 0)), None);
        // A sandbox that went back has a new process.
        assert_eq!(load(&used(9, 0), &used(1, 1000)).unwrap(), "0%");
    }
}
