//! `forkd machine rm`.

use forkd_machine::{prune_images, rm};

use super::machine_home;
use crate::arguments::RmOptions;
use crate::commands::say;
use crate::error::CliError;
use crate::exit::Exit;
use crate::progress::Progress;

pub fn run(options: &RmOptions) -> Result<Exit, CliError> {
    let home = machine_home()?;
    let progress = Progress::new();
    rm(&home, &options.which.name, options.force, &progress)?;
    let freed = if options.prune { Some(prune_images(&home, &progress)?) } else { None };
    progress.finish();
    say(&format!("Machine {} is removed.", options.which.name));
    match freed {
        Some(freed) => say(&format!("{} MiB of unused images are removed.", freed >> 20)),
        None => {
            say("The image that it was made from stays in the cache for the next one; --prune removes it.")
        }
    }
    Ok(Exit::Success)
}
