//! A daemon on the tests' KVM host, and forkd's commands as its users.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::host::TestHost;
use crate::suite::host;
use crate::{TestResult, binaries, check, library};

type Error = Box<dyn std::error::Error + Send + Sync>;

const START_LIMIT: Duration = Duration::from_secs(60);

/// A daemon without sandboxes and snapshots. Dropped, it has none again.
#[derive(Debug)]
pub struct Daemon {
    address: String,
    token: Option<String>,
    /// Where this host's own listens for TCP.
    tcp: Option<String>,
    native: Option<Native>,
}

/// A daemon of this host. A machine's ends with the machine.
#[derive(Debug)]
struct Native {
    home: tempfile::TempDir,
    options: Vec<String>,
    process: Child,
}

impl Daemon {
    pub fn start() -> Result<Daemon, Error> {
        Daemon::start_with(&[])
    }

    /// One that asks this server for names, if it is this host's. A machine's asks whom the machine asks.
    pub fn start_asking(server: &str) -> Result<Daemon, Error> {
        Daemon::start_with(&["--dns", server])
    }

    /// One that also listens for TCP, for whoever does not use the command line.
    pub fn start_listening() -> Result<Daemon, Error> {
        // A port that is free now; nobody else takes those.
        let address = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let mut daemon = Daemon::start_with(&["--listen", &address])?;
        daemon.tcp = Some(format!("http://{address}"));
        Ok(daemon)
    }

    fn start_with(options: &[&str]) -> Result<Daemon, Error> {
        library::prepare()?;
        let daemon = match host()? {
            TestHost::Machine(test_machine) => {
                let found = test_machine.machine().start_daemon()?;
                let address = format!("http://127.0.0.1:{}", found.port);
                Daemon { address, token: Some(found.token), tcp: None, native: None }
            }
            TestHost::Native => {
                let home = tempfile::tempdir()?;
                let options = options.iter().map(ToString::to_string).collect::<Vec<_>>();
                let process = serve(home.path(), &options)?;
                let address = format!("unix://{}", home.path().join("forkd.sock").display());
                Daemon { address, token: None, tcp: None, native: Some(Native { home, options, process }) }
            }
        };
        daemon.await_answer()?;
        daemon.clear()?;
        Ok(daemon)
    }

    /// Kills the daemon without a warning, and starts it again.
    pub fn kill_and_start(&mut self) -> TestResult {
        match (&mut self.native, host()?) {
            (Some(native), _) => {
                native.process.kill()?;
                native.process.wait()?;
                native.process = serve(native.home.path(), &native.options)?;
            }
            (None, TestHost::Machine(test_machine)) => {
                host()?.script("kill -9 $(pidof forkd)")?;
                test_machine.machine().start_daemon()?;
            }
            (None, TestHost::Native) => return Err("the daemon is not this host's".into()),
        }
        self.await_answer()
    }

    fn await_answer(&self) -> TestResult {
        let begun = Instant::now();
        while !self.command(&["ping"]).output()?.status.success() {
            check!(begun.elapsed() < START_LIMIT, "the daemon did not come up");
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// Where E2B's clients find it, and their key. Without tokens, any does on the loopback.
    pub fn e2b(&self) -> Result<(String, String), Error> {
        let url = self.tcp.as_ref().filter(|_| self.native.is_some()).unwrap_or(&self.address);
        check_url(url)?;
        let key = self.token.clone().unwrap_or_else(|| format!("e2b_{}", "0".repeat(40)));
        Ok((url.clone(), key))
    }

    /// `forkd` with these arguments, which asks this daemon.
    pub fn command(&self, arguments: &[&str]) -> Command {
        // A home without a daemon, so that no other one can answer.
        let mut command = binaries::forkd(Path::new("/nonexistent"), arguments);
        command.env("FORKD_ADDRESS", &self.address);
        if let Some(token) = &self.token {
            command.env("FORKD_TOKEN", token);
        }
        command
    }

    /// Runs a command to its end, with something to read.
    pub fn output(&self, arguments: &[&str], stdin: &[u8]) -> Result<Output, Error> {
        let mut command = self.command(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let mut pipe = child.stdin.take().ok_or("no pipe")?;
        let stdin = stdin.to_vec();
        // A command that does not read all of it is right, too.
        let writer = std::thread::spawn(move || drop(pipe.write_all(&stdin)));
        let output = child.wait_with_output()?;
        writer.join().map_err(|_| "the writer panicked")?;
        Ok(output)
    }

    /// Runs a command that must succeed and returns what it printed, without the end of the last line.
    pub fn run(&self, arguments: &[&str]) -> Result<String, Error> {
        let output = self.command(arguments).output()?;
        if !output.status.success() {
            let transcript = binaries::transcript(&output);
            return Err(format!("forkd {} failed: {transcript}", arguments.join(" ")).into());
        }
        Ok(String::from_utf8(output.stdout)?.trim_end().to_owned())
    }

    /// The same with `--json`.
    pub fn json(&self, arguments: &[&str]) -> Result<Value, Error> {
        Ok(serde_json::from_str(&self.run(&[arguments, &["--json"]].concat())?)?)
    }

    /// The ids of new sandboxes of a snapshot.
    pub fn fork(&self, source: &str, count: u32) -> Result<Vec<String>, Error> {
        let created = self.json(&["fork", source, "-n", &count.to_string()])?;
        let sandboxes = created["sandboxes"].as_array().ok_or("no sandboxes")?;
        Ok(sandboxes.iter().filter_map(|sandbox| Some(sandbox["id"].as_str()?.to_owned())).collect())
    }

    fn clear(&self) -> TestResult {
        self.run(&["kill", "--all"])?;
        for tag in self.run(&["snapshot", "ls", "--quiet"])?.lines() {
            // It may have gone with another one.
            let _ = self.run(&["snapshot", "rm", "--cascade", tag]);
        }
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // A test that failed has more to say than this.
        let _ = self.clear();
        if let Some(native) = &mut self.native {
            let _ = native.process.kill();
            let _ = native.process.wait();
        }
    }
}

fn check_url(url: &str) -> TestResult {
    check!(url.starts_with("http://"), "{url} is not for clients of HTTP");
    Ok(())
}

fn serve(home: &Path, options: &[String]) -> Result<Child, Error> {
    let log = File::options().create(true).append(true).open(home.join("log"))?;
    Ok(binaries::forkd(home, &["serve"])
        .args(if options.iter().any(|option| option == "--listen") { &[][..] } else { &["--listen", "none"] })
        .args(options)
        .env(forkd_host::home::LIBRARY_VARIABLE, library::directory())
        .env_remove("FORKD_NETWORK")
        .stderr(log)
        .spawn()?)
}
