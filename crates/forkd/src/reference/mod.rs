//! Pages of docs/reference are written from the program itself, so that they cannot be wrong, and commands in other pages are checked.
//!
//! `make reference` writes the pages (`FORKD_UPDATE=1`); without the variable, the same tests compare them.

mod cli;
mod configuration;
mod documents;

use std::path::{Path, PathBuf};

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Fails unless a page of docs/reference has this text.
fn check(page: &str, text: &str) {
    let path = root().join("docs/reference").join(page);
    if std::env::var_os("FORKD_UPDATE").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == text, "docs/reference/{page} is out of date: run make reference");
}

/// Text in a cell of a table.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}
