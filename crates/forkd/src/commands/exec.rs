//! `forkd exec ID -- COMMAND`.

use super::{print_json, process, run, with_daemon};
use crate::arguments::ExecIn;
use crate::error::CliError;
use crate::exit::Exit;
use crate::session;
use crate::signals::Signals;

pub fn run(options: &ExecIn) -> Result<Exit, CliError> {
    let (exec, mode) = run::plan(&options.how, &options.command);
    with_daemon(&options.daemon, async |client| {
        if options.detach {
            let wanted = process::detached(exec, options.how.interactive);
            return process::start(&client, &options.sandbox, &wanted, &options.output).await;
        }
        if options.output.json {
            let executed = client.exec(&options.sandbox, &exec).await?;
            print_json(&executed)?;
            return Ok(Exit::of_guest(executed.exit_code));
        }
        session::run(&client, &options.sandbox, &exec, mode, &mut Signals::new()?).await
    })
}
