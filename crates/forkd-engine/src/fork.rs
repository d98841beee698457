//! Freezing a guest, and forking others from it.
//!
//! ```text
//!                 freeze                     fork                        identity::give
//!   BootedVm ─────────────────▶ Zygote ─────────────▶ BootedVm ──────────────────────────▶ serves
//!             gate closed first          (any number)  behind the gate, its parent's twin
//! ```

use std::path::Path;
use std::time::Duration;

use forkd_proto::channel::{Channel, ChannelError};
use forkd_proto::control::{Command, Descriptor, Devices, Event, Fork, Reply};

use crate::agent::{Agent, AgentError};
use crate::boot::BootedVm;
use crate::control::CallError;
use crate::descriptors::{Named, TOP, VSOCK, create};
use crate::guest::Guest;
use crate::identity;
use crate::places::PlaceError;
use crate::process::{StartError, VmProcess};

/// A frozen guest. It ends with this value; what was forked from it does not.
#[derive(Debug)]
pub struct Zygote {
    process: VmProcess,
    devices: Devices,
}

#[derive(Debug, thiserror::Error)]
pub enum FreezeError {
    #[error("the guest's agent did not close its gate")]
    Gate(#[source] AgentError),
    #[error(transparent)]
    Freeze(#[from] CallError),
}

#[derive(Debug, thiserror::Error)]
pub enum ForkError {
    #[error(transparent)]
    File(#[from] PlaceError),
    #[error("a control socket cannot be made")]
    Socket(#[from] ChannelError),
    #[error(transparent)]
    Fork(#[from] CallError),
    #[error("the zygote answered a fork with {0:?}")]
    Answer(Reply),
    #[error(transparent)]
    Process(#[from] StartError),
    #[error("the child did not come up: {0}")]
    Ended(String),
    #[error("the child did not run within {0:?}")]
    Timeout(Duration),
}

impl Zygote {
    /// Freezes a guest for ever. Its gate is closed before, and so it is in every child: none serves anybody as its parent.
    pub async fn freeze(vm: BootedVm, limit: Duration) -> Result<Zygote, FreezeError> {
        let BootedVm { process, agent, devices } = vm;
        identity::close(&agent, limit).await.map_err(FreezeError::Gate)?;
        process.control.call(Command::Freeze, &[]).await?;
        Ok(Zygote { process, devices })
    }

    /// The process that every child begins as.
    pub fn process(&self) -> &VmProcess {
        &self.process
    }

    /// Forks a guest whose files go into an empty directory, and waits until it runs. Its agent serves nobody before it has
    /// an identity ([`crate::identity::give`]).
    pub async fn fork(&self, directory: &Path, limit: Duration) -> Result<BootedVm, ForkError> {
        let (ours, theirs) = Channel::pair()?;
        let devices = self.devices.clone();
        let command =
            Command::Fork(Fork { cgroup: false, successor: false, uid: None, devices: devices.clone() });
        let descriptors = Named::of_vm(&devices, directory)?
            .with(Descriptor::Control, theirs.into_inner())
            .with(Descriptor::DiskTop, create(&directory.join(TOP))?)
            .for_command(&command);
        let (reply, mut received) = self.process.control.call(command, &descriptors).await?;
        drop(descriptors);
        let (pid, pidfd) = match (reply, received.pop()) {
            (Reply::Forked { pid }, Some(pidfd)) => (pid, pidfd),
            (reply, _) => return Err(ForkError::Answer(reply)),
        };
        let mut process = VmProcess::forked(pid, pidfd, ours)?;
        let event = tokio::time::timeout(limit, process.events.recv()).await;
        match event.map_err(|_| ForkError::Timeout(limit))? {
            Some(Event::Running) => {}
            Some(event) => return Err(ForkError::Ended(format!("{event:?}"))),
            None => return Err(ForkError::Ended("its process is gone".into())),
        }
        Ok(BootedVm { process, agent: Agent::new(Guest::new(directory.join(VSOCK))), devices })
    }
}
