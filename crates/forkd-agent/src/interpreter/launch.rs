//! Starting a driver: the process that a context's code runs in.
//!
//! ```text
//!   agent ── socket: requests and events ──▶ driver
//!   agent ◀── pipes: stdout, stderr ──────── driver and all that it starts
//! ```
//!
//! The image has an interpreter and nothing of ours. So the interpreter is started with a few lines that fetch the rest of the
//! driver from the socket. For Python and bash the socket is standard input, and the first thing that they do is to move it out
//! of the way. R is started by a shell that does it. Node.js cannot move a descriptor, so it is told the path of a socket and connects to
//! it. Java compiles its driver from a file, which is there until it is ready.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream as StandardStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forkd_envd::Exit;
use serde_json::json;
use tokio::net::{UnixListener, UnixStream};

use super::control::Control;
use super::epoch::{Epoch, EpochName};
use super::language::Language;
use super::message::{self, Event};
use super::{bash, place, words};
use crate::agent::Agent;
use crate::children::{Child, ExitWatch, Output, Signal, Source, SpawnError, Spec, Stdio, Target};

/// Emulated hosts need seconds for what takes a real one 50 ms.
const START_LIMIT: Duration = Duration::from_secs(120);
/// How much of a failed driver's last words is told.
const LAST_WORDS: usize = 2000;
const CHUNK: usize = 4096;

const PYTHON_MODULES: [(&str, &str); 8] = [
    ("forkd_guest", include_str!("drivers/python/guest.py")),
    ("forkd_guest_display", include_str!("drivers/python/display.py")),
    ("forkd_guest_plain", include_str!("drivers/python/plain.py")),
    ("forkd_guest_charts", include_str!("drivers/python/charts.py")),
    ("forkd_guest_ipython", include_str!("drivers/python/ipython.py")),
    ("forkd_guest_watch", include_str!("drivers/python/watch.py")),
    ("forkd_guest_magics", include_str!("drivers/python/magics.py")),
    ("forkd_guest_driver", include_str!("drivers/python/driver.py")),
];

/// Moves the socket out of the way of standard input, then becomes R. `$1` is the code of the first lines.
const R_START: &str = "command -v R >/dev/null || exit 127; exec 3<&0 </dev/null; \
    exec R --no-echo --no-save --no-restore -e \"$1\"";
/// How a shell ends that does not find a program.
const NOT_FOUND: Exit = Exit::Code(127);
/// Where the driver reaches what a fork has to change: the environment, and generators of random numbers.
const JAVA_OPTIONS: [&str; 8] = [
    "-XX:+UseSerialGC",
    "-Xshare:auto",
    "--add-opens",
    "java.base/java.lang=ALL-UNNAMED",
    "--add-opens",
    "java.base/java.util=ALL-UNNAMED",
    "--add-opens",
    "java.base/java.util.concurrent=ALL-UNNAMED",
];

/// A driver that has said that it is ready.
#[derive(Debug)]
pub struct Driver {
    pub pid: u32,
    pub control: Control,
    pub output: Output,
    pub error: Output,
    /// False when everybody who could write has closed it: then reading would return at once, for ever.
    pub output_open: bool,
    pub error_open: bool,
    pub exit: ExitWatch,
    /// Of Node.js.
    pub epoch: Option<Epoch>,
    /// Whether nothing of it runs until it is asked for something.
    pub rests: bool,
}

impl Driver {
    /// Reads output that belongs to no job and drops it, so that its writer does not block.
    pub async fn quiet(&mut self) {
        tokio::select! {
            chunk = self.output.read(CHUNK), if self.output_open => {
                self.output_open = chunk.is_ok_and(|chunk| !chunk.is_empty());
            }
            chunk = self.error.read(CHUNK), if self.error_open => {
                self.error_open = chunk.is_ok_and(|chunk| !chunk.is_empty());
            }
            // The task that waits for the driver notices its end.
            Ok(()) = self.control.flush(), if self.control.has_queued() => {}
            () = std::future::pending() => {}
        }
    }

    /// Throws away what was printed so far.
    pub fn discard(&mut self) {
        drain(&mut self.output, |_| ());
        drain(&mut self.error, |_| ());
    }
}

#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    #[error("cannot start the {language} interpreter: {source}")]
    Io { language: Language, source: io::Error },
    #[error("the {language} interpreter ended while it started ({}): {last_words}", exit.describe())]
    Ended { language: Language, exit: Exit, last_words: String },
    #[error("the {language} interpreter was not ready within {} s", START_LIMIT.as_secs())]
    Slow { language: Language },
    #[error("unexpected first answer of the {0} interpreter")]
    Garbled(Language),
    #[error(transparent)]
    Place(#[from] place::PlaceError),
}

