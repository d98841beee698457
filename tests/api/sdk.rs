//! The Python client with real guests: its own tests, and its examples as they are.

use std::process::{Command, Stdio};

use forkd_tests::daemon::Daemon;
use forkd_tests::library::DEBIAN;
use forkd_tests::{TestResult, binaries, check};

use crate::life::snapshot;

const TOOLS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../sdk/python/with-tools");
const GUIDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/sdk-python.md");
const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../sdk/python/examples");

pub fn the_python_client_has_real_guests() -> TestResult {
    let daemon = Daemon::start()?;
    snapshot(&daemon)?;
    let mut pytest = daemon.program(TOOLS);
    pytest.args(["pytest", "--quiet", "--durations=5", "tests/test_guests.py"]);
    succeeds(pytest.env("FORKD_TEST_SNAPSHOT", "warm").env("FORKD_TEST_IMAGE", DEBIAN))
}

pub fn the_examples_run() -> TestResult {
    let daemon = Daemon::start()?;
    let mut names = Vec::new();
    for entry in std::fs::read_dir(EXAMPLES)? {
        names.extend(entry?.file_name().into_string().ok().filter(|name| name.ends_with(".py")));
    }
    // One makes the snapshot that the others begin with.
    names.sort_by_key(|name| (name != "snapshot.py", name.clone()));
    check!(names.len() > 1 && names[0] == "snapshot.py", "{names:?}");
    for name in names {
        let mut example = daemon.program(TOOLS);
        succeeds(example.args(["python3", &format!("{EXAMPLES}/{name}")]).env("FORKD_IMAGE", DEBIAN))?;
    }
    let mut guide = daemon.program(TOOLS);
    succeeds(guide.args(["python3", "-m", "tools.snippets", GUIDE]).env("FORKD_IMAGE", DEBIAN))
}

fn succeeds(command: &mut Command) -> TestResult {
    let output = command.stdin(Stdio::null()).output()?;
    check!(output.status.success(), "{command:?}: {}", binaries::transcript(&output));
    Ok(())
}
