//! Progress on stderr: a spinner on a terminal, plain lines otherwise.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forkd_api::library::LibraryProgress;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::signal::unix::{SignalKind, signal};

use crate::table::plain;

/// Shows what a long operation is doing.
pub struct Progress {
    display: Display,
    interrupted: Arc<AtomicBool>,
}

enum Display {
    Spinner(ProgressBar),
    Lines,
}

impl Progress {
    pub fn new() -> Progress {
        Progress { display: Display::new(), interrupted: Arc::default() }
    }

    /// The operation is told of Ctrl-C, and cleans up after itself. A second one ends this process at once.
    pub fn interruptible() -> io::Result<Progress> {
        let progress = Progress::new();
        let interrupted = Arc::clone(&progress.interrupted);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut signals = {
            let _inside = runtime.enter();
            signal(SignalKind::interrupt())?
        };
        std::thread::spawn(move || {
            runtime.block_on(signals.recv());
            interrupted.store(true, Ordering::Relaxed);
            runtime.block_on(signals.recv());
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM);
        });
        Ok(progress)
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
        use forkd_image::Progress as _;
        match told {
            LibraryProgress::Step(step) => self.step(&plain(step)),
            LibraryProgress::Detail(detail) => self.detail(&plain(detail)),
            LibraryProgress::Output(line) => self.output(&plain(line)),
            LibraryProgress::Warning(warning) => self.warn(&plain(warning)),
            LibraryProgress::Image(_) | LibraryProgress::Kernel(_) | LibraryProgress::Error(_) => {}
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

impl forkd_image::Progress for Progress {
    fn step(&self, what: &str) {
        forkd_machine::Progress::step(self, what);
    }

    fn detail(&self, what: &str) {
        forkd_machine::Progress::detail(self, what);
    }

    fn output(&self, line: &str) {
        self.line(&format!("  {line}"));
    }

    fn warn(&self, what: &str) {
        forkd_machine::Progress::warn(self, what);
    }

    fn is_cancelled(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}
