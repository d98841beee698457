//! Progress on stderr: a spinner on a terminal, plain lines otherwise.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use forkd_api::library::LibraryProgress;
use indicatif::{ProgressBar, ProgressStyle};

use crate::table::plain;

/// Shows what a long operation is doing.
pub struct Progress {
    display: Display,
}

enum Display {
    Spinner(ProgressBar),
    Lines,
}

impl Progress {
    pub fn new() -> Progress {
        Progress { display: Display::new() }
    }
}

impl Display {
    fn new() -> Display {
        if !io::stderr().is_terminal() {
            return Display::Lines;
        }
        let spinner = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix} {elapsed:.dim} {wide_msg:.dim}") {
            spinner.set_style(style);
        }
        spinner.enable_steady_tick(Duration::from_millis(120));
        Display::Spinner(spinner)
    }
}

impl Progress {
    /// Ends the display; what follows on stderr begins on a fresh line.
    pub fn finish(&self) {
        if let Display::Spinner(spinner) = &self.display {
            spinner.finish_and_clear();
        }
    }

    /// Shows what a daemon tells. Its words may be anybody's.
    pub fn told(&self, told: &LibraryProgress) {
        use forkd_machine::Progress as _;
        match told {
            LibraryProgress::Step(step) => self.step(&plain(step)),
            LibraryProgress::Detail(detail) => self.detail(&plain(detail)),
            LibraryProgress::Output(line) => self.line(&format!("  {}", plain(line))),
            LibraryProgress::Warning(warning) => self.warn(&plain(warning)),
            LibraryProgress::Image(_)
            | LibraryProgress::Kernel(_)
            | LibraryProgress::Snapshot(_)
            | LibraryProgress::Pushed(_)
            | LibraryProgress::Error(_) => {}
        }
    }

    fn line(&self, line: &str) {
        match &self.display {
            Display::Spinner(spinner) => spinner.println(line),
            Display::Lines => {
                // Progress that nobody can see is no reason to fail.
                let _ = writeln!(io::stderr(), "{line}");
            }
        }
    }
}

impl forkd_machine::Progress for Progress {
    fn step(&self, what: &str) {
        match &self.display {
            Display::Spinner(spinner) => {
                spinner.set_prefix(what.to_owned());
                spinner.set_message("");
                spinner.reset_elapsed();
            }
            Display::Lines => self.line(&format!("forkd: {what}")),
        }
    }

    fn detail(&self, what: &str) {
        match &self.display {
            Display::Spinner(spinner) => spinner.set_message(what.to_owned()),
            // A build has thousands of these. In a log the steps are enough, and a failure shows the last ones.
            Display::Lines => {}
        }
    }

    fn warn(&self, what: &str) {
        self.line(&format!("forkd: warning: {what}"));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}
