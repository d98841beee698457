//! A daemon on the tests' KVM host, and forkd's commands as its users.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::host::{TestHost, machine_name};
use crate::suite::host;
use crate::{TestResult, binaries, check, hostile, library};

type Error = Box<dyn std::error::Error + Send + Sync>;

const START_LIMIT: Duration = Duration::from_secs(60);
/// Ends the machine's daemon, which leaves its sandboxes alone.
const STOP: &str = "
pid=$(pidof forkd || true)
for one in $pid; do kill -9 $one; done
until flock --nonblock /var/lib/forkd/engine/lock true; do sleep 0.1; done";
/// Starts the machine's daemon with `hostile-vmm` in the place of `forkd-vmm`.
const HOSTILE: &str = "
mkdir -p /var/lib/hostile
rm -f /var/lib/hostile/forkd /var/lib/hostile/forkd-vmm
cp /opt/forkd/bin/forkd /var/lib/hostile/forkd
cp /opt/forkd/bin/hostile-vmm /var/lib/hostile/forkd-vmm
cp /opt/forkd/bin/forkd-agent /var/lib/hostile/
export FORKD_HOME=/var/lib/forkd
setsid /var/lib/hostile/forkd serve --listen 0.0.0.0:8889 --shared-library /srv/forkd \
    </dev/null >>/var/log/forkd.log 2>&1 &
# Not by its lock: to try that is to have it for a moment.
until busybox wget -q -O /dev/null http://127.0.0.1:8889/healthz 2>/dev/null; do kill -0 $!; sleep 0.1; done";

/// A daemon without sandboxes and snapshots. Dropped, it has none again.
#[derive(Debug)]
pub struct Daemon {
    address: String,
    token: Option<String>,
    /// Where this host's own listens for TCP.
    tcp: Option<String>,
    native: Option<Native>,
    /// The snapshot that is left to the next test.
    keeps: Option<&'static str>,
    /// A machine's daemon whose VM processes are not the product's, and which must not be left to the next test.
    hostile: bool,
}

/// A daemon of this host. A machine's ends with the machine.
#[derive(Debug)]
struct Native {
    home: tempfile::TempDir,
    options: Vec<String>,
    process: Child,
    hostile: Option<Filter>,
}

/// Whether VM processes that guests can take over have their system calls filtered, as in the product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filter {
    On,
    Off,
}

