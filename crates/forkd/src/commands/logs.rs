//! `forkd logs ID`.

use std::io::{self, Write};

use forkd_client::Client;

use super::{print, with_daemon};
use crate::arguments::ConsoleOptions;
use crate::error::CliError;
use crate::exit::Exit;

/// The daemon returns no more of a console, and keeps little more.
const LONGEST: u64 = 1 << 20;

pub fn run(options: &ConsoleOptions) -> Result<Exit, CliError> {
    with_daemon(&options.daemon, async |client| {
        match (options.follow, options.tail) {
            (true, tail) => follow(&client, options, tail).await?,
            (false, Some(count)) => {
                print(last_lines(&client.console(&options.sandbox, Some(LONGEST)).await?, count))?;
            }
            (false, None) => print(&client.console(&options.sandbox, Some(options.bytes)).await?)?,
        }
        Ok(Exit::Success)
    })
}

async fn follow(client: &Client, options: &ConsoleOptions, tail: Option<u64>) -> Result<(), CliError> {
    let bytes = match tail {
        None => options.bytes,
        // What the guest prints between the two requests moves the beginning by as much.
        Some(count) => {
            let text = client.console(&options.sandbox, Some(LONGEST)).await?;
            (last_lines(&text, count).len() as u64).clamp(1, LONGEST)
        }
    };
    let mut pieces = client.follow_console(&options.sandbox, Some(bytes)).await?;
    while let Some(piece) = pieces.next().await? {
        let written = io::stdout().write_all(&piece).and_then(|()| io::stdout().flush());
        match written {
            // `forkd logs -f … | head` has read what it wanted.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
            written => written.map_err(|error| CliError::Io("write to stdout", error))?,
        }
    }
    Ok(())
}

fn last_lines(text: &str, count: u64) -> &str {
    let lines = text.strip_suffix('\n').unwrap_or(text);
    let skipped = usize::try_from(count).unwrap_or(usize::MAX).saturating_sub(1);
    lines.rmatch_indices('\n').nth(skipped).map_or(text, |(end, _)| &text[end + 1..])
}

#[cfg(test)]
mod tests {
    use super::last_lines;

    #[test]
    fn the_last_lines_of_a_console() {
        for (text, count, last) in [
            ("a\nb\nc\n", 1, "c\n"),
            ("a\nb\nc", 2, "b\nc"),
            ("a\n\n", 1, "\n"),
            ("a\nb\n", 2, "a\nb\n"),
            ("a\nb\n", 9, "a\nb\n"),
            ("", 1, ""),
        ] {
            assert_eq!(last_lines(text, count), last, "{count} of {text:?}");
        }
    }
}