/// Starts a driver in `directory` and waits until it is ready.
pub async fn launch(agent: &Agent, language: Language, directory: &Path) -> Result<Driver, LaunchError> {
    let io_error = |source| LaunchError::Io { language, source };
    let mut meeting = Meeting::new(language).map_err(io_error)?;
    let epoch = is_node(language).then(Epoch::new).transpose().map_err(io_error)?;
    let source = (language == Language::Java).then(java_source).transpose().map_err(io_error)?;
    let path = meeting.path().or(source.as_ref().map(|name| name.0.as_path()));
    let user = place::user(agent).await?;
    let spec = Spec {
        program: program(language).into(),
        arguments: arguments(language, path),
        environment: place::environment(&user, &agent.settings()),
        directory: place::start_directory(&user, directory).await.map_err(io_error)?,
        user,
        stdio: Stdio::Streams { input: meeting.input(), output: Target::Pipe, error: Target::Pipe },
    };
    let child = agent.children.spawn(spec).await?;
    let pid = child.pid;
    let started = tokio::time::timeout(START_LIMIT, get_ready(language, child, meeting, epoch));
    let result = started.await.unwrap_or(Err(LaunchError::Slow { language }));
    if result.is_err() {
        // It may be gone already.
        let _ = agent.children.signal_group(pid, Signal::KILL).await;
    }
    result
}

fn is_node(language: Language) -> bool {
    matches!(language, Language::JavaScript | Language::TypeScript)
}

pub fn program(language: Language) -> &'static str {
    match language {
        Language::Python => "python3",
        Language::JavaScript | Language::TypeScript => "node",
        Language::Bash => "bash",
        Language::R => "sh",
        Language::Java => "java",
    }
}

/// The driver, as a file that any user may read.
fn java_source() -> io::Result<TemporaryName> {
    let name = TemporaryName(place::unused_path("java")?);
    let mut file = File::options().write(true).create_new(true).mode(0o644).open(&name.0)?;
    file.write_all(include_bytes!("drivers/java/Driver.java"))?;
    Ok(name)
}

fn arguments(language: Language, path: Option<&Path>) -> Vec<OsString> {
    let words: &[&str] = match language {
        Language::Python => &["-c", include_str!("drivers/python/bootstrap.py")],
        Language::JavaScript | Language::TypeScript => &["-e", include_str!("drivers/node/bootstrap.js")],
        Language::Bash => &["--noprofile", "--norc", "--noediting", "-i", "+m"],
        Language::R => &["-c", R_START, "sh", include_str!("drivers/r/bootstrap.R")],
        Language::Java => &JAVA_OPTIONS,
    };
    words.iter().map(OsString::from).chain(path.map(OsString::from)).collect()
}

/// The first thing that goes through the socket.
fn opening(language: Language, epoch: Option<&Path>) -> Vec<u8> {
    let mut text = match language {
        Language::Python => json!(PYTHON_MODULES).to_string(),
        Language::JavaScript | Language::TypeScript => {
            let options = json!({
                "typescript": language == Language::TypeScript,
                "random": include_str!("drivers/node/random.js"),
                "epoch": epoch,
            });
            json!({ "source": include_str!("drivers/node/driver.js"), "options": options }).to_string()
        }
        Language::Bash => return bash::PRELUDE.into(),
        Language::R => words::hex(include_str!("drivers/r/driver.R")),
        Language::Java => return Vec::new(),
    };
    text.push('\n');
    text.into_bytes()
}

async fn get_ready(
    language: Language,
    child: Child,
    meeting: Meeting,
    epoch: Option<(Epoch, EpochName)>,
) -> Result<Driver, LaunchError> {
    let Child { pid, output: Some(mut output), error: Some(mut error), mut exit, .. } = child else {
        return Err(LaunchError::Garbled(language));
    };
    let mut last_words = Vec::new();
    let (epoch, name) = epoch.unzip();
    let greeting = greet(language, meeting, pid, name);
    tokio::pin!(greeting);
    let (mut output_open, mut error_open) = (true, true);
    loop {
        tokio::select! {
            greeted = &mut greeting => {
                let control = greeted?;
                let rests = true;
                return Ok(Driver { pid, control, output, error, output_open, error_open, exit, epoch, rests });
            }
            ended = exit.wait() => {
                if language == Language::R && ended == NOT_FOUND {
                    return Err(SpawnError::NotFound("R".into()).into());
                }
                drain(&mut error, |chunk| last_words.extend_from_slice(chunk));
                let last_words = tail(&last_words);
                return Err(LaunchError::Ended { language, exit: ended, last_words });
            }
            // Both are read so that nothing blocks; what an interpreter says before it is ready is not a cell's output.
            chunk = output.read(CHUNK), if output_open => output_open = chunk.is_ok_and(|chunk| !chunk.is_empty()),
            chunk = error.read(CHUNK), if error_open => match chunk {
                Ok(chunk) if !chunk.is_empty() => {
                    last_words.extend_from_slice(&chunk);
                    let surplus = last_words.len().saturating_sub(LAST_WORDS);
                    last_words.drain(..surplus);
                }
                _ => error_open = false,
            },
        }
    }
}

