//! A KVM host for tests: the native one where KVM runs a stock guest, a machine otherwise.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use forkd_host::doctor::{self, Way};
use forkd_host::{home, kvm};
use forkd_machine::{Home, InitOptions, Machine, Name, Progress, StartOptions};

use crate::scale::is_soak;
use crate::watch::{Watched, report};
use crate::{TestResult, check};
use crate::{binaries, library};

type Error = Box<dyn std::error::Error + Send + Sync>;

const HEARTBEAT: Duration = Duration::from_secs(5);

/// The environment variable that names the machine of the tests: two checkouts that are tested at once need two.
const MACHINE_VARIABLE: &str = "FORKD_TEST_MACHINE";

/// The machine of the tests.
pub fn machine_name() -> String {
    std::env::var(MACHINE_VARIABLE).unwrap_or_else(|_| "forkd-tests".into())
}

/// Where commands of a test run.
#[derive(Debug)]
pub enum TestHost {
    Native,
    Machine(Box<TestMachine>),
}

impl TestHost {
    /// The native host if it can run sandboxes, else the machine `name`, made and started as needed.
    pub fn acquire(name: &str) -> Result<TestHost, Error> {
        let root = home::directory()?;
        let diagnosis = doctor::examine(&binaries::directory(), &root);
        match diagnosis.way {
            Way::Native => Ok(TestHost::Native),
            Way::Machine => Ok(TestHost::Machine(Box::new(TestMachine::acquire(&root, name)?))),
            Way::None => Err(format!("no KVM host: {}", diagnosis.reason.unwrap_or_default()).into()),
        }
    }

    /// What kind of host it is, for the summary.
    pub fn describe(&self) -> &'static str {
        match self {
            TestHost::Native => "the native host",
            TestHost::Machine(_) => "the software machine",
        }
    }

    /// A command that runs on the host, as root there, with the host's forkd binaries first in its PATH.
    pub fn command(&self, words: &[&str]) -> Result<Command, Error> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        match self {
            TestHost::Native => {
                let path = std::env::var("PATH").unwrap_or_default();
                let mut command = Command::new(&words[0]);
                command.args(&words[1..]).env("PATH", format!("{}:{path}", binaries::directory().display()));
                Ok(command)
            }
            TestHost::Machine(test_machine) => Ok(test_machine.machine.exec(&words)?),
        }
    }

    /// Runs a command to its end.
    pub fn output(&self, words: &[&str]) -> Result<Output, Error> {
        Ok(self.command(words)?.stdin(Stdio::null()).output()?)
    }

    /// Runs a command that must succeed and returns what it printed.
    pub fn run(&self, words: &[&str]) -> Result<String, Error> {
        let output = self.output(words)?;
        if !output.status.success() {
            return Err(format!("{} failed: {}", words.join(" "), binaries::transcript(&output)).into());
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Runs a shell script that must succeed and returns what it printed.
    pub fn script(&self, script: &str) -> Result<String, Error> {
        self.run(&["sh", "-euc", script])
    }

    /// Where the host sees the tests' kernel and images.
    pub fn library(&self) -> PathBuf {
        match self {
            TestHost::Native => library::directory(),
            TestHost::Machine(_) => PathBuf::from(forkd_machine::LIBRARY),
        }
    }

    /// Leaves the host as it was found.
    pub fn release(&self) -> TestResult {
        match self {
            TestHost::Native => Ok(()),
            TestHost::Machine(test_machine) => test_machine.release(),
        }
    }
}

impl Watched for TestHost {
    fn beats(&self) -> bool {
        match self {
            // A native host that has died does not run this either.
            TestHost::Native => true,
            TestHost::Machine(test_machine) => test_machine.machine.ping(HEARTBEAT).is_ok(),
        }
    }

    fn save_evidence(&self) {
        if let TestHost::Machine(test_machine) = self {
            test_machine.save_evidence();
        }
    }

    fn restart(&self) -> TestResult {
        match self {
            TestHost::Native => Ok(()),
            TestHost::Machine(test_machine) => test_machine.restart(),
        }
    }
}

/// A machine that belongs to the tests.
#[derive(Debug)]
pub struct TestMachine {
    home: Home,
    machine: Machine,
    options: StartOptions,
}

impl TestMachine {
    /// The machine `name` with its files in `root`, running.
    pub fn acquire(root: &Path, name: &str) -> Result<TestMachine, Error> {
        let home = Home::new(root);
        let name: Name = name.parse()?;
        let binaries = binaries::directory();
        let library = library::directory();
        let host = kvm::probe(&binaries)?;
        let current = match Machine::open(&home, &name) {
            Ok(machine) => Some(machine),
            Err(forkd_machine::OpenError::NoMachine(_)) => None,
            Err(error) => return Err(error.into()),
        };
        // Twenty branches, each with memory of its own.
        let memory_mib = is_soak().then_some(12 << 10);
        let wanted = InitOptions { memory_mib, ..InitOptions::default() };
        let fits = |machine: &Machine| {
            machine.is_current() && memory_mib.is_none_or(|memory| machine.config.memory_mib >= memory)
        };
        let machine = match current {
            Some(machine) if fits(&machine) => machine,
            // Too small, or made from an image that this version of forkd would not make.
            Some(_) => {
                forkd_machine::rm(&home, &name, true, &Report)?;
                forkd_machine::init(&home, &name, &wanted, &host, &Report)?
            }
            None => forkd_machine::init(&home, &name, &wanted, &host, &Report)?,
        };
        let test_machine = TestMachine { home, machine, options: StartOptions { binaries, library, host } };
        // One that is left from an earlier run has that run's binaries, and perhaps its troubles.
        test_machine.restart()?;
        Ok(test_machine)
    }

    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    fn restart(&self) -> TestResult {
        forkd_machine::stop(&self.machine, true, &Report)?;
        let started = forkd_machine::start(&self.home, &self.machine, &self.options, &Report)?;
        check!(!started.already, "the machine was running after it was stopped");
        Ok(())
    }

    fn save_evidence(&self) {
        let stamp = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs();
        let directory = evidence_directory().join(format!("{}-{stamp}", self.machine.name));
        match forkd_machine::collect_evidence(&self.machine, &directory) {
            Ok(()) => report(&format!("what could be saved of the machine is in {}", directory.display())),
            Err(error) => report(&format!("nothing could be saved of the machine: {error}")),
        }
    }

    fn release(&self) -> TestResult {
        forkd_machine::stop(&self.machine, false, &Report)?;
        Ok(())
    }
}

/// Beside the binaries, where a failed run's other remains are.
fn evidence_directory() -> PathBuf {
    binaries::directory().join("machine-evidence")
}

/// Steps and warnings as lines on stderr.
struct Report;

impl Progress for Report {
    fn step(&self, what: &str) {
        report(what);
    }
    fn detail(&self, _: &str) {}
    fn warn(&self, what: &str) {
        report(what);
    }
}
