//! Finding the daemon: the address that is given, else this user's socket, else that of the host's service, else the machine's;
//! for `forkd run`, else one that is started. Images and kernels are made by a daemon of this host: `library.rs` says why.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use forkd_client::{Address, Client, Secret};
use forkd_host::{home, kvm};
use forkd_machine::{DaemonAddress, Home, InitOptions, Machine, MachineState, Name, OpenError, StartOptions};
use forkd_proto::probe::{KvmFinding, ProbeReport};
use tokio::time::timeout;

use crate::arguments::DaemonOptions;
use crate::commands::say;
use crate::error::CliError;
use crate::progress::Progress;

/// The socket's name among forkd's files.
pub const SOCKET: &str = "forkd.sock";
/// The variable with another path of the socket, for daemons and their clients.
pub const SOCKET_VARIABLE: &str = "FORKD_SOCKET";
/// The variable with the token.
pub const TOKEN_VARIABLE: &str = "FORKD_TOKEN";
/// The reference's name for the address, which scripts may have.
pub const URL_VARIABLE: &str = "FORKD_URL";
/// The socket of the service that packages install (packaging/forkd.service).
const SERVICE_SOCKET: &str = "/run/forkd/forkd.sock";
/// What a daemon that was started here logs, among forkd's files.
const LOG: &str = "daemon.log";

/// How long a machine's daemon may take to say that it is there.
const ANSWER: Duration = Duration::from_secs(10);
/// How long a new daemon may take to recover what it finds.
const START: Duration = Duration::from_secs(60);
/// How long another new daemon is waited for.
const GRACE: Duration = Duration::from_secs(2);
/// What is shown of the log of a daemon that did not start.
const LOG_LINES: usize = 5;

/// The daemon that is there.
pub async fn find(options: &DaemonOptions) -> Result<Client, CliError> {
    forkd_proto::passes!();
    look(options).await?.ok_or_else(|| match socket() {
        Ok(socket) => CliError::NoDaemon { socket, machine: options.machine.clone() },
        Err(error) => error,
    })
}

/// The daemon that is there, or a new one: on this host if its KVM can run guests, else in the machine.
pub async fn find_or_start(options: &DaemonOptions) -> Result<Client, CliError> {
    if let Some(client) = look(options).await? {
        return Ok(client);
    }
    let (binaries, host) = probe()?;
    match host.kvm {
        KvmFinding::Good { .. } => start_here(options, &binaries).await,
        _ => start_in_machine(options),
    }
}

/// Whether a daemon is named by an option or a variable, so that no other one is looked for.
pub fn is_named(options: &DaemonOptions) -> bool {
    options.address.is_some() || std::env::var_os(URL_VARIABLE).is_some_and(|text| !text.is_empty())
}

/// Whether no daemon answers and [`find_or_start`] would start one in the machine.
pub async fn will_be_in_machine(options: &DaemonOptions) -> Result<bool, CliError> {
    if look(options).await?.is_some() {
        return Ok(false);
    }
    Ok(!matches!(probe()?.1.kvm, KvmFinding::Good { .. }))
}

/// Where the binaries are, and what this host's KVM can do with them.
pub fn probe() -> Result<(PathBuf, ProbeReport), CliError> {
    let binaries = home::binaries().map_err(CliError::Binaries)?;
    let host = kvm::probe(&binaries)?;
    Ok((binaries, host))
}

/// The daemon that is there, if there is one.
pub async fn look(options: &DaemonOptions) -> Result<Option<Client>, CliError> {
    match look_here(options).await? {
        Some(client) => Ok(Some(client)),
        None => look_in_machine(options).await,
    }
}

/// The daemon that is named or that is this host's own, if there is one.
pub async fn look_here(options: &DaemonOptions) -> Result<Option<Client>, CliError> {
    let token = token(options)?;
    let address = match (&options.address, std::env::var(URL_VARIABLE)) {
        (Some(address), _) => Some(address.clone()),
        (None, Ok(text)) if !text.is_empty() => {
            Some(text.parse().map_err(|source| CliError::Address { variable: URL_VARIABLE, source })?)
        }
        _ => None,
    };
    if let Some(address) = address {
        if token.is_some() && matches!(address, Address::Tcp { tls: false, .. }) && !address.is_local() {
            say(&format!("forkd: warning: the token goes to {address} unencrypted"));
        }
        return Ok(Some(Client::new(address, token)?));
    }
    let socket = socket()?;
    if listens(&socket)? {
        return Ok(Some(Client::new(Address::Unix(socket), token)?));
    }
    // A user outside of the service's group has a daemon of their own, or none.
    match service_socket(|name| std::env::var_os(name)) {
        Some(socket) if UnixStream::connect(&socket).is_ok() => {
            Ok(Some(Client::new(Address::Unix(socket), token)?))
        }
        _ => Ok(None),
    }
}

