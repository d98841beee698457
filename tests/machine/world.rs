//! A home directory for one test, and forkd in it.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use forkd_host::home;
use forkd_tests::binaries::{self, transcript};
use serde_json::Value;

pub type Failure = Box<dyn Error + Send + Sync>;

/// A temporary home whose machines are ended and removed with it.
pub struct World {
    directory: tempfile::TempDir,
}

impl World {
    /// A home with the machine image that all tests share, built now if it is not there.
    pub fn new() -> Result<World, Failure> {
        let shared = shared_images()?;
        let world = World::without_image()?;
        std::os::unix::fs::symlink(shared, world.home().join("machine-images"))?;
        Ok(world)
    }

    /// A home in which the image would have to be built.
    pub fn without_image() -> Result<World, Failure> {
        let directory = tempfile::Builder::new().prefix("forkd-test-").tempdir_in("/var/tmp")?;
        Ok(World { directory })
    }

    pub fn home(&self) -> &Path {
        self.directory.path()
    }

    /// A machine's directory.
    pub fn machine(&self, name: &str) -> PathBuf {
        self.home().join("machines").join(name)
    }

    /// `forkd machine …`, not yet started.
    pub fn command(&self, arguments: &[&str]) -> Command {
        binaries::forkd(self.home(), &[&["machine"], arguments].concat())
    }

    /// `forkd machine …` to its end.
    pub fn output(&self, arguments: &[&str]) -> Result<Output, Failure> {
        Ok(self.command(arguments).output()?)
    }

    /// `forkd machine …`, which must succeed; what it printed.
    pub fn forkd(&self, arguments: &[&str]) -> Result<String, Failure> {
        let output = self.output(arguments)?;
        if !output.status.success() {
            return Err(
                format!("forkd machine {} failed: {}", arguments.join(" "), transcript(&output)).into()
            );
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// `forkd machine …`, which must fail with status 1; what it said.
    pub fn refused(&self, arguments: &[&str]) -> Result<String, Failure> {
        let output = self.output(arguments)?;
        if output.status.code() != Some(1) {
            return Err(format!(
                "forkd machine {} did not fail: {}",
                arguments.join(" "),
                transcript(&output)
            )
            .into());
        }
        Ok(String::from_utf8(output.stderr)?)
    }

    /// A command in the default machine, which must succeed; what it printed.
    pub fn exec(&self, words: &[&str]) -> Result<String, Failure> {
        self.forkd(&[&["exec", "--"], words].concat())
    }

    pub fn status(&self) -> Result<Value, Failure> {
        Ok(serde_json::from_str(&self.forkd(&["status", "--json"])?)?)
    }

    /// The process of the running default machine.
    pub fn pid(&self) -> Result<u32, Failure> {
        let pid = self.status()?["pid"].as_u64().ok_or("the machine has no process")?;
        Ok(u32::try_from(pid)?)
    }

    /// The names of files and directories in the machines' directory.
    pub fn machine_files(&self) -> Result<Vec<String>, Failure> {
        let entries = match std::fs::read_dir(self.home().join("machines")) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for name in self.machine_files().unwrap_or_default() {
            let _ = self.command(&["rm", "--force", "--name", &name]).stderr(Stdio::null()).status();
        }
    }
}

/// Whether a process is there and not a zombie.
pub fn is_alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        stat.rsplit(')').next().is_some_and(|rest| !rest.trim_start().starts_with(['Z', 'X']))
    })
}

/// The image cache of the user who runs the tests, with the image in it.
fn shared_images() -> Result<PathBuf, Failure> {
    let root = home::directory()?;
    let scratch = format!("forkd-tests-image-{}", std::process::id());
    let images = root.join("machine-images");
    let made = binaries::forkd(&root, &["machine", "init", "--name", &scratch]).output()?;
    let removed = binaries::forkd(&root, &["machine", "rm", "--name", &scratch]).output()?;
    if made.status.success() && removed.status.success() {
        return Ok(images);
    }
    Err(format!("cannot build the machine's image: {}", transcript(&made)).into())
}
