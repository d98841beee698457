//! Clients with real guests: the tests of the Python client, the scenarios and the examples of both, and clients of the Model Context
//! Protocol.

use std::process::{Command, Stdio};

use forkd_tests::daemon::Daemon;
use forkd_tests::host::TestHost;
use forkd_tests::library::DEBIAN;
use forkd_tests::suite::host;
use forkd_tests::{TestResult, binaries, check};

use crate::life::snapshot;

const TOOLS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../sdk/python/with-tools");
const GUIDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/sdk-python.md");
const TYPESCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../sdk/typescript/with-tools");
const TYPESCRIPT_GUIDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/sdk-typescript.md");
const TYPESCRIPT_EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../sdk/typescript/examples");
const SCENARIOS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../sdk/scenarios/run");
const MCP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/mcp/run");
const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../sdk/python/examples");

pub fn the_python_client_has_real_guests() -> TestResult {
    let daemon = Daemon::start()?;
    snapshot(&daemon)?;
    let mut pytest = daemon.program(TOOLS);
    pytest.args(["pytest", "--quiet", "--durations=5", "tests/test_guests.py"]);
    succeeds(pytest.env("FORKD_TEST_SNAPSHOT", "warm").env("FORKD_TEST_IMAGE", DEBIAN))
}

/// All of them: `make unit` leaves out those that need a guest.
pub fn both_clients_carry_out_the_scenarios() -> TestResult {
    let daemon = Daemon::start()?;
    snapshot(&daemon)?;
    succeeds(daemon.program(SCENARIOS).env("FORKD_TEST_SNAPSHOT", "warm"))
}

/// The official inspector, Python client and conformance suite; the Python client branches, forks, picks and rolls back.
pub fn official_mcp_clients_have_real_guests() -> TestResult {
    let daemon = Daemon::start_listening()?;
    snapshot(&daemon)?;
    let slowness = match host()? {
        TestHost::Native => "1",
        TestHost::Machine(_) => "5",
    };
    let (address, _) = daemon.tcp()?;
    let mut run = daemon.program(MCP);
    run.args([&format!("http://{address}"), "guests"])
        .env("FORKD", binaries::directory().join("forkd"))
        .env("FORKD_MCP_SNAPSHOT", "warm")
        .env("FORKD_TEST_SLOWNESS", slowness)
        .env_remove("FORKD_ADDRESS");
    succeeds(&mut run)
}

pub fn the_examples_run() -> TestResult {
    let daemon = Daemon::start()?;
    for name in examples(EXAMPLES, ".py", "snapshot.py")? {
        let mut example = daemon.program(TOOLS);
        succeeds(example.args(["python3", &format!("{EXAMPLES}/{name}")]).env("FORKD_IMAGE", DEBIAN))?;
    }
    let mut guide = daemon.program(TOOLS);
    succeeds(guide.args(["python3", "-m", "tools.snippets", GUIDE]).env("FORKD_IMAGE", DEBIAN))
}

pub fn the_typescript_examples_run() -> TestResult {
    let daemon = Daemon::start()?;
    let mut guide = daemon.program(TYPESCRIPT);
    succeeds(guide.args(["./snippets", TYPESCRIPT_GUIDE]).env("FORKD_IMAGE", DEBIAN))?;
    for name in examples(TYPESCRIPT_EXAMPLES, ".ts", "snapshot.ts")? {
        // ./snippets has compiled them.
        let run = format!(
            "exec node --enable-source-maps \"$FORKD_TYPESCRIPT/out/examples/{}\"",
            name.replace(".ts", ".js")
        );
        let mut example = daemon.program(TYPESCRIPT);
        succeeds(example.args(["sh", "-c", &run]).env("FORKD_IMAGE", DEBIAN))?;
    }
    Ok(())
}

/// Those of a directory. One makes the snapshot that the others begin with.
fn examples(
    directory: &str,
    end: &str,
    first: &str,
) -> Result<Vec<String>, Box<dyn std::error::Error + Send + Sync>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        names.extend(entry?.file_name().into_string().ok().filter(|name| name.ends_with(end)));
    }
    names.sort_by_key(|name| (name != first, name.clone()));
    check!(names.len() > 1 && names[0] == first, "{names:?}");
    Ok(names)
}

fn succeeds(command: &mut Command) -> TestResult {
    let output = command.stdin(Stdio::null()).output()?;
    check!(output.status.success(), "{command:?}: {}", binaries::transcript(&output));
    Ok(())
}
