//! `forkd machine stop`.

use forkd_machine::{Stopped, stop};
use serde::Serialize;

use super::open;
use crate::arguments::StopOptions;
use crate::commands::{print_json, say};
use crate::error::CliError;
use crate::exit::Exit;
use crate::progress::Progress;

#[derive(Serialize)]
struct Answer {
    stop: Stopped,
}

pub fn run(options: &StopOptions) -> Result<Exit, CliError> {
    let machine = open(&options.which)?;
    let progress = Progress::new();
    let stopped = stop(&machine, options.force, &progress)?;
    progress.finish();
    let name = &machine.name;
    if options.output.json {
        print_json(&Answer { stop: stopped })?;
        return Ok(Exit::Success);
    }
    say(&match stopped {
        Stopped::Already => format!("Machine {name} was not running."),
        Stopped::Clean => format!("Machine {name} has shut down."),
        Stopped::Forced if options.force => format!("Machine {name} was ended."),
        Stopped::Forced => format!("Machine {name} did not shut down in time and was killed."),
    });
    Ok(Exit::Success)
}
