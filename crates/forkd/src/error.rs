//! Errors are printed here, once, with all their causes.

use std::error::Error;
use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;

use crate::arguments::USUAL_LISTEN;
use crate::exit::Exit;
use crate::hint::hint;

/// For a host that cannot keep sandboxes within their limits.
pub const CGROUP_HINT: &str =
    "forkd doctor lists what this host lacks; with --cgroup none, sandboxes have no resource limits";

/// What a single verb can fail with, such as `serve`, whose file knows the type.
#[derive(Debug)]
pub struct VerbError {
    error: Box<dyn Error + Send + Sync>,
    hint: Option<&'static str>,
}

impl fmt::Display for VerbError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(formatter)
    }
}

impl Error for VerbError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.error.source()
    }
}

/// What a verb failed with here. What a daemon refuses is a `Client` error, with the daemon's own words.
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
    #[error("the Dockerfile {} cannot be read", path.display())]
    Dockerfile { path: std::path::PathBuf, source: io::Error },
    #[error(transparent)]
    Context(#[from] forkd_source::context::ContextError),
    #[error("{0:?} is not a valid image name; give one with --tag NAME")]
    NameNeeded(String),
    #[error("image {image} is needed by {users}")]
    ImageNeeded { image: String, users: String },
    #[error("cannot read {}", path.display())]
    Send { path: PathBuf, source: io::Error },
    #[error("cannot write {}", path.display())]
    Save { path: PathBuf, source: io::Error },
    #[error("the key in {} cannot be used", path.display())]
    Key { path: PathBuf, source: forkd_hub::trust::KeyError },
    #[error("the daemon returned no digest of {reference}; nothing was signed")]
    NoDigest { reference: String },
    #[error("{reference} was asked for, but the registry has {found}; nothing was signed")]
    OtherDigest { reference: String, found: String },
    #[error("{reference} was pushed but not signed")]
    PushedUnsigned { reference: String, source: Box<CliError> },
    #[error("an archive is not written to a terminal; redirect standard output or name a file with -o")]
    ArchiveToTerminal,
    #[error(transparent)]
    Chain(#[from] forkd_source::chain::ChainError),
    #[error("{}: no table [snapshot.{name}]; the file has {known}", path.display())]
    NoStep { path: PathBuf, name: String, known: String },
    #[error("no recipe is named {0:?}")]
    NoRecipe(String),
    #[error(transparent)]
    RegistryAuth(#[from] forkd_source::credentials::AuthError),
    #[error(transparent)]
    Verb(VerbError),
    #[error("this host has no cgroup v2, which enforces the limits of sandboxes")]
    NoCgroups,
    #[error("another daemon already uses {}; stop it first, or give this one another directory (--root)", .0.display())]
    RootInUse(std::path::PathBuf),
    #[error("cannot set up networks for sandboxes: {0}")]
    NoNetwork(String),
    #[error("no group {0} on this host")]
    NoGroup(String),
    #[error(
        "invalid log filter {0:?}: expected a level (error, warn, info, debug, trace), or levels by module"
    )]
    LogFilter(String),
    #[error(transparent)]
    Client(#[from] forkd_client::ClientError),
    #[error("no daemon is running: no process listens at {}, and machine {machine} runs none", socket.display())]
    NoDaemon { socket: PathBuf, machine: forkd_machine::Name },
    #[error("permission denied for the daemon's socket {}", socket.display())]
    SocketForbidden { socket: PathBuf, source: io::Error },
    #[error("the daemon did not start; the whole log is in {}:\n{said}", log.display())]
    DaemonDidNotStart { log: PathBuf, said: String },
    #[error("the daemon that was started for this command failed:\n{said}")]
    TemporaryDaemon { said: String },
    #[error("cannot use {}, the lock of the private daemon", path.display())]
    Private { path: PathBuf, source: io::Error },
    #[error("the previous private daemon is still ending its sandboxes; its log is {}", log.display())]
    PrivateStillEnding { log: PathBuf },
    #[error("the private daemon was stopped; its log is {}", log.display())]
    PrivateStopped { log: PathBuf },
    #[error("the private daemon keeps crashing; its log is {}", log.display())]
    PrivateCrashes { log: PathBuf },
    #[error("serve --private and hold --keep-machine are started by forkd hold only")]
    NotAKeeper,
    #[error("machine {held} runs the private daemon, and machine {wanted} was asked for")]
    OtherMachineHeld { held: forkd_machine::Name, wanted: forkd_machine::Name },
    #[error("{0} sandboxes of a stopped daemon are still running; a private daemon would end them")]
    SandboxesOfAnother(usize),
    #[error("{variable} is not a valid address")]
    Address { variable: &'static str, source: forkd_client::AddressError },
    #[error("cannot read the token {}", path.display())]
    TokenFile { path: PathBuf, source: io::Error },
    #[error("the daemon does not listen on TCP, which E2B's SDKs need")]
    NoTcpPort,
    #[error("{from} has no token: expected one word")]
    NoToken { from: String },
    #[error("no snapshot or image is named {0}")]
    NothingToRun(String),
    #[error("{0} is a snapshot: its vCPUs, memory, disk and kernel cannot be changed")]
    ShapeOfSnapshot(String),
    #[error("stdin is not a terminal")]
    NoTerminal,
    #[error("exactly one side must be in a sandbox (SANDBOX:PATH) and the other a local path")]
    CopySides,
    #[error("--user sets the owner of files in a sandbox; files copied out of one belong to you")]
    CopyUser,
    #[error("a path in a sandbox must begin with a slash")]
    CopyRelative,
    #[error(transparent)]
    Unpack(#[from] crate::copy::UnpackError),
    #[error("cannot copy {}", path.display())]
    Copy { path: PathBuf, source: io::Error },
    #[error("snapshot {0} was not made from an image; choose one that was, to compare with cold boots")]
    NoImage(String),
    #[error("the code failed in sandbox {0}")]
    BenchCode(String),
    #[error("interrupted")]
    Interrupted(u8),
    #[error("not all sandboxes ended within {seconds} s")]
    StillRunning { seconds: u64 },
    #[error("sandbox {sandbox} ended: {why}")]
    SandboxEnded { sandbox: String, why: String },
    #[error("cannot listen on {address}")]
    Listen { address: std::net::SocketAddr, source: io::Error },
    #[error("cannot {0}")]
    Io(&'static str, #[source] io::Error),
}

impl CliError {
    pub fn of_verb(error: impl Error + Send + Sync + 'static) -> CliError {
        CliError::of_verb_with(error, None)
    }

    /// The same, with what to do about it.
    pub fn of_verb_with(error: impl Error + Send + Sync + 'static, hint: Option<&'static str>) -> CliError {
        CliError::Verb(VerbError { error: Box::new(error), hint })
    }

    /// What to do about it, where the text does not say so itself.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            CliError::Client(error) => return hint(error),
            CliError::NoDaemon { .. } => {
                "start one with forkd serve; --address names another host's"
                    .into()
            }
            CliError::SocketForbidden { .. } => {
                "become its owner or a member of its group (forkd serve --socket-group), or use FORKD_ADDRESS"
                    .into()
            }
            CliError::Verb(error) => return error.hint.map(str::to_owned),
            CliError::NoCgroups => CGROUP_HINT.into(),
            CliError::TemporaryDaemon { .. } if !rustix::process::geteuid().is_root() => {
                "it ran without root: use sudo, or start a daemon as root: sudo forkd serve --socket-group GROUP"
                    .into()
            }
            CliError::ImageNeeded { .. } => "remove them first: forkd snapshot rm".into(),
            CliError::NothingToRun(_) => {
                "forkd run --pull gets an image from a registry; forkd image pull, build and import make others".into()
            }
            CliError::ShapeOfSnapshot(_) => "make another with: forkd snapshot IMAGE".into(),
            CliError::PushedUnsigned { reference, .. } => {
                format!("sign it with: forkd snapshot sign {reference} --key FILE")
            }
            CliError::OtherMachineHeld { .. } => "end its clients first, or unset FORKD_MACHINE".into(),
            CliError::SandboxesOfAnother(_) => "start their daemon again: forkd serve".into(),
            CliError::NoRecipe(name) => {
                format!("forkd recipe ls lists the recipes; give a directory with a slash: ./{name}")
            }
            CliError::NoTcpPort => {
                format!("start it with a TCP port: forkd serve --listen {USUAL_LISTEN}")
            }
            CliError::NoTerminal => "use forkd exec to run a command without a terminal".into(),
            _ => return None,
        })
    }

    /// The exit status.
    pub fn exit(&self) -> Exit {
        match self {
            CliError::Interrupted(status) => Exit::Other(*status),
            CliError::CopySides | CliError::CopyRelative | CliError::CopyUser | CliError::Address { .. } => {
                Exit::Other(2)
            }
            _ => Exit::Failure,
        }
    }
}

/// Prints `forkd: what failed: because: because`, and what to do about it on a line of its own.
pub fn print(error: &CliError) {
    let hint = error.hint().map(|hint| format!("\nhint: {hint}")).unwrap_or_default();
    // An error of stderr itself cannot be reported.
    let _ = writeln!(io::stderr(), "{}", safe(&format!("forkd: {}{hint}", message(error))));
}

/// What failed: because: because.
pub fn message(error: &CliError) -> String {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        message += &format!(": {error}");
        cause = error.source();
    }
    message
}

/// Lines that cannot move the terminal's cursor: a daemon may be anybody's, and guests' words pass through it.
fn safe(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(crate::table::plain).collect();
    lines.join("\n")
}
