//! A holder's side: finding the daemon or starting one, for `forkd hold`.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use forkd_client::Client;
use forkd_host::home;
use forkd_proto::probe::KvmFinding;

use super::{KeeperLock, Kept, Private, said_since};
use crate::arguments::DaemonOptions;
use crate::commands::say;
use crate::daemon;
use crate::error::CliError;

/// How long a new daemon of this host may take to answer.
const START: Duration = Duration::from_secs(60);
/// The same for a machine, whose image may have to be built first.
const MACHINE_START: Duration = Duration::from_secs(30 * 60);
/// How long a keeper may take to notice that it has no holders, or to exit after it was killed.
const LETTING_GO: Duration = Duration::from_secs(1);
/// A daemon that crashes more often than this is not started again.
pub const CRASHES: u32 = 3;
/// How long an ordinary daemon is waited for that is just starting, too.
const GRACE: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(2);
const MACHINE_POLL: Duration = Duration::from_millis(500);

/// The daemon that was found or started.
#[derive(Debug)]
pub struct Found {
    pub client: Client,
    /// Whether it ends with its last holder.
    pub is_private: bool,
}

/// The daemon that is there, else a private one, which the caller must hold already.
pub async fn find_or_start(options: &DaemonOptions, private: &Private) -> Result<Found, CliError> {
    let ordinary = |client| Found { client, is_private: false };
    if daemon::is_named(options) {
        return Ok(ordinary(daemon::find(options).await?));
    }
    let _turn = private.turn_to_start().await?;
    let before = std::fs::metadata(private.log()).map_or(0, |log| log.len());
    let (mut begun, mut has_started) = (Instant::now(), false);
    loop {
        // In the loop: others lock the keeper's file for a moment to see whether there is one, and one that is there may end.
        if !has_started && let Some(mut lock) = private.no_keeper()? {
            let left = lock.kept().map_err(|source| CliError::Io("read the keeper's note", source))?;
            if let Some(client) = look_past(options, left.as_ref()).await? {
                return Ok(ordinary(client));
            }
            let kept = match left {
                Some(kept) => kept,
                None => match daemon::probe()?.1.kvm {
                    KvmFinding::Good { .. } => Kept::Daemon,
                    _ if daemon::machine_runs(options)? => {
                        return Ok(ordinary(daemon::start_in_machine(options)?));
                    }
                    _ => Kept::Machine(options.machine.clone()),
                },
            };
            start(private, lock, &kept)?;
            (begun, has_started) = (Instant::now(), true);
        }
        let kept = private.kept()?;
        if let Some(Kept::Machine(name)) = &kept
            && *name != options.machine
        {
            return Err(CliError::OtherMachineHeld { held: name.clone(), wanted: options.machine.clone() });
        }
        let (limit, pause) = match kept {
            Some(Kept::Machine(_)) => (MACHINE_START, MACHINE_POLL),
            _ => (START, POLL),
        };
        if let Some(client) = answering(options, kept.as_ref()).await? {
            return Ok(Found { client, is_private: true });
        }
        let has_ended = has_started && private.no_keeper()?.is_some();
        if has_ended
            && private.kept()?.is_none()
            && let Some(client) = started_meanwhile(options, private).await?
        {
            return Ok(ordinary(client));
        }
        if has_ended || begun.elapsed() > limit {
            let said = daemon::last_lines(&said_since(&private.log(), before));
            return Err(CliError::DaemonDidNotStart { log: private.log(), said });
        }
        tokio::time::sleep(pause).await;
    }
}

/// After the caller has let go: if it was the last, waits until the keeper has ended everything. What a keeper that is killed leaves
/// is ended by another one.
pub async fn see_the_end(private: &Private) -> Result<(), CliError> {
    let (mut begun, mut starts) = (Instant::now(), 0);
    while begun.elapsed() < LETTING_GO {
        if private.is_ending()? {
            begun = Instant::now();
        } else if private.no_keeper()?.is_some() {
            if starts == CRASHES || private.kept()?.is_none() {
                return Ok(());
            }
            let _turn = private.turn_to_start().await?;
            if let Some(lock) = private.no_keeper()?
                && let Some(kept) = private.kept()?
            {
                start(private, lock, &kept)?;
                (begun, starts) = (Instant::now(), starts + 1);
            }
        }
        tokio::time::sleep(POLL).await;
    }
    // Others hold it.
    Ok(())
}

/// The daemon that is there and was not left by a keeper.
async fn look_past(options: &DaemonOptions, left: Option<&Kept>) -> Result<Option<Client>, CliError> {
    match left {
        Some(_) => daemon::look_here(options).await,
        None => daemon::look(options).await,
    }
}

/// The private daemon, if it answers.
async fn answering(options: &DaemonOptions, kept: Option<&Kept>) -> Result<Option<Client>, CliError> {
    match kept {
        None => Ok(None),
        Some(Kept::Daemon) => {
            let Some(client) = daemon::look_here(options).await? else { return Ok(None) };
            Ok(client.health().await.is_ok().then_some(client))
        }
        Some(Kept::Machine(_)) => daemon::look_in_machine(options).await,
    }
}

/// An ordinary daemon that was started at the same moment, in whose way a private one has not come.
async fn started_meanwhile(options: &DaemonOptions, private: &Private) -> Result<Option<Client>, CliError> {
    let begun = Instant::now();
    while begun.elapsed() < GRACE {
        if let Some(client) = look_past(options, private.kept()?.as_ref()).await? {
            return Ok(Some(client));
        }
        tokio::time::sleep(MACHINE_POLL.min(GRACE / 10)).await;
    }
    Ok(None)
}

/// Starts a keeper, which has the lock from its first moment on.
fn start(private: &Private, lock: KeeperLock, kept: &Kept) -> Result<(), CliError> {
    let failed = |error| CliError::Io("start a daemon", error);
    let binaries = home::binaries().map_err(CliError::Binaries)?;
    let mut command = Command::new(program(&binaries));
    match kept {
        Kept::Daemon => {
            command.args(["serve", "--private", "--detached", "--listen", "none"]);
        }
        Kept::Machine(name) => {
            say(&format!(
                "forkd: this host's KVM cannot run guests, and there is no daemon; machine {name} is started to run one, \
                 which takes a minute or more; log: {}",
                private.log().display()
            ));
            command.args(["hold", "--keep-machine", name.as_str()]);
        }
    }
    command.stdin(Stdio::from(lock.into_file())).stdout(Stdio::null()).stderr(private.open_log()?);
    let mut keeper = command.spawn().map_err(failed)?;
    // It is reaped as soon as it ends, which may be before this process does.
    std::thread::spawn(move || keeper.wait());
    Ok(())
}

fn program(binaries: &Path) -> std::path::PathBuf {
    binaries.join("forkd")
}
