//! Fork: a running VM of a zygote, in a process of its own.

use std::os::fd::OwnedFd;

use forkd_proto::control::{Descriptor, Event, Fork, Refusal, RefusalCode, Reply, Stage};

use super::clone::Side;
use super::{Done, Process, ProcessState, Standing, clone_with, last_words};
use crate::vm::devices::Descriptors;
use crate::vm::live::{FrozenVm, LiveVm};

impl Process {
    /// Makes a VM of this zygote in a new process, and does not wait for it to be up.
    pub(super) fn fork(
        &mut self,
        frozen: FrozenVm,
        request: &Fork,
        mut descriptors: Descriptors,
    ) -> Result<Done, Refusal> {
        forkd_proto::passes!();
        if request.uid.is_some() && !matches!(self.standing, Ok(Standing::Trusted)) {
            self.state = ProcessState::Zygote(frozen);
            let message = "a guest has run here: its children have its user id".into();
            return Err(Refusal { code: RefusalCode::Failed, message });
        }
        match clone_with(&mut descriptors, request.cgroup) {
            Ok((control, Side::Child)) => Ok(self.begin(&frozen, control, request, descriptors)),
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

    /// The first thing that the new process does.
    fn begin(
        &mut self,
        frozen: &FrozenVm,
        control: OwnedFd,
        request: &Fork,
        mut descriptors: Descriptors,
    ) -> Done {
        last_words::enter(Stage::Restore);
        (self.pagemap, self.cold) = (None, false);
        if self.adopt(control).is_err() {
            return Done::Over;
        }
        let jailed = match request.uid {
            Some(uid) => forkd_jail::become_user(uid).and_then(|()| self.lose_trust()),
            None => self.lose_trust(),
        };
        if let Err(error) = jailed {
            self.say_failed(Stage::Restore, &error);
            return Done::Over;
        }
        // Held until all is sent: when it closes, the other process continues.
        let predecessor = descriptors.take(Descriptor::Predecessor).ok();
        let restored = match &self.kvm {
            Ok(kvm) => LiveVm::restore(kvm, frozen, request.devices.clone(), &mut descriptors),
            Err(error) => Err(error.clone().into()),
        };
        match restored {
            Ok(vm) => {
                if let Some(predecessor) = predecessor {
                    super::hand_over::take_place(&predecessor);
                }
                vm.run();
                self.state = ProcessState::Running(vm);
                self.control.say(Event::Running);
                Done::Silent
            }
            Err(error) => {
                self.say_failed(Stage::Restore, &error);
                Done::Over
            }
        }
    }
}
