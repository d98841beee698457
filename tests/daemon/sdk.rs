//! The Python and TypeScript clients against a daemon: their own tests, which are told where the daemon is.

use std::process::Command;
use std::sync::{Mutex, PoisonError};

use forkd_tests::binaries;
use forkd_tests::docker_registry::DockerRegistry;
use forkd_tests::engine::process::Failure;

use crate::world::World;

const TOOLS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../sdk/python/with-tools");
const TYPESCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../sdk/typescript/with-tools");
const SCENARIOS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../sdk/scenarios/run");
/// Tests of the TypeScript client are compiled into one directory.
pub static COMPILED: Mutex<()> = Mutex::new(());

fn pytest(files: &[&str]) -> Command {
    let mut command = Command::new(TOOLS);
    command.args(["pytest", "--quiet", "-rs"]).args(files);
    command
}

#[test]
fn the_python_client_passes_its_tests() -> Result<(), Failure> {
    let mut world = World::new()?;
    let (id, _agent) = world.real()?;
    let registry = DockerRegistry::start()?;
    let run = pytest(&["tests"])
        .env("FORKD_TEST_REGISTRY", &registry.address)
        .env("FORKD_TEST_DAEMON", format!("unix://{}", world.socket().display()))
        .env("FORKD_TEST_SANDBOX", id)
        .output()?;
    assert!(run.status.success(), "{}\n{}", binaries::transcript(&run), world.log());
    Ok(())
}

#[test]
fn the_python_client_trusts_a_certificate_and_shows_a_token() -> Result<(), Failure> {
    let world = World::with(&["--listen", "localhost:0", "--tls"])?;
    let port = world.address()?.rsplit(':').next().ok_or("no port")?.to_owned();
    let run = pytest(&["tests/test_remote.py"])
        .env("FORKD_TEST_REMOTE", format!("https://localhost:{port}"))
        .env("FORKD_TEST_TOKEN", world.token("python", "admin")?)
        .env("FORKD_TEST_CERTIFICATE", world.root().with_file_name("cert.pem"))
        .output()?;
    assert!(run.status.success(), "{}\n{}", binaries::transcript(&run), world.log());
    assert!(!String::from_utf8_lossy(&run.stdout).contains("skipped"), "{}", binaries::transcript(&run));
    Ok(())
}

#[test]
fn the_typescript_client_passes_its_tests() -> Result<(), Failure> {
    let _alone = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    let mut world = World::new()?;
    let (id, _agent) = world.real()?;
    let registry = DockerRegistry::start()?;
    let run = Command::new(TYPESCRIPT)
        .arg("./test")
        .env("FORKD_TEST_REGISTRY", &registry.address)
        .env("FORKD_TEST_DAEMON", format!("unix://{}", world.socket().display()))
        .env("FORKD_TEST_SANDBOX", id)
        .output()?;
    assert!(run.status.success(), "{}\n{}", binaries::transcript(&run), world.log());
    Ok(())
}

/// publint and attw find nothing wrong with the package, Node, Bun and Deno import it, and the client's tests pass in all of them.
#[test]
fn the_typescript_package_works_in_every_runtime() -> Result<(), Failure> {
    let _alone = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    let mut world = World::new()?;
    let (id, _agent) = world.real()?;
    let run = Command::new(TYPESCRIPT).args(["./pack", "--all"]).output()?;
    assert!(run.status.success(), "{}", binaries::transcript(&run));
    // Where ./pack has installed them.
    let runtimes = binaries::directory().with_file_name("npm-runtimes").join("node_modules/.bin");
    for runtime in ["bun", "deno"] {
        let run = Command::new(TYPESCRIPT)
            .args(["./test", "address", "autostart", "wire", "socket", "daemon"])
            .env("FORKD_TEST_RUNTIME", runtimes.join(runtime))
            .env("FORKD_TEST_DAEMON", format!("unix://{}", world.socket().display()))
            .env("FORKD_TEST_SANDBOX", &id)
            .output()?;
        assert!(run.status.success(), "{runtime}: {}\n{}", binaries::transcript(&run), world.log());
    }
    Ok(())
}

#[test]
fn the_typescript_client_trusts_a_certificate_and_shows_a_token() -> Result<(), Failure> {
    let _alone = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    let world = World::with(&["--listen", "localhost:0", "--tls"])?;
    let port = world.address()?.rsplit(':').next().ok_or("no port")?.to_owned();
    let run = Command::new(TYPESCRIPT)
        .args(["./test", "remote"])
        .env("FORKD_TEST_REMOTE", format!("https://localhost:{port}"))
        .env("FORKD_TEST_TOKEN", world.token("typescript", "admin")?)
        .env("FORKD_TEST_CERTIFICATE", world.root().with_file_name("cert.pem"))
        .output()?;
    assert!(run.status.success(), "{}\n{}", binaries::transcript(&run), world.log());
    Ok(())
}

/// Those that need no agent; the others need real guests.
#[test]
fn both_clients_carry_out_the_scenarios() -> Result<(), Failure> {
    let _alone = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    let world = World::new()?;
    let run = Command::new(SCENARIOS)
        .env("FORKD_URL", format!("unix://{}", world.socket().display()))
        .env("FORKD_TEST_SNAPSHOT", "base")
        .env("FORKD_TEST_GUEST", "none")
        .output()?;
    assert!(run.status.success(), "{}\n{}", binaries::transcript(&run), world.log());
    Ok(())
}
