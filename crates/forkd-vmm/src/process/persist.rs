//! Persist: a snapshot of a zygote, written by a process that is forked for it.

use forkd_proto::control::{Event, Persist, Refusal, Reply, Stage};

use super::clone::Side;
use super::{Done, Process, State, clone_with, last_words};
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
        let cloned = clone_with(&mut descriptors, request.cgroup);
        if let Ok((control, Side::Child)) = cloned {
            if self.adopt(control).is_err() {
                return Ok(Done::Over);
            }
            last_words::enter(Stage::Persist);
            // Without it the writing is only less polite.
            let _ = rustix::process::nice(NICE);
            let control = &self.control;
            match persist(&frozen, request, &mut descriptors, || !control.is_abandoned()) {
                Ok(persisted) => self.control.say(Event::Persisted(persisted)),
                Err(error) => self.say_failed(Stage::Persist, &error),
            }
            return Ok(Done::Over);
        }
        self.state = State::Zygote(frozen);
        match cloned? {
            (_, Side::Parent { pid, pidfd }) => Ok(Done::Reply(Reply::Forked { pid }, vec![pidfd])),
            (_, Side::Child) => Ok(Done::Over),
        }
    }
}