/// The socket of the host's service, unless the environment names another socket or home.
fn service_socket(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let is_set = |name| variable(name).is_some_and(|value| !value.is_empty());
    (!is_set(SOCKET_VARIABLE) && !is_set(home::HOME_VARIABLE)).then(|| SERVICE_SOCKET.into())
}

/// The machine's daemon, if it answers.
pub async fn look_in_machine(options: &DaemonOptions) -> Result<Option<Client>, CliError> {
    let Some(client) = machine_daemon(options)? else { return Ok(None) };
    // QEMU accepts connections to the machine's port even if nothing listens behind it.
    Ok(timeout(ANSWER, client.health()).await.is_ok_and(|answer| answer.is_ok()).then_some(client))
}

fn token(options: &DaemonOptions) -> Result<Option<Secret>, CliError> {
    let (text, from) = match &options.token_file {
        Some(path) => {
            let text = fs::read_to_string(path)
                .map_err(|source| CliError::TokenFile { path: path.clone(), source })?;
            (text, path.display().to_string())
        }
        None => match std::env::var(TOKEN_VARIABLE) {
            Ok(text) if !text.is_empty() => (text, TOKEN_VARIABLE.to_owned()),
            _ => return Ok(None),
        },
    };
    Secret::new(&text).map(Some).ok_or(CliError::NoToken { from })
}

fn socket() -> Result<PathBuf, CliError> {
    match std::env::var_os(SOCKET_VARIABLE).filter(|path| !path.is_empty()) {
        Some(path) => Ok(path.into()),
        None => Ok(home::directory()?.join(SOCKET)),
    }
}

/// Whether a process listens. A socket that this user may not use belongs to a daemon, too, and no other one is looked for.
fn listens(socket: &Path) -> Result<bool, CliError> {
    match UnixStream::connect(socket) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Err(CliError::SocketForbidden { socket: socket.into(), source: error })
        }
        Err(_) => Ok(false),
    }
}

