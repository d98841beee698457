//! `forkd recipe ls`.

use serde::Serialize;

use crate::arguments::RecipeLsOptions;
use crate::commands::{asynchronously, print_value};
use crate::daemon;
use crate::error::CliError;
use crate::exit::Exit;
use crate::recipes;
use crate::table::{Side, Table};

#[derive(Debug, Serialize)]
struct Listed {
    name: &'static str,
    /// What its name means at the daemon. Missing if it was not built, or if there is no daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot: Option<String>,
    summary: &'static str,
}

pub fn run(options: &RecipeLsOptions) -> Result<Exit, CliError> {
    let snapshots = asynchronously(async {
        match daemon::look(&options.daemon).await? {
            Some(client) => Ok(client.snapshots().await?),
            None => Ok(Vec::new()),
        }
    })?;
    let listed: Vec<Listed> = recipes::included()
        .iter()
        .map(|recipe| {
            let built = snapshots.iter().find(|snapshot| {
                snapshot.build_key.is_some() && snapshot.names.iter().any(|name| name == recipe.name)
            });
            let snapshot = built.map(|snapshot| snapshot.tag.clone());
            Listed { name: recipe.name, snapshot, summary: recipe.summary() }
        })
        .collect();
    print_value(&options.output, &listed, || {
        let mut table = Table::new([("NAME", Side::Left), ("SNAPSHOT", Side::Left), ("SUMMARY", Side::Left)]);
        for Listed { name, snapshot, summary } in &listed {
            table.row([(*name).into(), snapshot.clone().unwrap_or_else(|| "-".into()), (*summary).into()]);
        }
        table.render()
    })?;
    Ok(Exit::Success)
}
