//! A watch over the host that a test runs on.
//!
//! Emulators die. A test that fails because its machine died says nothing about the product, so the machine's own
//! heartbeat decides: when it stops, what can be saved is saved, the machine is restarted, once, and the test repeated;
//! the run's summary counts it. While the heartbeat continues, a test that hangs or fails has failed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::TestResult;
use crate::scale::count;

/// A host that can die under a test.
pub trait Watched {
    /// Whether the host itself answers; takes a few seconds at most to find out that it does not.
    fn beats(&self) -> bool;
    /// Saves what can still be learned from a host that does not answer.
    fn save_evidence(&self);
    /// Ends the host and starts it again. Everything that was running on it is gone.
    fn restart(&self) -> TestResult;
}

/// When a host counts as dead, and a test as hung.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// Time between two heartbeats.
    pub interval: Duration,
    /// Silence after which the host is dead.
    pub silence: Duration,
    /// Time after which a test on a living host has failed.
    pub test: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience {
            interval: Duration::from_secs(2),
            silence: Duration::from_secs(30),
            // An emulated guest needs half an hour for 10 GB of output.
            test: Duration::from_secs(60 * u64::from(count(20, 120))),
        }
    }
}

/// How a watched test ended.
#[derive(Debug)]
pub struct Verdict {
    pub result: TestResult,
    /// How often the host had to be restarted: at most once.
    pub restarts: u32,
}

/// How one attempt ended.
enum Attempt {
    Finished(TestResult),
    HostDied,
}

/// Runs a test on a host, and once more if the host dies under it.
pub fn run(host: &dyn Watched, patience: Patience, test: fn() -> TestResult) -> Verdict {
    match attempt(host, patience, test) {
        Attempt::Finished(result) => Verdict { result, restarts: 0 },
        Attempt::HostDied => {
            let again = || match attempt(host, patience, test) {
                Attempt::Finished(result) => result,
                Attempt::HostDied => Err("the host died under this test twice".into()),
            };
            Verdict { result: host.restart().and_then(|()| again()), restarts: 1 }
        }
    }
}

fn attempt(host: &dyn Watched, patience: Patience, test: fn() -> TestResult) -> Attempt {
    let (sender, receiver) = mpsc::channel();
    // A thread of its own, so that a test that never returns can be left behind.
    thread::spawn(move || {
        // The receiver may have given up.
        let _ = sender.send(
            catch_unwind(AssertUnwindSafe(test)).unwrap_or_else(|panic| Err(panic_text(&*panic).into())),
        );
    });
    let begun = Instant::now();
    loop {
        match receiver.recv_timeout(patience.interval) {
            Ok(Ok(())) => return Attempt::Finished(Ok(())),
            // The test may have failed because its host died.
            Ok(Err(error)) if is_dead(host, patience) => {
                report(&format!("the host died ({error})"));
                host.save_evidence();
                return Attempt::HostDied;
            }
            Ok(Err(error)) => return Attempt::Finished(Err(error)),
            Err(RecvTimeoutError::Disconnected) => return Attempt::Finished(Err("the test vanished".into())),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if is_dead(host, patience) {
            report("the host has stopped answering");
            host.save_evidence();
            return Attempt::HostDied;
        }
        if begun.elapsed() > patience.test {
            let limit = patience.test.as_secs();
            return Attempt::Finished(Err(format!(
                "hung: no result within {limit} s on a host that is alive"
            )
            .into()));
        }
    }
}

/// Dead is silent for long enough, without a single heartbeat.
fn is_dead(host: &dyn Watched, patience: Patience) -> bool {
    let begun = Instant::now();
    while !host.beats() {
        if begun.elapsed() > patience.silence {
            return true;
        }
        thread::sleep(patience.interval.min(Duration::from_millis(200)));
    }
    false
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "the test panicked".into())
}

pub fn report(message: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "forkd-tests: {message}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    const QUICK: Patience = Patience {
        interval: Duration::from_millis(5),
        silence: Duration::from_millis(30),
        test: Duration::from_millis(300),
    };

    #[derive(Default)]
    struct Host {
        dead: AtomicBool,
        /// Dies again when it is restarted.
        doomed: bool,
        saved: AtomicU32,
        restarted: AtomicU32,
    }

    impl Watched for Host {
        fn beats(&self) -> bool {
            !self.dead.load(Ordering::SeqCst)
        }
        fn save_evidence(&self) {
            self.saved.fetch_add(1, Ordering::SeqCst);
        }
        fn restart(&self) -> TestResult {
            self.restarted.fetch_add(1, Ordering::SeqCst);
            self.dead.store(self.doomed, Ordering::SeqCst);
            Ok(())
        }
    }

    fn sleeps() -> TestResult {
        thread::sleep(Duration::from_secs(1));
        Ok(())
    }

    fn fails() -> TestResult {
        Err("as it should".into())
    }

    #[test]
    fn a_living_host_is_left_alone() {
        let host = Host::default();
        assert!(run(&host, QUICK, || Ok(())).result.is_ok());
        assert_eq!(run(&host, QUICK, fails).result.unwrap_err().to_string(), "as it should");
        // A panic reads symbols to print where it was.
        let patient = Patience { test: Duration::from_secs(60), ..QUICK };
        let panicked = run(&host, patient, || panic!("oh"));
        assert_eq!(panicked.result.unwrap_err().to_string(), "oh");
        assert_eq!(host.restarted.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_hang_on_a_living_host_is_a_failure() {
        let host = Host::default();
        let verdict = run(&host, QUICK, sleeps);
        assert!(verdict.result.unwrap_err().to_string().starts_with("hung"));
        assert_eq!((verdict.restarts, host.saved.load(Ordering::SeqCst)), (0, 0));
    }

    #[test]
    fn a_test_whose_host_died_is_repeated_once() {
        static RUNS: AtomicU32 = AtomicU32::new(0);
        let host = Host { dead: AtomicBool::new(true), ..Host::default() };
        let verdict = run(&host, QUICK, || match RUNS.fetch_add(1, Ordering::SeqCst) {
            0 => sleeps(),
            _ => Ok(()),
        });
        assert!(verdict.result.is_ok());
        assert_eq!(verdict.restarts, 1);
        assert_eq!(RUNS.load(Ordering::SeqCst), 2);
        assert_eq!(host.saved.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_failure_on_a_dead_host_is_repeated_too() {
        let host = Host { dead: AtomicBool::new(true), ..Host::default() };
        let verdict = run(&host, QUICK, fails);
        assert_eq!(verdict.restarts, 1);
        assert_eq!(verdict.result.unwrap_err().to_string(), "as it should");
    }

    #[test]
    fn a_host_that_dies_twice_is_a_failure() {
        let host = Host { dead: AtomicBool::new(true), doomed: true, ..Host::default() };
        let verdict = run(&host, QUICK, sleeps);
        assert!(verdict.result.unwrap_err().to_string().contains("twice"));
        assert_eq!(host.restarted.load(Ordering::SeqCst), 1);
    }
}
