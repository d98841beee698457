//! `forkd token rm`.

use serde::Serialize;

use super::tokens;
use crate::arguments::TokenRmOptions;
use crate::commands::{print_json, say};
use crate::error::CliError;
use crate::exit::Exit;

#[derive(Serialize)]
struct Removed<'a> {
    name: &'a str,
}

pub fn run(options: &TokenRmOptions) -> Result<Exit, CliError> {
    let name = &options.name;
    let tokens = tokens()?;
    tokens.remove(name)?;
    if options.output.json {
        print_json(&Removed { name })?;
    } else {
        say(&format!("Token {name} is removed."));
        if tokens.list()?.is_empty() {
            say("It was the last: until there is another, only the daemon's socket can be used.");
        }
    }
    Ok(Exit::Success)
}
