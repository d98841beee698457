//! Progress on stderr: a spinner on a terminal, plain lines otherwise.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use forkd_api::library::{LibraryProgress, Transfer};
use indicatif::{ProgressBar, ProgressStyle};

use crate::moment::bytes;
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
            LibraryProgress::Transfer(transfer) => self.detail(&transferred(*transfer)),
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
                // A command does not fail because its progress cannot be shown.
                let _ = writeln!(io::stderr(), "{line}");
            }
        }
    }
}

/// How far a transfer is, in words.
fn transferred(transfer: Transfer) -> String {
    let Transfer { done_bytes: done, total_bytes: total } = transfer;
    let percent = u128::from(done) * 100 / u128::from(total.max(1));
    format!("{} of {} ({percent} %)", bytes(done), bytes(total))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_is_told_in_bytes_and_percent() {
        let told = |done_bytes, total_bytes| transferred(Transfer { done_bytes, total_bytes });
        assert_eq!(told(5 << 20, 20 << 20), format!("{} of {} (25 %)", bytes(5 << 20), bytes(20 << 20)));
        assert!(told(0, 0).ends_with("(0 %)"));
        assert!(told(u64::MAX, u64::MAX).ends_with("(100 %)"));
    }
}
