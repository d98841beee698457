//! PID 1: brings the guest up, then serves over vsock.
//!
//! 1. /proc, /sys and /dev, and the console as standard streams
//! 2. the kernel's command line, then the modules of the initial RAM disk
//! 3. the root disk: waited for, mounted, made the root
//! 4. the other filesystems, the kernel's habits, the loopback, and the network if the command line has one
//! 5. the listeners: envd, interpreter, dial; what the image is comes from the host (`/forkd/config`)
//! 6. until a shutdown is requested: see [`shutdown`]

mod command_line;
mod modules;
mod mounts;
mod quiet;
mod resolver;
mod root;
mod shutdown;

use std::fs::{self, File};
use std::io;
use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use forkd_envd::port::{ENVD, INTERPRETER};
use forkd_proto::agent::{DIAL_PORT, IDENTITY_PORT};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use tokio::sync::Notify;

use crate::agent::{Agent, Settings};
use crate::identity::{self, boot_id};
use crate::network::{self, NetworkError};
use crate::{dial, routers, runtime, server, transfer};

/// Until the host says what the image's is.
const DEFAULT_USER: &str = "root";

#[derive(Debug, thiserror::Error)]
pub enum InitError {
    #[error(transparent)]
    Mount(#[from] mounts::MountError),
    #[error(transparent)]
    Module(#[from] modules::ModuleError),
    #[error(transparent)]
    Root(#[from] root::RootError),
    #[error("cannot read the kernel's command line: {0}")]
    CommandLine(io::Error),
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error("cannot set the resolver: {0}")]
    Resolver(io::Error),
    #[error("cannot listen on vsock port {port}: {source}; is vmw_vsock_virtio_transport among the modules?")]
    Listen { port: u32, source: io::Error },
    #[error("cannot serve: {0}")]
    Serve(io::Error),
}

/// Does not return in a healthy guest: at its end the machine is off.
pub fn run() -> Result<(), InitError> {
    bring_up()?;
    runtime::new().map_err(InitError::Serve)?.block_on(serve())
}

fn bring_up() -> Result<(), InitError> {
    // Before anything changes: in a container, PID 1 may be started by mistake.
    root::check_old_root()?;
    mounts::mount_all(&mounts::EARLY)?;
    use_console();
    let line = fs::read_to_string("/proc/cmdline").map_err(InitError::CommandLine)?;
    let options = command_line::parse(&line);
    modules::load_all()?;
    root::switch(&options, &mounts::EARLY)?;
    mounts::mount_all(&mounts::LATE)?;
    mounts::finish();
    // A kernel that has none, or a root that cannot be written to, is no reason not to start: forks agree in one id more.
    let _ = boot_id::cover();
    quiet::apply();
    network::loopback_up()?;
    for network in &options.networks {
        network::configure(network, None)?;
    }
    if !options.resolvers.is_empty() {
        resolver::cover(&options.resolvers).map_err(InitError::Resolver)?;
    }
    Ok(())
}

/// A RAM disk without /dev/console leaves PID 1 without standard streams, and the next files opened would take their place.
fn use_console() {
    let Ok(console) = File::options().read(true).write(true).open("/dev/console") else { return };
    // Without a console this output is lost.
    let _ = dup2_stdin(&console);
    let _ = dup2_stdout(&console);
    let _ = dup2_stderr(&console);
}

async fn serve() -> Result<(), InitError> {
    let settings = Settings { default_user: DEFAULT_USER.into(), ..Settings::default() };
    let agent = Arc::new(Agent::start(settings, true).map_err(InitError::Serve)?);
    let listen = |port| server::listen_vsock(port).map_err(|source| InitError::Listen { port, source });
    let asked_by_host = Arc::new(Notify::new());
    let envd =
        routers::envd(&agent).merge(shutdown_route(Arc::clone(&asked_by_host))).merge(transfer::routes());
    tokio::spawn(server::serve(listen(ENVD.into())?, envd));
    tokio::spawn(server::serve(listen(INTERPRETER.into())?, routers::interpreter(&agent)));
    tokio::spawn(dial::serve(listen(DIAL_PORT)?, Arc::clone(&agent)));
    tokio::spawn(identity::line::serve(listen(IDENTITY_PORT)?, Arc::clone(&agent)));
    shutdown::asked(&asked_by_host).await.map_err(InitError::Serve)?;
    shutdown::power_off(&agent).await.map_err(InitError::Serve)
}

fn shutdown_route(asked: Arc<Notify>) -> Router {
    let shutdown = async move || {
        // The answer is on its way before anything ends, or the host sees the guest end, which says the same.
        asked.notify_one();
        StatusCode::ACCEPTED
    };
    Router::new().route("/forkd/shutdown", post(shutdown))
}
