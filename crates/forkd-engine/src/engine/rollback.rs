//! Rollback: a sandbox goes back to one of its own branches, and keeps its place.
//!
//! The VM hands its place over to a child of the branch; the two of them decide which goes on (`forkd-vmm`'s hand-over). The
//! sandbox keeps its id, its sockets and its time; its disk is the branch's, with a new top layer.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use forkd_proto::control::{Command, Descriptor, Event, Fork, Reply};
use forkd_store::Tag;
use rustix::process::{Signal, pidfd_send_signal};

use super::create::identity_of;
use super::sandbox::{Sandbox, SandboxState};
use super::snapshot::Zygote;
use super::{EngineError, Happened, PATIENCE};
use crate::agent::Agent;
use crate::descriptors::{Named, VSOCK};
use crate::guest::Guest;
use crate::identity;
use crate::lasting::{Lasting, WithEvents};
use crate::record::DiskFiles;

impl Sandbox {
    pub(super) async fn rollback(&mut self, tag: Tag) -> Result<(), EngineError> {
        self.check_alive()?;
        if !self.record.branches.contains(&tag) {
            return Err(EngineError::NotItsBranch { tag, sandbox: self.record.id.to_string() });
        }
        let zygote = self.shared.snapshot(tag.as_str())?.lease().await?;
        let successor = self.succeed(&zygote).await;
        // Whatever has happened, the process that has the place now is found at its socket.
        self.settle_disk(successor.is_ok());
        let (process, events) = successor?;
        (self.process, self.events) = (process, events);
        self.record.generation = zygote.record.generation + 1;
        let kept = self.record.branches.iter().position(|branch| *branch == tag);
        self.record.branches.truncate(kept.map_or(0, |kept| kept + 1));
        self.save()?;
        if self.record.shape.devices.vsock.is_some() {
            let agent = Agent::new(Guest::new(self.directory.join(VSOCK)));
            let identity = identity_of(&self.record, 0, Default::default())?;
            identity::give(&agent, &identity, PATIENCE).await?;
        }
        self.become_(SandboxState::Running);
        self.shared.tell(Happened::RolledBack(self.record.id.clone(), tag));
        Ok(())
    }

    /// Has a child of the zygote take the VM's place.
    async fn succeed(&mut self, zygote: &Zygote) -> Result<WithEvents, EngineError> {
        let mut named = Named::default();
        if let Some(disk) = &mut self.record.disk {
            let (top, file) = self.shared.new_layer()?;
            disk.instead = vec![DiskFiles { frozen: zygote.record.layers.clone(), top }];
            named = named.with(Descriptor::DiskTop, file);
        }
        self.save()?;
        let (predecessor, successor) = UnixStream::pair().map_err(EngineError::io("make a socket"))?;
        let handed = self.process.control.call(Command::HandOver, &[OwnedFd::from(successor)]).await?;
        let (Reply::HandedOver { devices }, descriptors) = handed else {
            return Err(EngineError::Answer(handed.0));
        };
        let names = [Descriptor::Control].into_iter().chain(devices.own());
        named = names.zip(descriptors).fold(named, |named, (name, file)| named.with(name, file));
        named = named.with(Descriptor::Predecessor, OwnedFd::from(predecessor));
        let command = Command::Fork(Fork { cgroup: false, successor: true, devices });
        let descriptors = named.for_command(&command);
        let (reply, mut pidfds) = zygote.process.control.call(command, &descriptors).await?;
        drop(descriptors);
        let (Reply::Forked { pid }, Some(pidfd)) = (reply.clone(), pidfds.pop()) else {
            return Err(EngineError::Answer(reply));
        };
        // The VM ends when the successor can run, and goes on if it cannot.
        match tokio::time::timeout(PATIENCE, self.given_up()).await {
            Ok(true) => {}
            Ok(false) => return Err(EngineError::Ended("its successor could not run".into())),
            Err(_) => {
                // A successor that is gone cannot run. It may have ended in this moment.
                let _ = pidfd_send_signal(&pidfd, Signal::KILL);
                let _ = tokio::time::timeout(PATIENCE, self.given_up()).await;
                return Err(EngineError::Timeout);
            }
        }
        let (process, mut events) = Lasting::take(&self.directory, pid, pidfd)?;
        let failed = match tokio::time::timeout(PATIENCE, events.recv()).await {
            Ok(Some(Event::Running)) => return Ok((process, events)),
            Ok(other) => EngineError::Ended(format!("{other:?}")),
            Err(_) => EngineError::Timeout,
        };
        // The VM has ended, and nobody would ever end this one: the sandbox is over.
        process.kill();
        Err(failed)
    }

    /// Whether the VM has given its place away, when that is decided.
    async fn given_up(&mut self) -> bool {
        loop {
            tokio::select! {
                biased;
                event = self.events.recv() => match event {
                    Some(Event::Kept) => return false,
                    Some(_) => {}
                    None => {
                        self.process.ended().await;
                        return true;
                    }
                },
                () = self.process.ended() => return true,
            }
        }
    }

    /// The disk of whoever has the place now; the other's top layer is nobody's.
    fn settle_disk(&mut self, succeeded: bool) {
        let Some(disk) = &mut self.record.disk else { return };
        let Some(next) = disk.instead.pop() else { return };
        disk.instead.clear();
        let unused = match succeeded {
            true => std::mem::replace(&mut disk.files, next).top,
            false => next.top,
        };
        let _ = fs::remove_file(self.shared.places.layer(&unused));
    }
}
