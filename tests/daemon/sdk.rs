//! The Python client against a daemon: its own tests, which are told where the daemon is.

use std::process::Command;

use forkd_tests::binaries;
use forkd_tests::engine::process::Failure;

use crate::world::World;

const TOOLS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../sdk/python/with-tools");

fn pytest(files: &[&str]) -> Command {
    let mut command = Command::new(TOOLS);
    command.args(["pytest", "--quiet", "-rs"]).args(files);
    command
}

#[test]
fn the_python_client_passes_its_tests() -> Result<(), Failure> {
    let mut world = World::new()?;
    let (id, _agent) = world.real()?;
    let run = pytest(&["tests"])
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
