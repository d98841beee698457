//! Commands in the machine, over ssh.
//!
//! `start` leaves one connection open; later commands go through it, which spares each the half second that a key
//! exchange takes in an emulator. Without it ssh makes its own connection.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use forkd_host::command::{self, CommandError};
use forkd_host::tool::{self, MissingTool};

use crate::machine::Machine;

/// The open connection's socket, in the machine's directory.
pub(crate) const SOCKET: &str = "ssh.sock";

const CONNECT_LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
pub enum SshError {
    #[error(transparent)]
    Tool(#[from] MissingTool),
    #[error(transparent)]
    Command(#[from] CommandError),
    #[error("the machine refused ssh: {0}")]
    Refused(String),
    #[error("cannot make the machine's keys: {0}")]
    Keys(String),
}

/// A command line for ssh, up to and without the remote command. It runs in the machine's directory, so that the path of
/// the connection's socket stays short however long that of the directory is.
fn client(machine: &Machine, port: u16) -> Result<Command, SshError> {
    let mut ssh = tool::SSH.command()?;
    ssh.current_dir(machine.directory());
    // No file of the user's has a say in this.
    ssh.args(["-F", "none", "-i", "key", "-p", &port.to_string()]);
    for option in [
        "IdentitiesOnly=yes",
        "IdentityAgent=none",
        "BatchMode=yes",
        "UserKnownHostsFile=known_hosts",
        "GlobalKnownHostsFile=none",
        "HostKeyAlias=machine",
        "StrictHostKeyChecking=yes",
        "LogLevel=ERROR",
        "ConnectTimeout=60",
        "ServerAliveInterval=20",
        "ServerAliveCountMax=6",
    ] {
        ssh.args(["-o", option]);
    }
    ssh.args(["-o", &format!("ControlPath={SOCKET}")]);
    Ok(ssh)
}

const ADDRESS: &str = "root@127.0.0.1";

/// Opens the connection that later commands share.
pub(crate) fn open(machine: &Machine, port: u16) -> Result<(), SshError> {
    let mut ssh = client(machine, port)?;
    // In the background once it is authenticated; the null streams keep it from holding the caller's open.
    ssh.args(["-f", "-N", "-M", "-o", "ControlPersist=yes", "-E", "ssh.log", ADDRESS]);
    ssh.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let start = |source| CommandError::Start { program: "ssh".into(), source };
    let mut child = ssh.spawn().map_err(start)?;
    let begun = std::time::Instant::now();
    loop {
        match child.try_wait().map_err(start)? {
            Some(status) if status.success() => return Ok(()),
            Some(_) => return Err(SshError::Refused(crate::files::tail(&machine.file("ssh.log"), 3))),
            None if begun.elapsed() > CONNECT_LIMIT => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(SshError::Refused(format!("no answer in {} s", CONNECT_LIMIT.as_secs())));
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// A command that runs `words` in the machine with this process's streams, and ends with their exit status.
pub(crate) fn exec(machine: &Machine, port: u16, words: &[String]) -> Result<Command, SshError> {
    let mut ssh = client(machine, port)?;
    ssh.args(["-T", ADDRESS, "--", &remote_command(words)]);
    Ok(ssh)
}

/// The same, with ports of the machine's loopback on the same ports of this host's while it runs.
pub(crate) fn exec_with_ports(
    machine: &Machine,
    port: u16,
    words: &[String],
    ports: &[u16],
) -> Result<Command, SshError> {
    let mut ssh = client(machine, port)?;
    // A connection of its own: the shared one would keep the ports.
    ssh.args(["-o", "ControlPath=none", "-o", "ExitOnForwardFailure=yes"]);
    for port in ports {
        ssh.args(["-L", &format!("127.0.0.1:{port}:127.0.0.1:{port}")]);
    }
    // With a terminal, so that what runs there ends with this.
    ssh.args(["-tt", ADDRESS, "--", &remote_command(words)]);
    Ok(ssh)
}

/// A command that runs `words` in the machine with the streams that it is given, and meanwhile listens on a socket of this
/// host that leads to one of the machine's.
pub(crate) fn exec_with_socket(
    machine: &Machine,
    port: u16,
    words: &[String],
    local: &Path,
    remote: &str,
) -> Result<Command, SshError> {
    let mut ssh = client(machine, port)?;
    // A connection of its own: the shared one would keep the socket.
    ssh.args(["-o", "ControlPath=none", "-o", "ExitOnForwardFailure=yes"]);
    let mut forward = OsString::from(local);
    forward.push(":");
    forward.push(remote);
    ssh.arg("-L").arg(forward).args(["-T", ADDRESS, "--", &remote_command(words)]);
    Ok(ssh)
}

/// A command that opens a login shell in the machine on this terminal.
pub(crate) fn shell(machine: &Machine, port: u16) -> Result<Command, SshError> {
    let mut ssh = client(machine, port)?;
    ssh.args(["-t", ADDRESS]);
    Ok(ssh)
}

/// ssh hands one string to the remote shell. Each word is quoted, and the shell stays to turn a death by signal into the
/// status 128 + N, which ssh would report as its own failure.
fn remote_command(words: &[String]) -> String {
    let quoted: Vec<String> = words
        .iter()
        .map(|word| match shlex::try_quote(word) {
            Ok(quoted) => quoted.into_owned(),
            // An argument of a process cannot contain the zero byte that this is about.
            Err(_) => String::from("''"),
        })
        .collect();
    format!("{}; exit $?", quoted.join(" "))
}

/// Makes the key that opens the machine and the key that the machine shows, and notes who they belong to.
pub(crate) fn make_keys(directory: &Path, shared: &Path) -> Result<(), SshError> {
    let failed = |error: io::Error| SshError::Keys(error.to_string());
    generate(&directory.join("key"), "forkd machine user")?;
    let host_key = shared.join("host_key");
    generate(&host_key, "forkd machine host")?;
    std::fs::copy(directory.join("key.pub"), shared.join("authorized_keys")).map_err(failed)?;
    let public = std::fs::read_to_string(host_key.with_extension("pub")).map_err(failed)?;
    std::fs::write(directory.join("known_hosts"), format!("machine {public}")).map_err(failed)
}

fn generate(path: &PathBuf, comment: &str) -> Result<(), SshError> {
    let mut keygen = tool::SSH_KEYGEN.command()?;
    keygen.args(["-q", "-t", "ed25519", "-N", "", "-C", comment, "-f"]).arg(path);
    let outcome = command::run(&mut keygen, "", Duration::from_secs(60))?;
    if !outcome.status.success() {
        return Err(SshError::Keys(outcome.complaint()));
    }
    let sync = File::open(path).and_then(|file| file.sync_all());
    sync.map_err(|error| SshError::Keys(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_reach_the_remote_command_as_they_are() {
        let words = ["printf", "%s|", "a b", "$HOME", "it's", "", "*", "a\nb", "\\", "ü"].map(String::from);
        let output = Command::new("sh").args(["-c", &remote_command(&words)]).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "a b|$HOME|it's||*|a\nb|\\|ü|");
    }

    #[test]
    fn a_death_by_signal_has_its_own_status() {
        let words = ["sh", "-c", "kill -TERM $$"].map(String::from);
        let status = Command::new("sh").args(["-c", &remote_command(&words)]).status().unwrap();
        assert_eq!(status.code(), Some(128 + 15));
    }
}
