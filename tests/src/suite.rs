//! A test harness whose tests share one KVM host: started with the first test, watched during each, released at the end.

use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use libtest_mimic::{Arguments, Failed, Trial};

use crate::TestResult;
use crate::host::{TestHost, machine_name};
use crate::scale::is_soak;
use crate::watch::{self, Patience, report};

/// A test by name.
pub type Test = (&'static str, fn() -> TestResult);

static HOST: OnceLock<Result<TestHost, String>> = OnceLock::new();
static RESTARTS: AtomicU32 = AtomicU32::new(0);

/// The host that all tests of this run share.
pub fn host() -> Result<&'static TestHost, Box<dyn std::error::Error + Send + Sync>> {
    let host = HOST.get_or_init(|| TestHost::acquire(&machine_name()).map_err(|error| error.to_string()));
    host.as_ref().map_err(|error| error.clone().into())
}

/// The environment variable that picks tests: `core` is what `make test` runs, `rest` what `make test-all` adds. Unset: both.
const PART_VARIABLE: &str = "FORKD_TESTS";

/// Tests that only `make soak` runs: with small counts they show nothing, or another test shows it.
pub fn in_soak(tests: &[Test]) -> &[Test] {
    if is_soak() { tests } else { &[] }
}

/// The tests of the part that is wanted.
pub fn wanted(core: &[Test], rest: &[Test]) -> Vec<Test> {
    match std::env::var(PART_VARIABLE).as_deref() {
        Ok("core") => core.to_vec(),
        Ok("rest") => rest.to_vec(),
        _ => [core, rest].concat(),
    }
}

/// Runs the tests as the environment and the arguments on the command line say.
pub fn main(core: &[Test], rest: &[Test]) -> ExitCode {
    let mut arguments = Arguments::from_args();
    // A machine has one CPU: tests side by side would only disturb each other.
    arguments.test_threads = Some(1);
    let timed = |name: &str, test| {
        let begun = Instant::now();
        let result = watched(test);
        report(&format!("{name} took {} s", begun.elapsed().as_secs()));
        result
    };
    let tests = wanted(core, rest).into_iter();
    let trials = tests.map(|(name, test)| Trial::test(name, move || timed(name, test))).collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    if let Some(Ok(host)) = HOST.get() {
        let restarts = RESTARTS.load(Ordering::SeqCst);
        report(&format!("ran on {}; it died and was restarted {restarts} times", host.describe()));
        if let Err(error) = host.release() {
            report(&format!("the host could not be released: {error}"));
            return ExitCode::FAILURE;
        }
    }
    conclusion.exit_code()
}

fn watched(test: fn() -> TestResult) -> Result<(), Failed> {
    let host = host().map_err(|error| Failed::from(error.to_string()))?;
    let verdict = watch::run(host, Patience::default(), test);
    RESTARTS.fetch_add(verdict.restarts, Ordering::SeqCst);
    verdict.result.map_err(|error| Failed::from(error.to_string()))
}
