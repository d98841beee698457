//! `forkd token create`.

use forkd_api::token::{Token, TokenLimits};
use serde::Serialize;

use super::tokens;
use crate::arguments::TokenCreateOptions;
use crate::commands::{print, print_json, say};
use crate::error::CliError;
use crate::exit::Exit;

#[derive(Serialize)]
struct Created<'a> {
    #[serde(flatten)]
    about: Token,
    token: &'a str,
}

pub fn run(options: &TokenCreateOptions) -> Result<Exit, CliError> {
    let limits = TokenLimits::from(&options.limits);
    let (about, secret) = tokens()?.create(&options.name, &options.project, options.scope.into(), limits)?;
    let token = secret.expose();
    if options.output.json {
        print_json(&Created { about, token })?;
    } else {
        say("Keep this; it will not be shown again.");
        print(&format!("{token}\n"))?;
    }
    Ok(Exit::Success)
}
