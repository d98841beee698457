//! `forkd recipe show`.

use serde::Serialize;

use crate::arguments::RecipeShowOptions;
use crate::commands::print_value;
use crate::error::CliError;
use crate::exit::Exit;
use crate::recipes::{FILE, PAGE, Recipe};
use crate::table::plain;

#[derive(Debug, Serialize)]
struct Shown {
    /// Where its files are. Those of a recipe that comes with forkd are written by its build.
    directory: String,
    /// Whether they are there.
    written: bool,
    page: String,
    forkd_toml: String,
}

pub fn run(options: &RecipeShowOptions) -> Result<Exit, CliError> {
    let recipe = Recipe::find(&options.recipe)?;
    let directory = recipe.place()?;
    let shown = Shown {
        written: directory.join(FILE).is_file(),
        directory: directory.display().to_string(),
        page: recipe.text(PAGE)?.unwrap_or_default(),
        forkd_toml: recipe.text(FILE)?.unwrap_or_default(),
    };
    print_value(&options.output, &shown, || render(&shown))?;
    Ok(Exit::Success)
}

fn render(shown: &Shown) -> String {
    let files = match shown.written {
        true => format!("Its files are in {}.", shown.directory),
        false => format!("Its build writes its files to {}.", shown.directory),
    };
    // A directory may be anybody's.
    let lines =
        |text: &str| text.lines().map(|line| plain(&line.replace('\t', "    ")) + "\n").collect::<String>();
    let page = if shown.page.is_empty() { String::new() } else { lines(&shown.page) + "\n" };
    format!("{page}## {FILE}\n\n```toml\n{}```\n\n{}\n", lines(&shown.forkd_toml), plain(&files))
}
