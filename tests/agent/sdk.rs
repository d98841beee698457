//! The official E2B clients against a guest that `forkd dev` has booted.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use forkd_host::home;
use forkd_tests::host::{TestHost, machine_name};
use forkd_tests::library::{self, DEBIAN};
use forkd_tests::suite::host;
use forkd_tests::{TestResult, binaries, check};

const PATIENCE: Duration = Duration::from_secs(120);

/// A `forkd dev` that ends with the test.
struct Dev(Child);

impl Drop for Dev {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn the_official_clients_drive_a_guest() -> TestResult {
    library::prepare()?;
    let slowness = match host()? {
        TestHost::Native => "1",
        TestHost::Machine(_) => "3",
    };
    let log = tempfile::NamedTempFile::new()?;
    let mut dev = Command::new(binaries::directory().join("forkd"));
    dev.args(["dev", DEBIAN, "--memory", "1G", "--machine", &machine_name()])
        .env(home::LIBRARY_VARIABLE, library::directory())
        .stdin(Stdio::null())
        .stdout(File::create(log.path())?)
        .stderr(File::options().append(true).open(log.path())?);
    let mut dev = Dev(dev.spawn()?);
    let begun = Instant::now();
    loop {
        let said = std::fs::read_to_string(log.path())?;
        if said.contains("is ready, after") {
            break;
        }
        check!(dev.0.try_wait()?.is_none(), "forkd dev has ended: {said}");
        check!(begun.elapsed() < PATIENCE, "forkd dev is not ready: {said}");
        std::thread::sleep(Duration::from_millis(100));
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("sdk/run");
    let status = Command::new(script).env("FORKD_TEST_SLOWNESS", slowness).stdin(Stdio::null()).status()?;
    check!(status.success(), "the clients' tests ended with {status}");
    Ok(())
}
