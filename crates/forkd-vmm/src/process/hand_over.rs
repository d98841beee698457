//! HandOver: a VM gives its place to a successor, which was forked from one of its branches.
//!
//! ```text
//!   VM           paused ── waits ────────────┬── "end" ───────▶ ends
//!                                            └── closed ──────▶ runs, says Kept
//!   successor            restores ── "end" ─▶ waits for the close ── runs
//!                        cannot ── closed ─▶
//! ```
//!
//! The requester may die at any moment: the two processes decide between themselves which one runs, and never both do.

use std::os::fd::{AsFd, OwnedFd};

use forkd_proto::control::{Descriptor, Event, Message, Refusal, Reply};
use rustix::io::{read, retry_on_intr, write};

use super::{Done, Process, failed};
use crate::vm::devices::Descriptors;
use crate::vm::live::LiveVm;

/// What the successor says.
const END: &[u8] = &[1];

impl Process {
    pub(super) fn hand_over(
        &mut self,
        vm: LiveVm,
        was_running: bool,
        id: u64,
        mut descriptors: Descriptors,
    ) -> Result<Done, Refusal> {
        if was_running {
            vm.pause();
        }
        let handed = descriptors
            .take(Descriptor::Successor)
            .map_err(|error| failed(&error))
            .and_then(|successor| Ok((successor, vm.own_descriptors().map_err(|error| failed(&error))?)));
        let (successor, (devices, own)) = match handed {
            Ok(handed) => handed,
            Err(refusal) => {
                self.put_back(vm, was_running);
                return Err(refusal);
            }
        };
        let control = self.control.listener().into_iter();
        let descriptors: Vec<_> = control.chain(own.iter().map(AsFd::as_fd)).collect();
        let result = Ok(Reply::HandedOver { devices });
        self.control.send(&Message::Reply { id, result }, &descriptors);
        drop(descriptors);
        drop(own);

        if retry_on_intr(|| read(&successor, &mut [0u8; 1])) == Ok(1) {
            // The close tells the successor that this VM will not go on, before its memory is taken down.
            drop(successor);
            return Ok(Done::Over);
        }
        self.put_back(vm, was_running);
        self.control.say(Event::Kept);
        Ok(Done::Silent)
    }
}

/// Tells the predecessor to end, and returns when it will not go on.
pub(super) fn take_place(predecessor: &OwnedFd) {
    // A predecessor that is gone already is what is wanted, so nothing here can fail.
    let _ = retry_on_intr(|| write(predecessor, END));
    let _ = retry_on_intr(|| read(predecessor, &mut [0u8; 1]));
}
