//! Progress on stderr: a spinner on a terminal, plain lines otherwise.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Shows what a long operation is doing.
pub enum Progress {
    Spinner(ProgressBar),
    Lines,
}

impl Progress {
    pub fn new() -> Progress {
        if !io::stderr().is_terminal() {
            return Progress::Lines;
        }
        let spinner = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix} {elapsed:.dim} {wide_msg:.dim}") {
            spinner.set_style(style);
        }
        spinner.enable_steady_tick(Duration::from_millis(120));
        Progress::Spinner(spinner)
    }

    /// Ends the display; what follows on stderr begins on a fresh line.
    pub fn finish(&self) {
        if let Progress::Spinner(spinner) = self {
            spinner.finish_and_clear();
        }
    }

    /// A line that a step of a build has printed.
    pub fn output(&self, line: &str) {
        self.line(&format!("  {line}"));
    }

    fn line(&self, line: &str) {
        match self {
            Progress::Spinner(spinner) => spinner.println(line),
            Progress::Lines => {
                // Progress that nobody can see is no reason to fail.
                let _ = writeln!(io::stderr(), "{line}");
            }
        }
    }
}

impl forkd_machine::Progress for Progress {
    fn step(&self, what: &str) {
        match self {
            Progress::Spinner(spinner) => {
                spinner.set_prefix(what.to_owned());
                spinner.set_message("");
                spinner.reset_elapsed();
            }
            Progress::Lines => self.line(&format!("forkd: {what}")),
        }
    }

    fn detail(&self, what: &str) {
        match self {
            Progress::Spinner(spinner) => spinner.set_message(what.to_owned()),
            // A build has thousands of these. In a log the steps are enough, and a failure shows the last ones.
            Progress::Lines => {}
        }
    }

    fn warn(&self, what: &str) {
        self.line(&format!("forkd: warning: {what}"));
    }
}

impl forkd_image::Progress for Progress {
    fn step(&self, what: &str) {
        forkd_machine::Progress::step(self, what);
    }

    fn detail(&self, what: &str) {
        forkd_machine::Progress::detail(self, what);
    }

    fn warn(&self, what: &str) {
        forkd_machine::Progress::warn(self, what);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}