impl Filter {
    fn value(self) -> &'static str {
        match self {
            Filter::On => "on",
            Filter::Off => "off",
        }
    }
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
        Daemon::listening(None)
    }

    fn listening(keeps: Option<&'static str>) -> Result<Daemon, Error> {
        // A port that is free now; nobody else takes those.
        let address = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let mut daemon = Daemon::start_keeping(&["--listen", &address], keeps)?;
        daemon.tcp = Some(format!("http://{address}"));
        Ok(daemon)
    }

    /// The same, and a snapshot of this name is kept from one test to the next where the daemon is.
    pub fn start_listening_with(snapshot: &'static str) -> Result<Daemon, Error> {
        Daemon::listening(Some(snapshot))
    }

    fn start_with(options: &[&str]) -> Result<Daemon, Error> {
        Daemon::start_keeping(options, None)
    }

    fn start_keeping(options: &[&str], keeps: Option<&'static str>) -> Result<Daemon, Error> {
        library::prepare()?;
        let daemon = match host()? {
            TestHost::Machine(test_machine) => {
                let found = test_machine.machine().start_daemon()?;
                let address = format!("http://127.0.0.1:{}", found.port);
                Daemon { address, token: Some(found.token), tcp: None, native: None, keeps, hostile: false }
            }
            TestHost::Native => {
                let home = tempfile::tempdir()?;
                let options = options.iter().map(ToString::to_string).collect::<Vec<_>>();
                let process = serve(home.path(), &options, None)?;
                let address = format!("unix://{}", home.path().join("forkd.sock").display());
                let native = Native { home, options, process, hostile: None };
                Daemon { address, token: None, tcp: None, native: Some(native), keeps, hostile: false }
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
                native.process = serve(native.home.path(), &native.options, native.hostile)?;
            }
            (None, TestHost::Machine(test_machine)) => {
                host()?.script("kill -9 $(pidof forkd)")?;
                test_machine.machine().start_daemon()?;
            }
            (None, TestHost::Native) => return Err("the daemon is not this host's".into()),
        }
        self.await_answer()
    }

    /// The same daemon anew, with VM processes whose guests can take them over ([`hostile`]). What runs goes on as it is.
    pub fn become_hostile(&mut self, filter: Filter) -> TestResult {
        match (&mut self.native, host()?) {
            (Some(native), _) => {
                native.process.kill()?;
                native.process.wait()?;
                native.hostile = Some(filter);
                native.process = serve(native.home.path(), &native.options, native.hostile)?;
            }
            (None, TestHost::Machine(test_machine)) => {
                self.hostile = true;
                let environment = format!("export {}={}", hostile::FILTER, filter.value());
                host()?.script(&[STOP, &environment, HOSTILE].join("\n"))?;
                // It is running; this waits for its answer.
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

    /// The directory of its disk layers, on its host.
    pub fn layers(&self) -> String {
        let home = self.native.as_ref().map_or(Path::new("/var/lib/forkd"), |native| native.home.path());
        home.join("engine/layers").display().to_string()
    }

    /// Where E2B's clients find it, and their key. Without tokens, any does on the loopback.
    pub fn e2b(&self) -> Result<(String, String), Error> {
        let url = self.tcp.as_ref().filter(|_| self.native.is_some()).unwrap_or(&self.address);
        check_url(url)?;
        let key = self.token.clone().unwrap_or_else(|| format!("e2b_{}", "0".repeat(40)));
        Ok((url.clone(), key))
    }

    /// Where it listens for TCP, and the token that it wants.
    pub fn tcp(&self) -> Result<(String, Option<String>), Error> {
        let url = self.tcp.as_ref().filter(|_| self.native.is_some()).unwrap_or(&self.address);
        check_url(url)?;
        Ok((url.trim_start_matches("http://").to_owned(), self.token.clone()))
    }

    /// `forkd` with these arguments, which asks this daemon.
    pub fn command(&self, arguments: &[&str]) -> Command {
        // A home without a daemon, so that no other one can answer.
        self.told(binaries::forkd(Path::new("/nonexistent"), arguments))
    }

    /// The same for commands that also make images: in the tests' library, by this daemon if it is this host's, and otherwise on this host,
    /// as a user of the machine has it. `home` is for its files, if the machine's is not needed.
    pub fn command_with_library(&self, arguments: &[&str], home: &Path) -> Result<Command, Error> {
        if self.native.is_some() {
            return Ok(self.told(binaries::forkd(home, arguments)));
        }
        let mut command = binaries::forkd(&forkd_host::home::directory()?, arguments);
        for variable in ["FORKD_ADDRESS", "FORKD_URL", "FORKD_TOKEN", "FORKD_TOKEN_FILE"] {
            command.env_remove(variable);
        }
        // A daemon of this user has another library, so it is not asked.
        command.env("FORKD_SOCKET", "/nonexistent").env("FORKD_MACHINE", machine_name());
        command.env(forkd_host::home::LIBRARY_VARIABLE, library::directory());
        Ok(command)
    }

    /// Another program that asks this daemon.
    pub fn program(&self, path: &str) -> Command {
        self.told(Command::new(path))
    }

    fn told(&self, mut command: Command) -> Command {
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
        let snapshots = self.run(&["snapshot", "ls", "--quiet"])?;
        for tag in snapshots.lines().filter(|tag| Some(*tag) != self.keeps) {
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
        if self.hostile {
            let _ = host().and_then(|host| host.script(STOP));
        }
    }
}

fn check_url(url: &str) -> TestResult {
    check!(url.starts_with("http://"), "{url} is not for clients of HTTP");
    Ok(())
}

fn serve(home: &Path, options: &[String], hostile: Option<Filter>) -> Result<Child, Error> {
    let log = File::options().create(true).append(true).open(home.join("log"))?;
    let mut words = vec!["serve"];
    if !options.iter().any(|option| option == "--listen") {
        words.extend(["--listen", "none"]);
    }
    let mut command = binaries::forkd(home, &words);
    if let Some(filter) = hostile {
        let arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        command = Command::new(hostile_binaries(home)?.join("forkd"));
        command.args(arguments).env(forkd_host::home::HOME_VARIABLE, home).stdin(Stdio::null());
        command.env(hostile::FILTER, filter.value());
    }
    Ok(command
        .args(options)
        .env(forkd_host::home::LIBRARY_VARIABLE, library::directory())
        .env_remove("FORKD_NETWORK")
        .stderr(log)
        .spawn()?)
}

/// A directory where `hostile-vmm` has the name of `forkd-vmm`.
fn hostile_binaries(home: &Path) -> Result<PathBuf, Error> {
    let (from, to) = (binaries::directory(), home.join("hostile"));
    std::fs::create_dir_all(&to)?;
    for (source, name) in [("forkd", "forkd"), ("hostile-vmm", "forkd-vmm"), ("forkd-agent", "forkd-agent")] {
        // What runs cannot be written to.
        let _ = std::fs::remove_file(to.join(name));
        std::fs::copy(from.join(source), to.join(name))?;
    }
    Ok(to)
}
