//! Debian's docker-registry on loopback, with its files in a directory of its own.

use std::fs::{self, File};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::engine::process::Failure;

/// How long it may take to listen.
const PATIENCE: Duration = Duration::from_secs(20);
/// The port is free a moment before; should somebody take it, another is tried.
const TRIES: u32 = 5;
/// A line for each request.
const LOG: &str = "access.log";

/// A registry that ends with the test.
#[derive(Debug)]
pub struct DockerRegistry {
    process: Child,
    /// `127.0.0.1:PORT`
    pub address: String,
    directory: tempfile::TempDir,
}

impl DockerRegistry {
    pub fn start() -> Result<DockerRegistry, Failure> {
        let directory = tempfile::tempdir()?;
        let config = directory.path().join("config.yml");
        for _ in 0..TRIES {
            let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
            let storage = directory.path().join("storage");
            let text = format!(
                "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: {address}\n",
                storage.display()
            );
            fs::write(&config, text)?;
            let mut process = Command::new("docker-registry")
                .arg("serve")
                .arg(&config)
                .stdout(File::create(directory.path().join(LOG))?)
                .stderr(Stdio::null())
                .spawn()
                .map_err(|error| {
                    format!("docker-registry does not start ({error}); scripts/setup installs it")
                })?;
            let begun = Instant::now();
            while begun.elapsed() < PATIENCE && process.try_wait()?.is_none() {
                if TcpStream::connect(&address).is_ok() {
                    return Ok(DockerRegistry { process, address, directory });
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            process.kill()?;
            process.wait()?;
        }
        Err("the registry does not listen".into())
    }

    /// The requests until now, such as `GET /v2/team/app/manifests/v1`, and what was there before.
    pub fn requests(&self) -> Result<Vec<String>, Failure> {
        let log = fs::read_to_string(self.directory.path().join(LOG))?;
        // ADDRESS - - [TIME] "GET /v2/ HTTP/1.1" 200 ...
        let quoted = log.lines().filter_map(|line| line.split('"').nth(1)?.strip_suffix(" HTTP/1.1"));
        Ok(quoted.map(str::to_owned).collect())
    }

    /// The number of uploads of blobs that have succeeded.
    pub fn taken_blobs(&self) -> Result<usize, Failure> {
        let log = fs::read_to_string(self.directory.path().join(LOG))?;
        let is_upload = |line: &&str| line.contains("\"PUT /v2/") && line.contains("digest=");
        Ok(log.lines().filter(is_upload).filter(|line| line.contains(" HTTP/1.1\" 201 ")).count())
    }

    /// Removes the blobs that nothing refers to, as an operator does: with the registry's own command.
    pub fn collect_garbage(&self) -> Result<(), Failure> {
        let run = Command::new("docker-registry")
            .arg("garbage-collect")
            .arg(self.directory.path().join("config.yml"))
            .output()?;
        match run.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&run.stderr).into_owned().into()),
        }
    }

    /// Puts a blob into its files that no repository has, as a push leaves one that was killed. Returns its file.
    pub fn leave_blob(&self, bytes: &[u8]) -> Result<PathBuf, Failure> {
        let digest = forkd_image::digest::Digest::of(bytes).to_string();
        let hex = digest.trim_start_matches("sha256:");
        let blobs = self.directory.path().join("storage/docker/registry/v2/blobs/sha256");
        let directory = blobs.join(&hex[..2]).join(hex);
        fs::create_dir_all(&directory)?;
        let file = directory.join("data");
        fs::write(&file, bytes)?;
        Ok(file)
    }

    /// Bytes of all that was pushed to it.
    pub fn stored_bytes(&self) -> Result<u64, Failure> {
        let mut bytes = 0;
        let mut directories: Vec<PathBuf> = vec![self.directory.path().join("storage")];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory)?.flatten() {
                let metadata = entry.metadata()?;
                match metadata.is_dir() {
                    true => directories.push(entry.path()),
                    false => bytes += metadata.len(),
                }
            }
        }
        Ok(bytes)
    }
}

impl Drop for DockerRegistry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
