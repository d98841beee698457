//! `forkd project limit`.

use forkd_api::token::{Project, TokenLimits};

use crate::arguments::ProjectLimitOptions;
use crate::commands::token::{limits, tokens};
use crate::commands::{print_json, say};
use crate::error::CliError;
use crate::exit::Exit;

pub fn run(options: &ProjectLimitOptions) -> Result<Exit, CliError> {
    let wanted = TokenLimits::from(&options.limits);
    tokens()?.limit_project(&options.project, wanted)?;
    let project = Project { name: options.project.to_string(), limits: wanted };
    if options.output.json {
        print_json(&project)?;
    } else {
        say(&format!("Limits of project {}: {}.", project.name, limits(&project.limits)));
    }
    Ok(Exit::Success)
}
