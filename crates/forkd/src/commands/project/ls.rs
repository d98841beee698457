//! `forkd project ls`.

use crate::arguments::LsOptions;
use crate::commands::token::{limits, tokens};
use crate::commands::{print, print_json};
use crate::error::CliError;
use crate::exit::Exit;
use crate::table::{Side, Table};

pub fn run(options: &LsOptions) -> Result<Exit, CliError> {
    let tokens = tokens()?;
    let projects = tokens.projects()?;
    if options.output.json {
        print_json(&projects)?;
        return Ok(Exit::Success);
    }
    let listed = tokens.list()?;
    let mut table = Table::new([("NAME", Side::Left), ("TOKENS", Side::Right), ("LIMITS", Side::Left)]);
    for project in projects {
        let count = listed.iter().filter(|token| token.project == project.name).count();
        table.row([project.name, count.to_string(), limits(&project.limits)]);
    }
    print(&table.render())?;
    Ok(Exit::Success)
}
