//! `forkd rollback ID TAG`.

use super::{inspect, say, with_daemon};
use crate::arguments::RollbackOptions;
use crate::error::CliError;
use crate::exit::Exit;

pub fn run(options: &RollbackOptions) -> Result<Exit, CliError> {
    let (id, tag) = (&options.sandbox, &options.tag);
    let sandbox = with_daemon(&options.daemon, async |client| Ok(client.rollback(id, tag).await?))?;
    if options.output.json {
        inspect::show(&sandbox, &options.output)?;
    } else {
        say(&format!("Sandbox {id} is back at {tag}."));
    }
    Ok(Exit::Success)
}
