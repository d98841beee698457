//! Persist: a snapshot of a zygote, written by a process that is forked for it.

use std::os::fd::OwnedFd;

use forkd_jail::Role;
use forkd_memory::Pagemap;
use forkd_proto::control::{Event, Persist, Refusal, Reply, Stage};

use super::clone::Side;
use super::{Done, Process, ProcessState, clone_with, last_words};
use crate::snapshot::persist::persist;
use crate::vm::devices::Descriptors;
use crate::vm::live::FrozenVm;

/// Writing a snapshot gives way to everything else on the host.
const NICE: i32 = 10;

impl Process {
    pub(super) fn persist(
        &mut self,
        frozen: FrozenVm,
        request: &Persist,
        mut descriptors: Descriptors,
    ) -> Result<Done, Refusal> {
        match clone_with(&mut descriptors, request.cgroup) {
            Ok((control, Side::Child)) => {
                self.write(&frozen, control, request, descriptors);
                Ok(Done::Over)
            }
            Ok((_, Side::Parent { pid, pidfd })) => {
                self.state = ProcessState::Zygote(frozen);
                Ok(Done::Reply(Reply::Forked { pid }, vec![pidfd]))
            }
            Err(refusal) => {
                self.state = ProcessState::Zygote(frozen);
                Err(refusal)
            }
        }
    }

    /// All that the new process does.
    fn write(
        &mut self,
        frozen: &FrozenVm,
        control: OwnedFd,
        request: &Persist,
        mut descriptors: Descriptors,
    ) {
        if self.adopt(control).is_err() {
            return;
        }
        last_words::enter(Stage::Persist);
        // Without it the writing is only less polite.
        let _ = rustix::process::nice(NICE);
        if let Err(error) = self.lose_trust().and_then(|()| forkd_jail::enforce(Role::Persist)) {
            return self.say_failed(Stage::Persist, &error);
        }
        let pagemap = self.pagemap.take().map(Pagemap::new);
        let control = &self.control;
        match persist(frozen, request, &mut descriptors, pagemap.as_ref(), || !control.is_abandoned()) {
            Ok(persisted) => self.control.say(Event::Persisted(persisted)),
            Err(error) => self.say_failed(Stage::Persist, &error),
        }
    }
}
