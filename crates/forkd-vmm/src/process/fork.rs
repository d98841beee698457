//! Fork: a running VM of a zygote, in a process of its own.

use std::os::fd::OwnedFd;

use forkd_proto::control::{Descriptor, Event, Fork, Refusal, Reply, Stage};

use super::clone::Side;
use super::{Done, Process, State, clone_with};
use crate::vm::devices::Descriptors;
use crate::vm::live::{FrozenVm, LiveVm, VmError};

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
        let restored = restore(frozen, request, &mut descriptors);
        match restored {
            Ok((vm, predecessor)) => {
                if let Some(predecessor) = predecessor {
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

/// The VM, and the one whose place it takes.
fn restore(
    frozen: &FrozenVm,
    request: &Fork,
    descriptors: &mut Descriptors,
) -> Result<(LiveVm, Option<OwnedFd>), VmError> {
    let predecessor = match request.successor {
        true => Some(descriptors.take(Descriptor::Predecessor)?),
        false => None,
    };
    Ok((LiveVm::restore(frozen, request.devices.clone(), descriptors)?, predecessor))
}
