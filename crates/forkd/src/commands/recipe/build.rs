//! `forkd recipe build`: what `forkd snapshot build` does with the recipe's forkd.toml.

use std::time::Duration;

use serde::Serialize;

use crate::arguments::{Output, RecipeBuildOptions, SnapshotBuildOptions};
use crate::commands::snapshot::build::{self, BuiltChain, BuiltStep, Start, StepTime};
use crate::commands::{print, print_json, say};
use crate::error::CliError;
use crate::exit::Exit;
use crate::recipes::{FILE, Recipe};

/// The steps with which a guest begins: of an image, and of another snapshot.
const BEGIN: [&str; 2] = ["boot", "fork"];
/// The step with which a guest is no longer of use to anybody until it is forked.
const FREEZE: &str = "freeze";

#[derive(Debug, Serialize)]
struct Built {
    /// Where the recipe's files are.
    directory: String,
    #[serde(flatten)]
    chain: BuiltChain,
}

pub fn run(options: &RecipeBuildOptions) -> Result<Exit, CliError> {
    let directory = Recipe::find(&options.recipe)?.directory()?;
    let wanted = SnapshotBuildOptions {
        names: Vec::new(),
        file: directory.join(FILE),
        no_cache: options.no_cache,
        dry_run: options.dry_run,
        daemon: options.daemon.clone(),
        output: Output { json: false },
    };
    // Nothing is made in a dry run, so no daemon is either.
    let start = if options.dry_run { Start::No } else { Start::Yes };
    let chain = build::make(&wanted, start)?;
    let built = Built { directory: directory.display().to_string(), chain };
    match (options.output.json, options.dry_run) {
        (true, _) => print_json(&built)?,
        (false, true) => print(&build::render(&built.chain, true))?,
        (false, false) => tell(&built)?,
    }
    Ok(Exit::Success)
}

/// The tag is data, the rest is not.
fn tell(built: &Built) -> Result<(), CliError> {
    for BuiltStep { built, steps } in &built.chain.snapshots {
        match steps.is_empty() {
            true => say(&format!("Snapshot {} is {}.", built.name, built.outcome.name())),
            false => say(&format!("Snapshot {} was made: {}.", built.name, durations(steps))),
        }
    }
    let Some(BuiltStep { built: last, .. }) = built.chain.snapshots.last() else { return Ok(()) };
    say(&format!("Fork it with: forkd fork {}. Its files are in {}.", last.name, built.directory));
    match &last.snapshot {
        Some(snapshot) => print(&format!("{}\n", crate::table::plain(&snapshot.tag))),
        None => Ok(()),
    }
}

/// What a start without a fork takes, each time.
fn durations(steps: &[StepTime]) -> String {
    let begun = steps.iter().skip_while(|one| !BEGIN.contains(&one.step.as_str()));
    let before = begun.take_while(|one| one.step != FREEZE);
    let total: u64 = before.clone().map(|one| one.milliseconds).sum();
    let seconds = |milliseconds| format!("{:.1} s", Duration::from_millis(milliseconds).as_secs_f64());
    let parts: Vec<String> =
        before.map(|one| format!("{} {}", one.step, seconds(one.milliseconds))).collect();
    format!("{} until it was warm ({})", seconds(total), parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_before_the_freeze_is_added_up() {
        let step = |step: &str, milliseconds| StepTime { step: step.into(), milliseconds };
        let steps =
            [step("making a RAM disk", 900), step("boot", 1200), step("start", 350), step("freeze", 9000)];
        assert_eq!(durations(&steps), "1.6 s until it was warm (boot 1.2 s, start 0.3 s)");
    }
}
