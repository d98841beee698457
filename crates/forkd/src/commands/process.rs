//! `forkd process …`.

use std::io::{self, Read};

use forkd_api::exec::{Exec, StartProcess};
use forkd_client::Client;

use super::{print_value, with_daemon};
use crate::arguments::{Output, ProcessAttachOptions, ProcessCommand, ProcessLsOptions, ProcessWriteOptions};
use crate::error::CliError;
use crate::exit::Exit;
use crate::session::{self, Mode};
use crate::signals::Signals;
use crate::table::{Side, Table};

/// What is read of stdin at once.
const PIECE: usize = 256 << 10;

pub fn run(command: &ProcessCommand) -> Result<Exit, CliError> {
    match command {
        ProcessCommand::Ls(options) => list(options),
        ProcessCommand::Start(options) => with_daemon(&options.daemon, async |client| {
            let wanted = StartProcess {
                args: options.command.clone(),
                env: options.env.iter().cloned().collect(),
                cwd: options.cwd.clone(),
                user: options.user.clone(),
                stdin: options.interactive,
                timeout_secs: options.timeout,
            };
            start(&client, &options.sandbox, &wanted, &options.output).await
        }),
        ProcessCommand::Attach(options) => attach(options),
        ProcessCommand::Write(options) => write(options),
        ProcessCommand::Signal(options) => with_daemon(&options.daemon, async |client| {
            client.signal_process(&options.sandbox, options.pid, options.signal).await?;
            Ok(Exit::Success)
        }),
    }
}

fn list(options: &ProcessLsOptions) -> Result<Exit, CliError> {
    let processes =
        with_daemon(&options.daemon, async |client| Ok(client.processes(&options.sandbox).await?))?;
    print_value(&options.output, &processes, || {
        let mut table = Table::new([("PID", Side::Right), ("TTY", Side::Left), ("COMMAND", Side::Left)]);
        for process in &processes {
            let tty = if process.tty { "yes" } else { "no" };
            table.row([process.pid.to_string(), tty.into(), process.args.join(" ")]);
        }
        table.render()
    })?;
    Ok(Exit::Success)
}

/// Starts a program without waiting for its end, and prints its process number.
pub(super) async fn start(
    client: &Client,
    sandbox: &str,
    wanted: &StartProcess,
    output: &Output,
) -> Result<Exit, CliError> {
    let started = client.start_process(sandbox, wanted).await?;
    print_value(output, &started, || format!("{}\n", started.pid))?;
    Ok(Exit::Success)
}

/// A command in the background.
pub(super) fn detached(exec: Exec, stdin: bool) -> StartProcess {
    let Exec { args, env, cwd, user, stdin: _, timeout_secs } = exec;
    StartProcess { args, env, cwd, user, stdin, timeout_secs: Some(timeout_secs) }
}

fn attach(options: &ProcessAttachOptions) -> Result<Exit, CliError> {
    with_daemon(&options.daemon, async |client| {
        let processes = client.processes(&options.sandbox).await?;
        let tty = processes.iter().any(|process| process.pid == options.pid && process.tty);
        let (input, output) = client.attach(&options.sandbox, options.pid).await?;
        // Without stdin the session would end the program's input; a session at a terminal leaves it alone.
        let mode = Mode { stdin: !options.no_stdin, tty: tty || options.no_stdin };
        Ok(session::follow(input, output, mode, &mut Signals::new()?).await?.exit)
    })
}

fn write(options: &ProcessWriteOptions) -> Result<Exit, CliError> {
    let mut stdin = io::stdin().lock();
    with_daemon(&options.daemon, async |client| {
        loop {
            let mut piece = Vec::new();
            let read = stdin.by_ref().take(PIECE as u64).read_to_end(&mut piece);
            let read = read.map_err(|error| CliError::Io("read stdin", error))?;
            let last = read < PIECE;
            if read > 0 || (last && options.close) {
                client
                    .write_process(&options.sandbox, options.pid, piece.into(), last && options.close)
                    .await?;
            }
            if last {
                return Ok(Exit::Success);
            }
        }
    })
}
