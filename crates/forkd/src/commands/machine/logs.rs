//! `forkd machine logs`.

use std::fs::File;
use std::io::{self, Read, Write};
use std::time::Duration;

use super::open;
use crate::arguments::LogsOptions;
use crate::commands::say;
use crate::error::CliError;
use crate::exit::Exit;

const POLL: Duration = Duration::from_millis(200);

pub fn run(options: &LogsOptions) -> Result<Exit, CliError> {
    let machine = open(&options.which)?;
    let mut log = match File::open(machine.console_log()) {
        Ok(log) => log,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            say(&format!("Machine {} has not been started yet.", machine.name));
            return Ok(Exit::Success);
        }
        Err(error) => return Err(CliError::Io("read the console's log", error)),
    };
    let mut buffer = vec![0; 64 << 10];
    let mut stdout = io::stdout().lock();
    loop {
        let read = log.read(&mut buffer).map_err(|error| CliError::Io("read the console's log", error))?;
        if read == 0 && !options.follow {
            return Ok(Exit::Success);
        }
        if read == 0 {
            std::thread::sleep(POLL);
            continue;
        }
        match stdout.write_all(&buffer[..read]).and_then(|()| stdout.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(Exit::Success),
            result => result.map_err(|error| CliError::Io("write to stdout", error))?,
        }
    }
}
