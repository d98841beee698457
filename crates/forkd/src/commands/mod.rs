//! One file a verb.

pub mod build_guest;
pub mod dev;
pub mod doctor;
pub mod image;
pub mod kernel;
pub mod machine;
pub mod serve;
pub mod token;

use std::io::{self, Write};

use serde::Serialize;

use crate::error::CliError;

/// Writes data to stdout.
fn print(text: &str) -> Result<(), CliError> {
    match io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush()) {
        // `forkd … | head` has read what it wanted.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.map_err(|error| CliError::Io("write to stdout", error)),
    }
}

/// Writes data to stdout as JSON.
fn print_json(value: &impl Serialize) -> Result<(), CliError> {
    let text =
        serde_json::to_string_pretty(value).map_err(|error| CliError::Io("write JSON", error.into()))?;
    print(&format!("{text}\n"))
}

/// Tells the user something that is not data.
fn say(text: &str) {
    // Nobody is left to tell when stderr itself is gone.
    let _ = writeln!(io::stderr(), "{text}");
}
