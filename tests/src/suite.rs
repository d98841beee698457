//! A test harness whose tests share one KVM host: started with the first test, watched during each, released at the end.

use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use libtest_mimic::{Arguments, Failed, Trial};

use crate::TestResult;
use crate::host::{TestHost, machine_name};
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

/// Runs the tests as the arguments on the command line say.
pub fn main(tests: &[Test]) -> ExitCode {
    let mut arguments = Arguments::from_args();
    // A machine has one CPU: tests side by side would only disturb each other.
    arguments.test_threads = Some(1);
    let trials = tests.iter().map(|&(name, test)| Trial::test(name, move || watched(test))).collect();
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
