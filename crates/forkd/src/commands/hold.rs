//! `forkd hold`.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forkd_client::Address;
use forkd_host::home;
use serde::Serialize;
use tokio::sync::oneshot;

use super::{asynchronously, print};
use crate::arguments::HoldOptions;
use crate::daemon;
use crate::error::{self, CliError};
use crate::exit::Exit;
use crate::private::holder::{CRASHES, Found, find_or_start, see_the_end};
use crate::private::keeper::Keeper;
use crate::private::{Kept, Private};
use crate::signals::Signals;

/// Crashes count that come within this time of each other.
const STEADY: Duration = Duration::from_secs(60);

/// What is said on stdout, on one line.
#[derive(Serialize)]
#[serde(untagged)]
enum Line {
    Ready {
        url: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        token: Option<String>,
        /// Whether the daemon ends with its last holder.
        private: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        log: Option<String>,
    },
    Failed {
        error: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        hint: Option<String>,
    },
}

pub fn run(options: &HoldOptions) -> Result<Exit, CliError> {
    if let Some(machine) = &options.keep_machine {
        return asynchronously(keep_machine(machine));
    }
    if !io::stdin().is_terminal() {
        // A Ctrl-C is for the client, which may have sandboxes to remove.
        let _ = rustix::process::setsid();
    }
    asynchronously(async {
        let mut released = end_of_stdin();
        let private = Private::open(&home::directory()?)?;
        let held = tokio::select! {
            held = hold(options, &private) => held,
            // There is no client to tell. A daemon that is starting finds that it has no holders.
            _ = &mut released => return Ok(Exit::Success),
        };
        match held {
            Ok(None) => Ok(Exit::Success),
            Ok(Some(lease)) => {
                let kept = keep_going(options, &private, &mut released).await;
                drop(lease);
                let ended = see_the_end(&private).await;
                kept.and(ended).map(|()| Exit::Success)
            }
            Err(error) => {
                say_line(&Line::Failed { error: error::message(&error), hint: error.hint() })?;
                Ok(error.exit())
            }
        }
    })
}

/// Holds the daemon and says where it is. An ordinary daemon needs no holder.
async fn hold(options: &HoldOptions, private: &Private) -> Result<Option<crate::private::Lease>, CliError> {
    let lease = private.lease().await?;
    let Found { client, is_private } = find_or_start(&options.daemon, private).await?;
    let url = match client.address() {
        Address::Unix(path) => {
            let path =
                std::path::absolute(path).map_err(|error| CliError::Io("tell where the socket is", error))?;
            Address::Unix(path).to_string()
        }
        address => address.to_string(),
    };
    let token = daemon::token_of_machine(&options.daemon, client.address())?;
    let log = is_private.then(|| private.log().display().to_string());
    say_line(&Line::Ready { url, token, private: is_private, log })?;
    Ok(is_private.then_some(lease))
}

/// Until stdin ends. A daemon that crashes is started again, and finds its sandboxes.
async fn keep_going(
    options: &HoldOptions,
    private: &Private,
    released: &mut oneshot::Receiver<()>,
) -> Result<(), CliError> {
    let (mut crashes, mut begun) = (0, Instant::now());
    loop {
        let ended = end_of_keeper(private);
        tokio::select! {
            biased;
            _ = &mut *released => return Ok(()),
            ended = ended => ended?,
        }
        if private.kept()?.is_none() {
            return Err(CliError::PrivateStopped { log: private.log() });
        }
        crashes = if begun.elapsed() < STEADY { crashes + 1 } else { 1 };
        if crashes > CRASHES {
            return Err(CliError::PrivateCrashes { log: private.log() });
        }
        super::say("forkd: the private daemon has crashed and is started again");
        begun = Instant::now();
        tokio::select! {
            biased;
            _ = &mut *released => return Ok(()),
            found = find_or_start(&options.daemon, private) => match found {
                // It has crashed again: that counts.
                Ok(_) | Err(CliError::DaemonDidNotStart { .. }) => {}
                Err(error) => return Err(error),
            },
        }
    }
}

fn say_line(line: &Line) -> Result<(), CliError> {
    let text = serde_json::to_string(line).map_err(|error| CliError::Io("write JSON", error.into()))?;
    print(&format!("{text}\n"))
}

/// Resolves when the other end of stdin is closed.
fn end_of_stdin() -> oneshot::Receiver<()> {
    let (told, end) = oneshot::channel();
    // A thread and not a task: the runtime would wait for the pipe when this ends for another reason.
    std::thread::spawn(move || {
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        let _ = told.send(());
    });
    end
}

async fn end_of_keeper(private: &Private) -> Result<(), CliError> {
    let (told, end) = oneshot::channel();
    let private = private.clone();
    std::thread::spawn(move || {
        let _ = told.send(private.wait_for_keeper_s_end());
    });
    end.await.unwrap_or(Ok(()))
}

/// Starts a machine with a daemon, and stops it when its last holder has gone.
async fn keep_machine(name: &forkd_machine::Name) -> Result<Exit, CliError> {
    let _ = rustix::process::setsid();
    let mut signals = Signals::new()?;
    let mut keeper = Keeper::take(&home::directory()?)?;
    keeper.begin(&Kept::Machine(name.clone()))?;
    let last_lease = keeper.last_lease();
    let name = Arc::new(name.clone());
    let starting = Arc::clone(&name);
    let started = tokio::task::spawn_blocking(move || daemon::bring_up(&starting).map(drop)).await;
    let kept = match started.unwrap_or_else(|error| Err(CliError::Io("start the machine", error.into()))) {
        Ok(()) => tokio::select! {
            nobody = last_lease => nobody.unwrap_or(Ok(())),
            _ = signals.end() => Ok(()),
        },
        Err(error) => Err(error),
    };
    let stopped = tokio::task::spawn_blocking(move || daemon::shut_down(&name)).await;
    let stopped = stopped.unwrap_or_else(|error| Err(CliError::Io("stop the machine", error.into())));
    let ended = stopped.and_then(|()| keeper.end());
    kept.and(ended).map(|()| Exit::Success)
}
