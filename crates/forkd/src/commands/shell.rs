//! `forkd shell ID`.

use std::io::{self, IsTerminal};

use super::{run, with_daemon};
use crate::arguments::{How, ShellIn};
use crate::error::CliError;
use crate::exit::Exit;
use crate::session;
use crate::signals::Signals;

/// As long as the daemon gives.
const DAY_SECS: u64 = 24 * 3600;

pub fn run(options: &ShellIn) -> Result<Exit, CliError> {
    if !io::stdin().is_terminal() {
        return Err(CliError::NoTerminal);
    }
    let how = How {
        interactive: true,
        tty: true,
        env: options.env.clone(),
        cwd: options.cwd.clone(),
        user: options.user.clone(),
        timeout: DAY_SECS,
    };
    let (exec, mode) = run::plan(&how, &options.command);
    with_daemon(&options.daemon, async |client| {
        session::run(&client, &options.sandbox, &exec, mode, &mut Signals::new()?).await
    })
}
