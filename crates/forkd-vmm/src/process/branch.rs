//! Freeze and Branch: a zygote of a VM, in its place or beside it.

use std::fs::File;
use std::time::Instant;

use forkd_devices::disk::NewTop;
use forkd_memory::Pagemap;
use forkd_proto::control::{Branch, Descriptor, Event, Refusal, RefusalCode, Reply, Stage};

use super::clone::Side;
use super::mending::Mending;
use super::{Done, Process, ProcessState, clone_with, failed, last_words};
use crate::vm::devices::Descriptors;
use crate::vm::live::{FrozenVm, LiveVm};

impl Process {
    /// Takes the state of a VM and closes KVM. A VM whose state cannot be taken is left as it was.
    pub(super) fn freeze(&mut self, vm: LiveVm, was_running: bool) -> Result<Done, Refusal> {
        last_words::enter(Stage::Freeze);
        if was_running {
            vm.pause();
        }
        let saved = vm.prepare_tops(None).and_then(|tops| {
            let state = vm.save()?;
            let disk_layers = vm.freeze_disks(tops);
            Ok((state, vm.save_devices()?, disk_layers))
        });
        match saved {
            Ok((state, devices, disk_layers)) => {
                vm.take_notices().into_iter().for_each(|event| self.control.say(event));
                self.mending = None;
                self.state = ProcessState::Zygote(FrozenVm::new(vm.end(), state, devices));
                Ok(Done::Reply(Reply::Frozen { disk_layers }, Vec::new()))
            }
            Err(error) => {
                self.put_back(vm, was_running);
                Err(failed(&error))
            }
        }
    }

    /// Makes a zygote of a VM that keeps running: pause, save and clone, resume. If a step fails, the VM keeps running.
    pub(super) fn branch(
        &mut self,
        vm: LiveVm,
        was_running: bool,
        request: &Branch,
        mut descriptors: Descriptors,
    ) -> Result<Done, Refusal> {
        forkd_proto::passes!();
        // All that can be done while the VM runs.
        let tops = match take_tops(&vm, request, &mut descriptors) {
            Ok(tops) => tops,
            Err(refusal) => {
                self.put_back(vm, was_running);
                return Err(refusal);
            }
        };
        let ram = vm.ram.clone();
        last_words::enter(Stage::Freeze);
        let paused_at = Instant::now();
        if was_running {
            vm.pause();
        }
        let saved = vm.save().map_err(|error| failed(&error));
        match saved.and_then(|state| Ok((state, clone_with(&mut descriptors, request.cgroup)?))) {
            Ok((state, (control, Side::Child))) => {
                if self.adopt(control).is_err() {
                    return Ok(Done::Over);
                }
                (self.mending, self.pagemap, self.cold) = (None, None, false);
                vm.freeze_disks(tops);
                match vm.save_devices() {
                    Ok(devices) => {
                        let prefault = vm.prefault();
                        let frozen = FrozenVm::new(vm.forget(), state, devices);
                        self.state = ProcessState::Zygote(FrozenVm { prefault, ..frozen });
                    }
                    Err(error) => {
                        self.say_failed(Stage::Freeze, &error);
                        return Ok(Done::Over);
                    }
                }
                self.control.say(Event::Zygote);
                Ok(Done::Silent)
            }
            Ok((_, (_, Side::Parent { pid, pidfd }))) => {
                let disk_layers = vm.freeze_disks(tops);
                // Before the vCPUs are let go: they may run at once, and this thread only after them.
                let pause_us = u64::try_from(paused_at.elapsed().as_micros()).unwrap_or(u64::MAX);
                self.cold = !vm.prefault().is_empty();
                self.put_back(vm, was_running);
                self.mending = self.own_pagemap().map(|pagemap| Mending::new(&ram, pagemap));
                Ok(Done::Reply(Reply::Branched { pid, pause_us, disk_layers }, vec![pidfd]))
            }
            Err(refusal) => {
                self.put_back(vm, was_running);
                Err(refusal)
            }
        }
    }

    /// A second descriptor of the pagemap, if this process was given one. Without it branches take longer.
    pub(super) fn own_pagemap(&self) -> Option<Pagemap> {
        self.pagemap.as_ref()?.try_clone().ok().map(Pagemap::new)
    }

    /// The end of a pause.
    pub(super) fn put_back(&mut self, vm: LiveVm, was_running: bool) {
        self.state = if was_running {
            vm.run();
            ProcessState::Running(vm)
        } else {
            ProcessState::Paused(vm)
        };
    }
}

/// The new top layers that come with a request, ready to be put above what the VM has written.
fn take_tops(vm: &LiveVm, request: &Branch, descriptors: &mut Descriptors) -> Result<Vec<NewTop>, Refusal> {
    let (found, expected) = (usize::from(request.disks), vm.disk_count());
    if found != expected {
        let message = format!("{found} new top layers for a VM with {expected} disks, expected one for each");
        return Err(Refusal { code: RefusalCode::Malformed, message });
    }
    let take = |_| Ok(File::from(descriptors.take(Descriptor::DiskTop).map_err(|error| failed(&error))?));
    let tops = (0..request.disks).map(take).collect::<Result<_, Refusal>>()?;
    vm.prepare_tops(Some(tops)).map_err(|error| failed(&error))
}
