//! `forkd token create`.

use std::fs;
use std::path::Path;

use forkd_api::token::{Token, TokenLimits};
use forkd_daemon::auth::{Secret, TokenError};
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
    /// Absent if the caller has it already.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<&'a str>,
}

pub fn run(options: &TokenCreateOptions) -> Result<Exit, CliError> {
    let TokenCreateOptions { name, project, .. } = options;
    let (scope, limits) = (options.scope.into(), TokenLimits::from(&options.limits));
    let (about, generated) = match &options.secret_file {
        Some(path) => (tokens()?.set(name, project, scope, limits, &read_secret(path)?)?, None),
        None => {
            let (about, secret) = tokens()?.create(name, project, scope, limits)?;
            (about, Some(secret))
        }
    };
    let token = generated.as_ref().map(Secret::expose);
    if options.output.json {
        print_json(&Created { about, token })?;
    } else if let Some(token) = token {
        say("Keep this; it will not be shown again.");
        print(&format!("{token}\n"))?;
    } else {
        say(&format!("Created the token {name}."));
    }
    Ok(Exit::Success)
}

fn read_secret(path: &Path) -> Result<Secret, CliError> {
    let text = fs::read_to_string(path);
    let text = text.map_err(|source| CliError::TokenFile { path: path.into(), source })?;
    Secret::parse(text.trim()).ok_or_else(|| TokenError::BadSecret(path.into()).into())
}
