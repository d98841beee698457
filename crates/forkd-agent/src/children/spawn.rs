//! Starting a child.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio as StandardStream};
use std::sync::Arc;

use rustix::fs::{Gid, Uid, fchown};
use tokio::sync::watch;

use super::exec::BeforeExec;
use super::pipes::{self, Input, Output};
use super::terminal::{self, Terminal};
use super::{Children, ExitWatch, Source, Spec, Stdio, Target};
use crate::users::User;

/// A started process. Dropping it does not end the process.
#[derive(Debug)]
pub struct Child {
    pub pid: u32,
    pub input: Option<Input>,
    /// A terminal's output comes here too.
    pub output: Option<Output>,
    pub error: Option<Output>,
    /// For changing its size.
    pub terminal: Option<Terminal>,
    pub exit: ExitWatch,
}

#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    #[error("there is no program '{}'", .0.to_string_lossy())]
    NotFound(OsString),
    #[error("'{}' may not be started by this user", .0.to_string_lossy())]
    Denied(OsString),
    #[error("invalid program, argument, environment or directory: {0}")]
    Invalid(io::Error),
    #[error("cannot start more processes: {0}")]
    Exhausted(io::Error),
    #[error("cannot start '{}': {source}", program.to_string_lossy())]
    Start { program: OsString, source: io::Error },
}

/// What the parent keeps.
#[derive(Debug, Default)]
struct Ends {
    input: Option<OwnedFd>,
    output: Option<OwnedFd>,
    error: Option<OwnedFd>,
    terminal: Option<OwnedFd>,
}

impl Children {
    /// Starts a program of the guest's. While programs are frozen, this waits.
    pub async fn spawn(&self, spec: Spec) -> Result<Child, SpawnError> {
        let _may_start = self.programs.start().await;
        self.spawn_in(spec, self.programs.members()).await
    }

    /// Starts a process of the agent's own, which runs while programs are frozen.
    pub async fn spawn_beside(&self, spec: Spec) -> Result<Child, SpawnError> {
        self.spawn_in(spec, None).await
    }

    /// It is another thread that forks, because exec may wait for a disk.
    async fn spawn_in(&self, spec: Spec, cgroup: Option<Arc<File>>) -> Result<Child, SpawnError> {
        let program = spec.program.clone();
        let describe = |source: io::Error| SpawnError::from_error(program.clone(), source);
        let descriptors = self.descriptors;
        let table = Arc::clone(&self.table);
        let started = crate::runtime::blocking(move || {
            // Taken here and not before: a wait for a thread must not keep others from being reaped or killed.
            let mut table = table.blocking_lock();
            let (process, ends) = start(spec, descriptors, cgroup)?;
            let (sender, receiver) = watch::channel(None);
            table.insert(process, sender);
            Ok((process, ends, receiver))
        });
        let (pid, ends, exit) = started.await.map_err(&describe)?.map_err(&describe)?;
        let mut child =
            Child { pid, input: None, output: None, error: None, terminal: None, exit: ExitWatch(exit) };
        child.attach(ends).map_err(describe)?;
        Ok(child)
    }
}

impl Child {
    /// On the thread that serves: descriptors belong to its poll set.
    fn attach(&mut self, ends: Ends) -> io::Result<()> {
        self.input = ends.input.map(pipes::input).transpose()?;
        self.output = ends.output.map(pipes::output).transpose()?;
        self.error = ends.error.map(pipes::output).transpose()?;
        if let Some(master) = ends.terminal {
            let terminal = Terminal::new(master)?;
            self.input = Some(Input::Terminal(terminal.clone()));
            self.output = Some(Output::Terminal(terminal.clone()));
            self.terminal = Some(terminal);
        }
        Ok(())
    }
}

fn start(
    spec: Spec,
    descriptors: rustix::process::Rlimit,
    cgroup: Option<Arc<File>>,
) -> io::Result<(u32, Ends)> {
    let mut command = Command::new(&spec.program);
    command.args(&spec.arguments).env_clear().envs(spec.environment);
    let mut ends = Ends::default();
    let terminal = matches!(spec.stdio, Stdio::Terminal(_));
    match spec.stdio {
        Stdio::Streams { input, output, error } => {
            let (stream, kept) = source(input, &spec.user)?;
            command.stdin(stream);
            ends.input = kept;
            let (stream, kept) = target(output, &spec.user)?;
            command.stdout(stream);
            ends.output = kept;
            let (stream, kept) = target(error, &spec.user)?;
            command.stderr(stream);
            ends.error = kept;
        }
        Stdio::Terminal(size) => {
            let (master, child) = terminal::open(size)?;
            hand_over(&child, &spec.user);
            command.stdin(child.try_clone()?).stdout(child.try_clone()?).stderr(child);
            ends.terminal = Some(master);
        }
    }
    BeforeExec::new(&spec.directory, &spec.user, terminal, descriptors, cgroup)?.attach(&mut command);
    // The handle of the standard library is dropped: it would wait for the process.
    Ok((command.spawn()?.id(), ends))
}

/// A program of the user opens its streams by name, too (`/dev/stderr`). Who is not root has them already.
fn hand_over(stream: impl AsFd, user: &User) {
    let _ = fchown(stream, Some(Uid::from_raw(user.uid)), None::<Gid>);
}

fn source(source: Source, user: &User) -> io::Result<(StandardStream, Option<OwnedFd>)> {
    Ok(match source {
        Source::Null => (StandardStream::null(), None),
        Source::Descriptor(descriptor) => {
            hand_over(&descriptor, user);
            (descriptor.into(), None)
        }
        Source::Pipe => {
            let (reader, writer) = io::pipe()?;
            hand_over(&reader, user);
            (reader.into(), Some(writer.into()))
        }
    })
}

fn target(target: Target, user: &User) -> io::Result<(StandardStream, Option<OwnedFd>)> {
    Ok(match target {
        Target::Null => (StandardStream::null(), None),
        Target::Descriptor(descriptor) => {
            hand_over(&descriptor, user);
            (descriptor.into(), None)
        }
        Target::Pipe => {
            let (reader, writer) = io::pipe()?;
            hand_over(&writer, user);
            (writer.into(), Some(reader.into()))
        }
    })
}

impl SpawnError {
    fn from_error(program: OsString, source: io::Error) -> Self {
        use rustix::io::Errno;
        match source.kind() {
            io::ErrorKind::NotFound => Self::NotFound(program),
            io::ErrorKind::PermissionDenied => Self::Denied(program),
            io::ErrorKind::InvalidInput | io::ErrorKind::ArgumentListTooLong => Self::Invalid(source),
            _ => match Errno::from_io_error(&source) {
                Some(Errno::AGAIN | Errno::NOMEM | Errno::MFILE | Errno::NFILE | Errno::NOSPC) => {
                    Self::Exhausted(source)
                }
                _ => Self::Start { program, source },
            },
        }
    }
}