/// The daemon of a machine that runs; nothing if there is no such machine, or none in it.
fn machine_daemon(options: &DaemonOptions) -> Result<Option<Client>, CliError> {
    let machine = match Machine::open(&Home::new(home::directory()?), &options.machine) {
        Ok(machine) => machine,
        Err(OpenError::NoMachine(_)) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    match machine.daemon() {
        Ok(Some(address)) => of_machine(&address).map(Some),
        Ok(None) | Err(forkd_machine::DaemonError::NotRunning(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn of_machine(address: &DaemonAddress) -> Result<Client, CliError> {
    let token = Secret::new(&address.token);
    Ok(Client::new(Address::Tcp { tls: false, host: "127.0.0.1".into(), port: address.port }, token)?)
}

/// Starts a daemon that stays when this command ends.
async fn start_here(options: &DaemonOptions, binaries: &Path) -> Result<Client, CliError> {
    let (home, socket) = (home::directory()?, socket()?);
    let failed = |error| CliError::Io("start a daemon", error);
    fs::create_dir_all(&home).map_err(failed)?;
    let log = home.join(LOG);
    let written = File::options().create(true).append(true).open(&log).map_err(failed)?;
    let before = written.metadata().map_err(failed)?.len();
    let mut daemon = Command::new(binaries.join("forkd"))
        .args(["serve", "--detached", "--listen", "none"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(written)
        .spawn()
        .map_err(failed)?;
    let client = Client::new(Address::Unix(socket.clone()), token(options)?)?;
    let mut last_moment = Instant::now() + START;
    while client.health().await.is_err() {
        if daemon.try_wait().map_err(failed)?.is_some() {
            // It ends at once if another command has just started one, which may need a moment more.
            last_moment = last_moment.min(Instant::now() + GRACE);
        }
        if Instant::now() > last_moment {
            let _ = daemon.kill();
            return Err(CliError::DaemonDidNotStart { said: end_of(&log, before), log });
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    if daemon.try_wait().map_err(failed)?.is_some() {
        return Ok(client);
    }
    say(&format!(
        "forkd: no daemon was running; starting one, process {}, and logs to {}",
        daemon.id(),
        log.display()
    ));
    Ok(client)
}

/// The last lines of a log, from where it ended before.
fn end_of(log: &Path, before: u64) -> String {
    let bytes = fs::read(log).unwrap_or_default();
    last_lines(bytes.get(usize::try_from(before).unwrap_or(usize::MAX)..).unwrap_or_default())
}

/// The last lines of a log.
pub fn last_lines(log: &[u8]) -> String {
    let text = String::from_utf8_lossy(log);
    let lines: Vec<&str> = text.lines().collect();
    lines.get(lines.len().saturating_sub(LOG_LINES)..).unwrap_or_default().join("\n")
}

/// The token of the machine's daemon, if this is its address.
pub fn token_of_machine(options: &DaemonOptions, address: &Address) -> Result<Option<String>, CliError> {
    let machine = match Machine::open(&Home::new(home::directory()?), &options.machine) {
        Ok(machine) => machine,
        Err(OpenError::NoMachine(_)) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let Address::Tcp { tls: false, host, port } = address else { return Ok(None) };
    let is_its = |daemon: &DaemonAddress| host == "127.0.0.1" && *port == daemon.port;
    match machine.daemon() {
        Ok(daemon) => Ok(daemon.filter(is_its).map(|daemon| daemon.token)),
        Err(forkd_machine::DaemonError::NotRunning(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Whether there is the machine and it runs, or does anything but stand still.
pub fn machine_runs(options: &DaemonOptions) -> Result<bool, CliError> {
    match Machine::open(&Home::new(home::directory()?), &options.machine) {
        Ok(machine) => Ok(!matches!(machine.status()?.state, MachineState::Stopped | MachineState::Crashed)),
        Err(OpenError::NoMachine(_)) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Makes and starts the machine as far as that is needed, and the daemon in it.
pub fn start_in_machine(options: &DaemonOptions) -> Result<Client, CliError> {
    let name = &options.machine;
    say(&format!(
        "forkd: this host's KVM cannot run guests, and no daemon is running; machine {name} runs one"
    ));
    of_machine(&bring_up(name)?)
}

/// The same without a word about it.
pub fn bring_up(name: &Name) -> Result<DaemonAddress, CliError> {
    let home = Home::new(home::directory()?);
    let (binaries, host) = probe()?;
    let progress = Progress::new();
    let machine = match Machine::open(&home, name) {
        Ok(machine) => machine,
        Err(OpenError::NoMachine(_)) => {
            forkd_machine::init(&home, name, &InitOptions::default(), &host, &progress)?
        }
        Err(error) => return Err(error.into()),
    };
    let library = home::library()?;
    forkd_machine::start(&home, &machine, &StartOptions { binaries, library, host }, &progress)?;
    forkd_machine::Progress::step(&progress, "start the daemon in the machine");
    let address = machine.start_daemon()?;
    progress.finish();
    Ok(address)
}

/// Stops the machine, and its daemon with it.
pub fn shut_down(name: &Name) -> Result<(), CliError> {
    let machine = match Machine::open(&Home::new(home::directory()?), name) {
        Ok(machine) => machine,
        Err(OpenError::NoMachine(_)) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let progress = Progress::new();
    forkd_machine::stop(&machine, false, &progress)?;
    progress.finish();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_log_is_of_the_last_start() {
        let log = tempfile::NamedTempFile::new().unwrap();
        fs::write(log.path(), "old\n1\n2\n3\n4\n5\n6\n").unwrap();
        assert_eq!(end_of(log.path(), 4), "2\n3\n4\n5\n6");
        assert_eq!(end_of(log.path(), 14), "6");
        assert_eq!(end_of(log.path(), 99), "");
    }

    #[test]
    fn a_socket_without_a_listener_is_nobodys() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        assert!(!listens(&path).unwrap());
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(listens(&path).unwrap());
        drop(listener);
        assert!(!listens(&path).unwrap());
    }

    #[test]
    fn the_service_is_asked_unless_another_socket_or_home_is_named() {
        let with = |set: &'static str, value: &'static str| {
            service_socket(move |name| (name == set).then(|| OsString::from(value)))
        };
        assert_eq!(with("PATH", "/bin"), Some(PathBuf::from("/run/forkd/forkd.sock")));
        assert_eq!(with("FORKD_SOCKET", "/tmp/s"), None);
        assert_eq!(with("FORKD_HOME", "/tmp/h"), None);
        assert!(with("FORKD_HOME", "").is_some());
    }
}
