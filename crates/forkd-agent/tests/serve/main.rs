//! The real agent as `forkd-agent serve`, driven over its wire: what the official client does not reach.

mod client;
mod files;
mod interpreter;
mod pressure;
mod process;
mod settings;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use client::Client;

/// An agent on ports of its own, which ends with the test.
#[derive(Debug)]
pub struct Agent {
    process: Child,
    pub client: Client,
    pub interpreter: Client,
}

impl Agent {
    pub fn start() -> Self {
        Self::start_from("exec \"$@\"")
    }

    /// From a shell script, whose arguments are the agent's command line.
    pub fn start_from(script: &str) -> Self {
        let mut process = Command::new("sh")
            .args(["-c", script, "sh", env!("CARGO_BIN_EXE_forkd-agent")])
            .args(["serve", "--envd", "127.0.0.1:0", "--interpreter", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the agent starts");
        let mut output = BufReader::new(process.stdout.as_mut().expect("a pipe"));
        let mut address = |name: &str| {
            let mut line = String::new();
            output.read_line(&mut line).expect("a line");
            line.trim().strip_prefix(name).expect("where it is").trim().parse().expect("an address")
        };
        let (client, interpreter) = (Client::new(address("envd")), Client::new(address("interpreter")));
        Self { process, client, interpreter }
    }

    /// Resident memory in KiB.
    pub fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
        line.split_whitespace().next().and_then(|number| number.parse().ok()).expect("a number")
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
