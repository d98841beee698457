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
            say(
                "This was the last token: until another is created, only the daemon's Unix socket accepts requests.",
            );
        }
    }
    Ok(Exit::Success)
}
