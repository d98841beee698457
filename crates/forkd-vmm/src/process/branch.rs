//! Freeze and Branch: a zygote of a VM, in its place or beside it.

use std::convert::Infallible;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::time::Instant;

use forkd_memory::Pagemap;
use forkd_proto::control::{Branch, Descriptor, Event, Refusal, RefusalCode, Reply, Stage};

use super::clone::Side;
use super::mending::Mending;
use super::{Done, Process, State, clone_with, failed, last_words};
use crate::vm::devices::Descriptors;
use crate::vm::live::{LiveVm, Saved};

impl Process {
    /// Takes the state of a VM and closes KVM. A VM whose state cannot be taken is left as it was.
    pub(super) fn freeze(&mut self, vm: LiveVm, was_running: bool) -> Result<Done, Refusal> {
        last_words::enter(Stage::Freeze);
        if was_running {
            vm.pause();
        }
        match vm.save(None, || Ok::<_, Infallible>(())) {
            Ok(Ok((saved, ()))) => {
                vm.take_notices().into_iter().for_each(|event| self.control.say(event));
                let disk_layers = saved.disk_layers.clone();
                self.mending = None;
                self.state = State::Zygote(saved.with(vm.end()));
                Ok(Done::Reply(Reply::Frozen { disk_layers }, Vec::new()))
            }
            Err(error) => {
                self.put_back(vm, was_running);
                Err(failed(&error))
            }
        }
    }

    /// Makes a zygote of a VM that goes on: pause, save and clone, resume. Whatever fails in between, the VM goes on.
    pub(super) fn branch(
        &mut self,
        vm: LiveVm,
        was_running: bool,
        request: &Branch,
        mut descriptors: Descriptors,
    ) -> Result<Done, Refusal> {
        forkd_proto::passes!();
        last_words::enter(Stage::Freeze);
        let paused_at = Instant::now();
        if was_running {
            vm.pause();
        }
        match save_and_clone(&vm, request, &mut descriptors) {
            Ok((saved, (control, Side::Child))) => {
                if self.adopt(control).is_err() {
                    return Ok(Done::Over);
                }
                (self.mending, self.pagemap) = (None, None);
                self.state = State::Zygote(saved.with(vm.forget()));
                self.control.say(Event::Zygote);
                Ok(Done::Silent)
            }
            Ok((saved, (_, Side::Parent { pid, pidfd }))) => {
                // Before the vCPUs are let go: they may run at once, and this thread only after them.
                let pause_us = u64::try_from(paused_at.elapsed().as_micros()).unwrap_or(u64::MAX);
                let ram = vm.ram.clone();
                self.put_back(vm, was_running);
                self.mending = self.own_pagemap().map(|pagemap| Mending::new(&ram, pagemap));
                let disk_layers = saved.disk_layers;
                Ok(Done::Reply(Reply::Branched { pid, pause_us, disk_layers }, vec![pidfd]))
            }
            Err(refusal) => {
                self.put_back(vm, was_running);
                Err(refusal)
            }
        }
    }

    /// A second descriptor of the pagemap, if somebody has given this process one. Without it branches take longer.
    pub(super) fn own_pagemap(&self) -> Option<Pagemap> {
        self.pagemap.as_ref()?.try_clone().ok().map(Pagemap::new)
    }

    /// The end of a pause.
    pub(super) fn put_back(&mut self, vm: LiveVm, was_running: bool) {
        self.state = if was_running {
            vm.run();
            State::Running(vm)
        } else {
            State::Paused(vm)
        };
    }
}

/// Takes the state of a paused VM that goes on, above new top layers of its disks, and forks the process.
fn save_and_clone(
    vm: &LiveVm,
    request: &Branch,
    descriptors: &mut Descriptors,
) -> Result<(Saved, (OwnedFd, Side)), Refusal> {
    let (found, expected) = (usize::from(request.disks), vm.disk_count());
    if found != expected {
        let message =
            format!("a VM with {expected} disks is branched with a new top layer for each, not with {found}");
        return Err(Refusal { code: RefusalCode::Malformed, message });
    }
    let take = |_| Ok(File::from(descriptors.take(Descriptor::DiskTop).map_err(|error| failed(&error))?));
    let tops = (0..request.disks).map(take).collect::<Result<_, Refusal>>()?;
    vm.save(Some(tops), || clone_with(descriptors, request.cgroup)).map_err(|error| failed(&error))?
}
