//! Rollback: a sandbox goes back to one of its own branches, and keeps its place.
//!
//! The VM hands its place over to a child of the branch; the two of them decide which one runs (`forkd-vmm`'s hand-over). The
//! sandbox keeps its id, its sockets and its time; its disks are the branch's, with new top layers.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use forkd_proto::control::{Command, Descriptor, Event, Fork, Reply};
use forkd_store::Tag;
use rustix::process::{Signal, pidfd_send_signal};

use crate::agent::Agent;
use crate::engine::{EngineEvent, PATIENCE};
use crate::error::EngineError;
use crate::fault;
use crate::guest::Guest;
use crate::identity::{self, Identity};
use crate::process::descriptors::{Named, VSOCK};
use crate::process::{VmProcess, WithEvents};
use crate::record::{DiskFiles, RollingBack};
use crate::sandbox::forked::identity_of;
use crate::sandbox::{Sandbox, SandboxState};
use crate::snapshot::Zygote;

impl Sandbox {
    pub(crate) async fn rollback(&mut self, tag: Tag) -> Result<(), EngineError> {
        self.check_alive()?;
        if !self.record.branches.contains(&tag) {
            return Err(EngineError::NotItsBranch { tag, sandbox: self.record.id.to_string() });
        }
        let zygote = self.shared.snapshot(tag.as_str())?.lease().await?;
        // The branch may be gone, and its name another's.
        if zygote.record.branched_from.as_ref() != Some(&self.record.id) {
            return Err(EngineError::NotItsBranch { tag, sandbox: self.record.id.to_string() });
        }
        let generation = zygote.record.generation + 1;
        let from_pid = self.process.pid;
        self.record.rolling_back = Some(RollingBack { tag: tag.clone(), generation, from_pid });
        let successor = self.succeed(&zygote).await;
        fault::place("rollback.succeeded");
        // Whatever has happened, the process that has the place now is found at its socket.
        self.settle_disks(successor.is_ok());
        let (process, events) = match successor {
            Ok(successor) => successor,
            Err(error) => {
                self.record.rolling_back = None;
                self.save()?;
                return Err(error);
            }
        };
        (self.process, self.events) = (process, events);
        fault::place("rollback.settled");
        // Written down afterwards: a daemon that finds it earlier has to see to it.
        let identified = self.identify(generation).await;
        self.record.back_to(&tag, generation);
        self.save()?;
        self.become_(SandboxState::Running);
        self.tell(EngineEvent::RolledBack(self.record.id.clone(), tag));
        identified
    }

    /// The rest of a rollback that another daemon has begun.
    pub(crate) async fn finish_rollback(&mut self) -> Result<(), EngineError> {
        let identified = self.identify(self.record.generation).await;
        self.become_(SandboxState::Running);
        identified
    }

    /// Tells the guest who it is.
    async fn identify(&self, generation: u64) -> Result<(), EngineError> {
        if self.record.shape.devices.vsock.is_some() {
            let agent = Agent::new(Guest::new(self.directory.join(VSOCK)));
            let identity = Identity { generation, ..identity_of(&self.record, 0, Default::default())? };
            let given = identity::give(&agent, &identity, PATIENCE).await?;
            self.shared.tell_of(&self.record, given);
        }
        Ok(())
    }

    /// Has a child of the zygote take the VM's place.
    async fn succeed(&mut self, zygote: &Zygote) -> Result<WithEvents, EngineError> {
        let mut named = Named::default();
        let tops = self.shared.new_tops(&self.record.shape.devices.disks)?;
        for ((disk, frozen), (top, file)) in self.record.disks.iter_mut().zip(&zygote.record.disks).zip(tops)
        {
            disk.instead = vec![DiskFiles { frozen: frozen.clone(), top }];
            named = named.with(Descriptor::DiskTop, file);
        }
        self.save()?;
        fault::place("rollback.written");
        let (predecessor, successor) = UnixStream::pair().map_err(EngineError::io("make a socket"))?;
        let handed = self.process.control.call(Command::HandOver, &[OwnedFd::from(successor)]).await?;
        let (Reply::HandedOver { devices }, descriptors) = handed else {
            return Err(EngineError::Answer(handed.0));
        };
        fault::place("rollback.handed-over");
        let names = [Descriptor::Control].into_iter().chain(devices.own());
        named = names.zip(descriptors).fold(named, |named, (name, file)| named.with(name, file));
        named = named.with(Descriptor::Predecessor, OwnedFd::from(predecessor));
        let (named, cgroup) = self.shared.with_cgroup(named, &self.record)?;
        let user = match &zygote.process.user {
            Some(zygote) if zygote.trusted => self.process.user.clone(),
            other => other.clone(),
        };
        let uid = zygote.uid_for(user.as_ref());
        let command = Command::Fork(Fork { cgroup, successor: true, uid, devices });
        let descriptors = named.for_command(&command);
        let answer = zygote.process.control.call(command, &descriptors).await;
        drop(descriptors);
        let forked = match answer {
            Ok((Reply::Forked { pid }, mut pidfds)) => {
                pidfds.pop().map(|pidfd| (pid, pidfd)).ok_or(EngineError::Answer(Reply::Done))
            }
            Ok((reply, _)) => Err(EngineError::Answer(reply)),
            Err(error) => Err(error.into()),
        };
        fault::place("rollback.forked");
        // The VM ends when the successor can run, and keeps running if it cannot, or without a successor.
        match tokio::time::timeout(PATIENCE, self.given_up()).await {
            Ok(true) => {}
            Ok(false) => return Err(EngineError::Ended("the VM that replaces it could not run".into())),
            Err(_) => {
                // A successor that is gone cannot run. It may have ended in this moment.
                if let Ok((_, pidfd)) = &forked {
                    let _ = pidfd_send_signal(pidfd, Signal::KILL);
                }
                let _ = tokio::time::timeout(PATIENCE, self.given_up()).await;
                return Err(EngineError::Timeout);
            }
        }
        let (mut process, mut events) = match forked {
            Ok((pid, pidfd)) => VmProcess::take(&self.directory, zygote.process.pid, pid, pidfd)?,
            // The zygote has died before it could tell of it.
            Err(error) => match tokio::time::timeout(PATIENCE, VmProcess::find(&self.directory)).await {
                Ok(Ok(Some(found))) => found.process,
                _ => return Err(error),
            },
        };
        process.user = user;
        let failed = match tokio::time::timeout(PATIENCE, events.recv()).await {
            Ok(Some(Event::Running)) => return Ok((process, events)),
            Ok(other) => EngineError::Ended(format!("{other:?}")),
            Err(_) => EngineError::Timeout,
        };
        // The VM has ended, and this one would never be ended: the sandbox is over.
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

    /// The disks of the process that has the place now; the other's top layers are unused.
    fn settle_disks(&mut self, succeeded: bool) {
        for disk in &mut self.record.disks {
            let Some(next) = disk.instead.pop() else { continue };
            disk.instead.clear();
            let unused = match succeeded {
                true => std::mem::replace(&mut disk.files, next).top,
                false => next.top,
            };
            self.shared.remove_layer(&unused);
        }
    }
}
