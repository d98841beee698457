//! `forkd man DIRECTORY`.

use std::fs;
use std::io;
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use super::say;
use crate::arguments::{Arguments, ManOptions, examples};
use crate::error::CliError;
use crate::exit::Exit;

pub fn run(options: &ManOptions) -> Result<Exit, CliError> {
    let failed = |error| CliError::Io("write the manual pages", error);
    fs::create_dir_all(&options.directory).map_err(failed)?;
    let mut root = Arguments::command().disable_help_subcommand(true);
    root.build();
    write(&root, &options.directory).map_err(failed)?;
    say(&format!("The manual pages are in {}.", options.directory.display()));
    Ok(Exit::Success)
}

/// Writes the page of a command, and of all below it.
fn write(command: &Command, directory: &Path) -> io::Result<()> {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        write(below, directory)?;
    }
    let path = command.get_bin_name().and_then(|name| name.strip_prefix("forkd "));
    let examples = examples(path.unwrap_or_default());
    let man = Man::new(command.clone());
    let mut page = Vec::new();
    man.render(&mut page)?;
    if !examples.is_empty() {
        // Each on its own line: .nf ends the filling of paragraphs.
        let mut section = Roff::new();
        section.control("SH", ["EXAMPLES"]).control("nf", []);
        for line in examples {
            section.text([roman(*line)]);
        }
        section.control("fi", []);
        section.to_writer(&mut page)?;
    }
    fs::write(directory.join(man.get_filename()), page)
}
