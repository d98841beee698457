//! `forkd logs ID`.

use std::io::{self, Write};

use super::{print, with_daemon};
use crate::arguments::ConsoleOptions;
use crate::error::CliError;
use crate::exit::Exit;

pub fn run(options: &ConsoleOptions) -> Result<Exit, CliError> {
    with_daemon(&options.daemon, async |client| {
        let id = &options.sandbox;
        if !options.follow {
            print(&client.console(id, Some(options.bytes)).await?)?;
            return Ok(Exit::Success);
        }
        let mut pieces = client.follow_console(id, Some(options.bytes)).await?;
        while let Some(piece) = pieces.next().await? {
            let written = io::stdout().write_all(&piece).and_then(|()| io::stdout().flush());
            match written {
                // `forkd logs -f … | head` has read what it wanted.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
                written => written.map_err(|error| CliError::Io("write to stdout", error))?,
            }
        }
        Ok(Exit::Success)
    })
}
