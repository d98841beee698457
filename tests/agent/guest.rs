//! Guests that `agent-guest` runs on the host.

use std::io::Write;

use forkd_tests::TestResult;
use forkd_tests::library::{self, DEBIAN};
use forkd_tests::scale::count;
use forkd_tests::suite::host;

/// How long it takes, and what the agent takes of the guest's memory.
pub fn debian_boots_to_ready() -> TestResult {
    run(DEBIAN, &["boots"])
}

/// Names, clocks and random numbers of 50 children; what they find imported; what an idle one dirties.
pub fn children_of_a_warm_parent_differ() -> TestResult {
    run(DEBIAN, &["children", "50"])
}

/// Output that is read slowly, a thousand processes, a full disk, a killed interpreter. Of the 10 GB that the slow reader gets
/// and of the thousand a part, unless this is `make soak`: an emulated guest prints a few megabytes in a second.
pub fn the_agent_stays_up_under_pressure() -> TestResult {
    run(DEBIAN, &["pressure", &count(64, 10_000).to_string(), &count(200, 1000).to_string()])
}

/// Runs a test on the host and passes its measurements on.
pub fn run(image: &str, words: &[&str]) -> TestResult {
    library::prepare()?;
    let host = host()?;
    let library = host.library();
    let library = library.to_str().ok_or("the library's path is not text")?;
    let measured = host.run(&[&["agent-guest", library, image], words].concat())?;
    Ok(std::io::stdout().write_all(measured.as_bytes())?)
}
