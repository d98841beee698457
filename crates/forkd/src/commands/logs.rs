//! `forkd logs ID`.

use std::time::Duration;

use forkd_api::sandbox::SandboxState;

use super::{print, with_daemon};
use crate::arguments::ConsoleOptions;
use crate::error::CliError;
use crate::exit::Exit;

const POLL: Duration = Duration::from_millis(500);
/// The most that the daemon gives at once.
const MOST: u64 = 1 << 20;
/// So much of what was printed is looked for in what there is now.
const KNOWN: usize = 4096;

pub fn run(options: &ConsoleOptions) -> Result<Exit, CliError> {
    with_daemon(&options.daemon, async |client| {
        let id = &options.sandbox;
        let mut before = client.console(id, Some(options.bytes)).await?;
        print(&before)?;
        let mut goes_on = options.follow;
        while goes_on {
            let has_ended = client.sandbox(id).await?.state == SandboxState::Ended;
            let now = client.console(id, Some(MOST)).await?;
            print(new_part(&before, &now))?;
            before = now;
            goes_on = !has_ended;
            tokio::time::sleep(if has_ended { Duration::ZERO } else { POLL }).await;
        }
        Ok(Exit::Success)
    })
}

/// What has come since: both are ends of the same log, the later one usually with more before it, too.
fn new_part<'a>(before: &str, now: &'a str) -> &'a str {
    let start = before.ceil_char_boundary(before.len().saturating_sub(KNOWN));
    // The beginning may be half a character that was replaced, which is found nowhere else.
    let known = before.get(start..).unwrap_or_default().trim_start_matches('\u{fffd}');
    match now.rfind(known) {
        Some(found) => now.get(found + known.len()..).unwrap_or_default(),
        // So much has come that what was known is gone.
        None => now,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_new_is_printed_again() {
        assert_eq!(new_part("", "abc"), "");
        assert_eq!(new_part("ab", "abcd"), "cd");
        assert_eq!(new_part("lines\nmore\n", "earlier lines\nmore\nlast\n"), "last\n");
        assert_eq!(new_part("\u{fffd}b", "\u{e9}bc"), "c");
        assert_eq!(new_part("gone", "all of it is new"), "all of it is new");
        let long = "x".repeat(10_000);
        assert_eq!(new_part(&format!("{long}end"), &format!("{long}end!")), "!");
    }
}
