//! A VM process that this one has started.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use forkd_proto::channel::{Channel, ChannelError};
use forkd_proto::control::Event;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

use crate::control::Control;

/// A process, told what to do over its control socket. It ends with this value.
#[derive(Debug)]
pub struct VmProcess {
    pub control: Control,
    /// What happens in it by itself; the end of the process is the end of this.
    pub events: mpsc::Receiver<Event>,
    child: Child,
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("{} cannot be started", program.display())]
    Program { program: PathBuf, source: io::Error },
    #[error("a control socket cannot be made")]
    Socket(#[from] ChannelError),
    #[error("a control socket cannot be waited for")]
    Wait(#[source] io::Error),
}

impl VmProcess {
    /// Starts `forkd-vmm`, which has no VM yet.
    pub fn start(program: &Path) -> Result<VmProcess, StartError> {
        let (ours, theirs) = Channel::pair()?;
        let child = Command::new(program)
            .arg("run")
            .stdin(Stdio::from(theirs.into_inner()))
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(|source| StartError::Program { program: program.into(), source })?;
        let (control, events) = Control::new(ours).map_err(StartError::Wait)?;
        Ok(VmProcess { control, events, child })
    }

    /// Its id, while it lives.
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Waits for its end.
    pub async fn ended(&mut self) -> io::Result<std::process::ExitStatus> {
        self.child.wait().await
    }
}