async fn greet(
    language: Language,
    meeting: Meeting,
    pid: u32,
    epoch: Option<EpochName>,
) -> Result<Control, LaunchError> {
    let io_error = |source| LaunchError::Io { language, source };
    let mut control = Control::new(meeting.connect(pid).await.map_err(io_error)?);
    let opening = opening(language, epoch.as_ref().map(EpochName::path));
    let told = async {
        control.write(&opening).await?;
        control.next().await
    };
    let line = match told.await {
        Ok(Some(line)) => line,
        // Its exit is noticed next, and says more.
        Ok(None) => std::future::pending().await,
        Err(error) if is_hung_up(&error) => std::future::pending().await,
        Err(error) => return Err(io_error(error)),
    };
    match message::parse(language, &line) {
        Ok(Event::Ready) => Ok(control),
        _ => Err(LaunchError::Garbled(language)),
    }
}

/// Whether the other end is gone.
fn is_hung_up(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

fn tail(bytes: &[u8]) -> String {
    let from = bytes.len().saturating_sub(LAST_WORDS);
    String::from_utf8_lossy(bytes.get(from..).unwrap_or_default()).trim().to_owned()
}

/// At most this much is taken at once: a process may write faster than we read.
const MAX_DRAIN: usize = 1 << 20;

/// Takes what is in a pipe now, without waiting. It asks the kernel, not the runtime, which may not know yet.
pub fn drain(output: &mut Output, mut take: impl FnMut(&[u8])) {
    let Output::Pipe(pipe) = output else { return };
    let mut buffer = vec![0; CHUNK];
    let mut total = 0;
    while total < MAX_DRAIN
        && let Ok(length @ 1..) = rustix::io::read(&*pipe, &mut buffer[..])
    {
        take(buffer.get(..length).unwrap_or_default());
        total += length;
    }
}

/// Where agent and driver find each other.
#[derive(Debug)]
enum Meeting {
    Pair { ours: OwnedFd, theirs: Option<OwnedFd> },
    Path { listener: UnixListener, path: TemporaryName },
}

/// Removes a name that is needed only until the two have met.
#[derive(Debug)]
struct TemporaryName(PathBuf);

impl Drop for TemporaryName {
    fn drop(&mut self) {
        // The guest may have removed it.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Meeting {
    fn new(language: Language) -> io::Result<Self> {
        if !is_node(language) {
            let (ours, theirs) = StandardStream::pair()?;
            ours.set_nonblocking(true)?;
            return Ok(Self::Pair { ours: ours.into(), theirs: Some(theirs.into()) });
        }
        let path = TemporaryName(place::unused_path("sock")?);
        let listener = UnixListener::bind(&path.0)?;
        // Any user may knock; who is let in is decided by process.
        std::fs::set_permissions(&path.0, std::fs::Permissions::from_mode(0o666))?;
        Ok(Self::Path { listener, path })
    }

    fn path(&self) -> Option<&Path> {
        match self {
            Self::Pair { .. } => None,
            Self::Path { path, .. } => Some(&path.0),
        }
    }

    fn input(&mut self) -> Source {
        match self {
            Self::Pair { theirs, .. } => theirs.take().map_or(Source::Null, Source::Descriptor),
            Self::Path { .. } => Source::Null,
        }
    }

    /// The agent's end. Other processes than the started one are refused.
    async fn connect(self, pid: u32) -> io::Result<UnixStream> {
        match self {
            Self::Pair { ours, .. } => UnixStream::from_std(ours.into()),
            Self::Path { listener, path: _path } => loop {
                let (stream, _) = listener.accept().await?;
                let peer = stream.peer_cred()?.pid().and_then(|peer| u32::try_from(peer).ok());
                if peer == Some(pid) {
                    return Ok(stream);
                }
            },
        }
    }
}
