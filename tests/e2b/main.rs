//! The official E2B clients, unmodified and of several versions, against a daemon with real guests: on a KVM host, native or
//! machine. `make e2e-e2b` runs them.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use forkd_tests::daemon::Daemon;
use forkd_tests::host::TestHost;
use forkd_tests::library::DEBIAN;
use forkd_tests::suite::{Test, host, in_soak};
use forkd_tests::{TestResult, check};

/// The current client for Python.
const PYTHON: &str = "2.63.0";

/// Part of `make test`.
const CORE: &[Test] = &[("python::current", || surface("python", PYTHON))];

/// Part of `make test-all`.
const REST: &[Test] = &[
    ("javascript::current", || surface("javascript", "2.51.0")),
    ("python::templates_are_built", templates),
    ("python::users_are_there_whatever_the_template", users),
];

/// Part of `make soak`: older clients, whose requests are those of the current ones but for paths and headers, frameworks that
/// stand on the current one, and a long session.
const SOAK: &[Test] = &[
    ("python::frameworks", || run(&ready()?, "python", "frameworks", "frameworks.py")),
    ("python::that_drops_its_headers", || surface("python", "2.20.0")),
    ("javascript::older", || surface("javascript", "2.20.0")),
    ("python::an_agent_works_for_two_days", an_agent),
    ("python::with_the_first_paths", || surface("python", "2.50.0")),
    ("javascript::with_the_first_paths", || surface("javascript", "2.50.0")),
];

fn main() -> ExitCode {
    forkd_tests::suite::main(CORE, &[REST, in_soak(SOAK)].concat())
}

/// Everything that a client can do.
fn surface(language: &str, version: &str) -> TestResult {
    let script = if language == "python" { "surface.py" } else { "surface.mjs" };
    run(&ready()?, language, version, script)
}

fn templates() -> TestResult {
    run(&ready()?, "python", PYTHON, "templates.py")
}

/// An image, a snapshot and a sandbox that nobody has made for E2B. To forkd's own API they are what they were.
fn users() -> TestResult {
    let daemon = Daemon::start_listening()?;
    daemon.run(&["snapshot", DEBIAN, "--tag", "plain", "--warm-up", "python=warm = 42"])?;
    let id = daemon.fork("plain", 1)?.remove(0);
    let who = ["id", "-un"];
    check!(daemon.run(&[&["exec", &id, "--"], &who[..]].concat())? == "root", "it is somebody else");
    let variables =
        [("FORKD_TEST_IMAGE", DEBIAN), ("FORKD_TEST_SNAPSHOT", "plain"), ("FORKD_TEST_SANDBOX", id.as_str())];
    run_with(&daemon, "python", PYTHON, "users.py", &variables)?;
    let other = daemon.fork("plain", 1)?.remove(0);
    check!(daemon.run(&[&["exec", &other, "--"], &who[..]].concat())? == "root", "the snapshot has changed");
    Ok(())
}

fn an_agent() -> TestResult {
    run(&ready()?, "python", PYTHON, "agent.py")
}

/// A daemon with the template that clients take if nothing else is said.
fn ready() -> Result<Daemon, Box<dyn std::error::Error + Send + Sync>> {
    let daemon = Daemon::start_listening_with("code-interpreter-v1")?;
    daemon.run(&["e2b", "setup", DEBIAN])?;
    Ok(daemon)
}

fn run(daemon: &Daemon, language: &str, version: &str, script: &str) -> TestResult {
    run_with(daemon, language, version, script, &[])
}

fn run_with(
    daemon: &Daemon,
    language: &str,
    version: &str,
    script: &str,
    variables: &[(&str, &str)],
) -> TestResult {
    let slowness = match host()? {
        TestHost::Native => "1",
        TestHost::Machine(_) => "3",
    };
    let runner = Path::new(env!("CARGO_MANIFEST_DIR")).join("e2b/run");
    let (url, key) = daemon.e2b()?;
    let mut command = Command::new(runner);
    command
        .args([language, version, script])
        .envs(variables.iter().copied())
        .env("E2B_API_URL", &url)
        .env("E2B_SANDBOX_URL", &url)
        .env("E2B_API_KEY", key)
        .env("FORKD_TEST_SLOWNESS", slowness)
        .env_remove("E2B_DEBUG")
        .env_remove("E2B_DOMAIN")
        // The clients would ask a proxy for the daemon.
        .env("NO_PROXY", "127.0.0.1,localhost")
        .stdin(Stdio::null());
    let status = command.status()?;
    check!(status.success(), "{language} {version}, {script}: {status}");
    Ok(())
}
