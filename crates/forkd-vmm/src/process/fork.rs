//! Fork: a running VM of a zygote, in a process of its own.

use std::os::fd::OwnedFd;

use forkd_proto::control::{Descriptor, Event, Fork, Refusal, Reply, Stage};

use super::clone::Side;
use super::{Done, Process, State, clone_with, failed};
use crate::vm::devices::{Descriptors, DeviceError};
use crate::vm::live::{FrozenVm, LiveVm};

impl Process {
    /// Makes a VM of this zygote in a new process, and does not wait for it to be up.
    pub(super) fn fork(
        &mut self,
        frozen: FrozenVm,
        request: &Fork,
        mut descriptors: Descriptors,
    ) -> Result<Done, Refusal> {
        match clone_with(&mut descriptors, request.cgroup) {
            Ok((control, Side::Child)) => Ok(self.begin(&frozen, control, request, descriptors)),
            Ok((_, Side::Parent { pid, pidfd })) => {
                self.state = State::Zygote(frozen);
                Ok(Done::Reply(Reply::Forked { pid }, vec![pidfd]))
            }
            Err(refusal) => {
                self.state = State::Zygote(frozen);
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
        if self.adopt(control).is_err() {
            return Done::Over;
        }
        let restored = take_predecessor(request, &mut descriptors).map_err(Into::into).and_then(|before| {
            let vm = LiveVm::restore(frozen, request.devices.clone(), &mut descriptors)?;
            Ok((vm, before))
        });
        match restored {
            Ok((vm, before)) => {
                if let Some(predecessor) = before {
                    super::hand_over::take_place(&predecessor);
                }
                vm.run();
                self.state = State::Running(vm);
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

fn take_predecessor(request: &Fork, descriptors: &mut Descriptors) -> Result<Option<OwnedFd>, DeviceError> {
    match request.successor {
        true => descriptors.take(Descriptor::Predecessor).map(Some),
        false => Ok(None),
    }
}
