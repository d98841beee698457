//! Errors are printed here, once, with all their causes.

use std::error::Error;
use std::io::{self, Write};

/// Whatever a verb failed with.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    #[error(transparent)]
    Home(#[from] forkd_host::home::NoHome),
    #[error("cannot tell where forkd's binaries are")]
    Binaries(#[source] io::Error),
    #[error(transparent)]
    Probe(#[from] forkd_host::kvm::ProbeError),
    #[error(transparent)]
    Open(#[from] forkd_machine::OpenError),
    #[error(transparent)]
    Init(#[from] forkd_machine::InitError),
    #[error(transparent)]
    Start(#[from] forkd_machine::StartError),
    #[error(transparent)]
    Stop(#[from] forkd_machine::StopError),
    #[error(transparent)]
    Rm(#[from] forkd_machine::RmError),
    #[error(transparent)]
    Image(#[from] forkd_machine::ImageError),
    #[error(transparent)]
    NotRunning(#[from] forkd_machine::NotRunning),
    #[error(transparent)]
    MachineDaemon(#[from] forkd_machine::DaemonError),
    #[error(transparent)]
    File(#[from] forkd_machine::FileError),
    #[error("the connection to machine {name} broke: {reason}")]
    Lost { name: forkd_machine::Name, reason: String },
    #[error(transparent)]
    Kernel(#[from] forkd_image::kernels::KernelStoreError),
    #[error(transparent)]
    StoredImage(#[from] forkd_image::images::ImageError),
    #[error(transparent)]
    Pull(#[from] forkd_image::registry::PullError),
    #[error(transparent)]
    Import(#[from] forkd_image::import::ImportError),
    #[error(transparent)]
    Debian(#[from] forkd_image::debian::DebianError),
    #[error("the Dockerfile {} cannot be read", path.display())]
    Dockerfile { path: std::path::PathBuf, source: io::Error },
    #[error(transparent)]
    Parse(#[from] forkd_image::dockerfile::ParseError),
    #[error(transparent)]
    Context(#[from] forkd_image::dockerfile::ContextError),
    #[error(transparent)]
    Recipe(#[from] forkd_image::recipe::RecipeError),
    #[error(transparent)]
    HostEnvironment(#[from] forkd_image::host_environment::HostEnvironmentError),
    #[error(transparent)]
    Build(#[from] forkd_build::BuildImageError),
    #[error(transparent)]
    BuildCache(#[from] forkd_image::builds::BuildCacheError),
    #[error(transparent)]
    BuildGuest(#[from] forkd_build::GuestsError),
    #[error("give the image a name: {0:?} is none (--name NAME)")]
    NameNeeded(String),
    #[error(transparent)]
    Boot(#[from] forkd_engine::boot::BootError),
    #[error(transparent)]
    BringUp(#[from] forkd_engine::bring_up::BringUpError),
    #[error(transparent)]
    Agent(#[from] forkd_engine::agent::AgentError),
    #[error(transparent)]
    Token(#[from] forkd_daemon::auth::TokenError),
    #[error(transparent)]
    Daemon(#[from] forkd_daemon::app::AppError),
    #[error(transparent)]
    Engine(#[from] forkd_engine::engine::EngineError),
    #[error("a daemon uses {} already; stop it first, or give this one another directory (--root)", .0.display())]
    RootInUse(std::path::PathBuf),
    #[error(transparent)]
    Listen(#[from] forkd_daemon::server::BindError),
    #[error("there is no group named {0} on this host")]
    NoGroup(String),
    #[error("{0:?} is no log filter; give a level (error, warn, info, debug, trace), or levels by module")]
    LogFilter(String),
    #[error("cannot {0}")]
    Io(&'static str, #[source] io::Error),
}

/// Prints `forkd: what failed: because: because`.
pub fn print(error: &CliError) {
    let mut message = format!("forkd: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        message += &format!(": {error}");
        cause = error.source();
    }
    // Nobody is left to tell when stderr itself is gone.
    let _ = writeln!(io::stderr(), "{message}");
}
