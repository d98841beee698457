//! `forkd context …`.

use forkd_api::code::CreateCodeContext;

use super::{print_value, say, with_daemon};
use crate::arguments::{ContextCommand, ContextInterruptOptions, ContextLsOptions, ContextNewOptions};
use crate::error::CliError;
use crate::exit::Exit;
use crate::table::{Side, Table};

pub fn run(command: &ContextCommand) -> Result<Exit, CliError> {
    match command {
        ContextCommand::Ls(options) => list(options),
        ContextCommand::New(options) => new(options),
        ContextCommand::Interrupt(options) => interrupt(options),
        ContextCommand::Restart(options) => with_daemon(&options.daemon, async |client| {
            client.restart_context(&options.sandbox, &options.context).await?;
            Ok(Exit::Success)
        }),
        ContextCommand::Rm(options) => with_daemon(&options.daemon, async |client| {
            client.remove_context(&options.sandbox, &options.context).await?;
            Ok(Exit::Success)
        }),
    }
}

fn list(options: &ContextLsOptions) -> Result<Exit, CliError> {
    let contexts =
        with_daemon(&options.daemon, async |client| Ok(client.contexts(&options.sandbox).await?))?;
    print_value(&options.output, &contexts, || {
        let columns =
            [("ID", Side::Left), ("LANGUAGE", Side::Left), ("STATE", Side::Left), ("CWD", Side::Left)];
        let mut table = Table::new(columns);
        for context in &contexts {
            let state = if context.busy { "busy" } else { "idle" };
            table.row([context.id.clone(), context.language.clone(), state.into(), context.cwd.clone()]);
        }
        table.render()
    })?;
    Ok(Exit::Success)
}

fn new(options: &ContextNewOptions) -> Result<Exit, CliError> {
    let wanted = CreateCodeContext { language: options.language.into(), cwd: options.cwd.clone() };
    let made = with_daemon(&options.daemon, async |client| {
        Ok(client.create_context(&options.sandbox, &wanted).await?)
    })?;
    print_value(&options.output, &made, || format!("{}\n", made.id))?;
    Ok(Exit::Success)
}

fn interrupt(options: &ContextInterruptOptions) -> Result<Exit, CliError> {
    let done = with_daemon(&options.daemon, async |client| {
        Ok(client.interrupt_context(&options.sandbox, &options.context, options.grace).await?)
    })?;
    if done.restarted && !options.output.json {
        say(&format!(
            "forkd: the code did not end within {} s; context {} has a new interpreter",
            options.grace, options.context
        ));
    }
    print_value(&options.output, &done, String::new)?;
    Ok(Exit::Success)
}
