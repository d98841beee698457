//! `forkd machine serve`.

use serde::Serialize;

use super::open;
use crate::arguments::MachineServeOptions;
use crate::commands::{print, print_json, say};
use crate::error::CliError;
use crate::exit::Exit;

#[derive(Serialize)]
struct Answer {
    address: String,
    token: String,
}

pub fn run(options: &MachineServeOptions) -> Result<Exit, CliError> {
    let machine = open(&options.which)?;
    let daemon = machine.start_daemon()?;
    let answer = Answer { address: format!("http://127.0.0.1:{}", daemon.port), token: daemon.token };
    if options.output.json {
        print_json(&answer)?;
    } else {
        say("forkd's commands find the daemon automatically. For other programs of this shell:");
        print(&format!("export FORKD_ADDRESS={}\nexport FORKD_TOKEN={}\n", answer.address, answer.token))?;
    }
    Ok(Exit::Success)
}
