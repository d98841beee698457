//! `forkd machine …`.

pub mod exec;
pub mod init;
pub mod logs;
pub mod ls;
pub mod rm;
pub mod serve;
pub mod shell;
pub mod start;
pub mod status;
pub mod stop;

use forkd_host::home;
use forkd_machine::{Home, Machine};

use crate::arguments::Which;
use crate::error::CliError;

/// Where machines are kept.
fn machine_home() -> Result<Home, CliError> {
    Ok(Home::new(home::directory()?))
}

fn open(which: &Which) -> Result<Machine, CliError> {
    Ok(Machine::open(&machine_home()?, &which.name)?)
}
