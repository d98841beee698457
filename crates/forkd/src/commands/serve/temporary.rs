//! A daemon for one command that has to do with images or kernels, on a host that has no daemon: `temporary_daemon.rs` starts it.
//!
//! It has this host's library. All else that a daemon keeps is in a directory of its own, which is removed when it ends: it has no
//! sandboxes, knows no tokens, and changes neither cgroups nor networks, so that any number of them can run beside each other and
//! beside a daemon that is started meanwhile.

use std::path::Path;
use std::sync::Arc;
use std::{fs, io};

use forkd_daemon::config::{Config, Limits, Socket};
use forkd_daemon::protocol::OwnOnly;
use forkd_daemon::server::Handle;
use forkd_daemon::{App, Server, routes, signals};
use forkd_engine::{Engine, Networking, Settings};

use super::{ROOT, SETTLING, limits, of_engine, program};
use crate::arguments::ServeOptions;
use crate::build::HostOrMachine;
use crate::daemon::SOCKET;
use crate::error::CliError;
use crate::exit::Exit;

/// Serves the command that holds the other end of stdin, until that is closed.
pub async fn serve(options: &ServeOptions, directory: &Path) -> Result<Exit, CliError> {
    let served = serve_in(options, directory).await;
    // Also by the command, unless that was killed.
    let _ = fs::remove_dir_all(directory);
    served
}

async fn serve_in(options: &ServeOptions, directory: &Path) -> Result<Exit, CliError> {
    let library = super::library(options)?;
    let settings = Settings {
        program: program()?,
        root: directory.join(ROOT),
        images: library.images.clone(),
        limits: limits(options),
        networking: Networking::None,
        cgroup: None,
        users: options.uid_range.unwrap_or_default(),
        prefault: false,
    };
    let config = Config {
        socket: Some(Socket { path: directory.join(SOCKET), group: None }),
        tcp: None,
        audit: None,
        snapshot_policy: None,
        limits: Limits::default(),
        mcp: Default::default(),
        spans: None,
        home: directory.into(),
    };
    let guests = HostOrMachine {
        library: library.directory(),
        agent: library.agent.clone(),
        machine: options.machine.clone(),
    };
    let (engine, _) = Engine::start(settings).await.map_err(of_engine)?;
    let own = Arc::new(OwnOnly);
    let app = App::new(&config, engine, library, Box::new(guests), own).map_err(CliError::of_verb)?;
    let server = Server::bind(&config, app.clone()).await.map_err(CliError::of_verb)?;
    let signals =
        signals::listen(server.handle()).map_err(|error| CliError::Io("listen to signals", error))?;
    stop_with_stdin(server.handle());
    tokio::select! {
        () = server.serve(routes::router(&app)) => {
            if tokio::time::timeout(SETTLING, app.settled()).await.is_err() {
                tracing::warn!("shutdown timed out; cancelled unfinished operations");
            }
        }
        () = signals => {}
    }
    Ok(Exit::Success)
}

/// Stops the daemon when the command closes its end of the pipe, or is gone.
fn stop_with_stdin(handle: Handle) {
    // A thread and not a task: the runtime would wait for the pipe when the daemon ends for another reason.
    std::thread::spawn(move || {
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        handle.stop();
    });
}
