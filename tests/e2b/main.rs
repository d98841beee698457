//! The official E2B clients, unmodified and of several versions, against a daemon with real guests: on a KVM host, native or
//! machine. `make e2e-e2b` runs them.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use forkd_host::home;
use forkd_tests::daemon::Daemon;
use forkd_tests::host::{TestHost, machine_name};
use forkd_tests::library::{self, DEBIAN};
use forkd_tests::suite::{Test, host, in_soak};
use forkd_tests::{TestResult, binaries, check};

/// The template that clients take if nothing else is said.
const TEMPLATE: &str = "code-interpreter-v1";
const LANGUAGES: &str = "forkd-tests-languages:latest";
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
/// stand on the current one, a long session, and images that are large: they take minutes to make.
const SOAK: &[Test] = &[
    ("python::frameworks", || run(&ready()?, "python", "frameworks", "frameworks.py")),
    ("python::that_drops_its_headers", || surface("python", "2.20.0")),
    ("javascript::older", || surface("javascript", "2.20.0")),
    ("python::an_agent_works_for_two_days", an_agent),
    ("python::r_and_java", languages),
    ("python::the_usual_template", usual),
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

/// R and Java, in an image that has both.
fn languages() -> TestResult {
    let daemon = Daemon::start_listening()?;
    library::prepare_image(LANGUAGES, &["default-jdk-headless", "r-base-core"])?;
    daemon.run(&["snapshot", LANGUAGES, "--tag", "languages", "--memory", "1G", "--e2b"])?;
    run_with(&daemon, "python", PYTHON, "languages.py", &[("FORKD_TEST_TEMPLATE", "languages")])
}

/// What `forkd e2b setup` makes when no image is named, with Node.js from PyPI.
fn usual() -> TestResult {
    let daemon = Daemon::start_listening()?;
    match host()? {
        TestHost::Native => drop(daemon.run(&["e2b", "setup"])?),
        // As its user does it: the image is made on this host, and the machine's daemon finds it in the library.
        TestHost::Machine(_) => {
            let arguments = ["e2b", "setup", "--machine", &machine_name()];
            let mut command = binaries::forkd(&home::directory()?, &arguments);
            command.env(home::LIBRARY_VARIABLE, library::directory()).env("FORKD_SOCKET", "/nonexistent");
            for variable in ["FORKD_ADDRESS", "FORKD_URL"] {
                command.env_remove(variable);
            }
            let output = command.output()?;
            check!(output.status.success(), "{}", binaries::transcript(&output));
        }
    }
    let result = run(&daemon, "python", PYTHON, "usual.py");
    // Other tests have one of another image.
    daemon.run(&["snapshot", "rm", TEMPLATE])?;
    result
}

/// A daemon with the template that clients take if nothing else is said.
fn ready() -> Result<Daemon, Box<dyn std::error::Error + Send + Sync>> {
    let daemon = Daemon::start_listening_with(TEMPLATE)?;
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
