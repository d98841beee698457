//! Prefault and OwnPages: the pages that a zygote's children use first, as learned from one of them.

use std::sync::Arc;

use forkd_proto::control::{self, Refusal, RefusalCode, Reply};
use forkd_proto::page_runs::PageRuns;

use super::{Done, Process, ProcessState, failed};
use crate::vm::live::FrozenVm;
use crate::vm::prefault::Prefault;

impl Process {
    /// Keeps the list for all children that are forked from now on, and has the memory made that they share. One that is of another
    /// memory is refused, and what was told before stays.
    pub(super) fn expect(&mut self, mut frozen: FrozenVm, pages: control::Prefault) -> Result<Done, Refusal> {
        let told = Prefault::new(self.kvm.as_deref().ok(), &frozen.ram, pages);
        let told = told.map(|prefault| frozen.prefault = Arc::new(prefault));
        self.state = ProcessState::Zygote(frozen);
        told.map_err(|error| failed(&error))?;
        Ok(Done::Reply(Reply::Done, Vec::new()))
    }

    /// Copies and maps the first-used pages of a VM again after a branch. The guest keeps running during the copy, and is paused only
    /// while KVM maps them.
    pub(super) fn warm_again(&self) {
        let (ProcessState::Running(vm) | ProcessState::Paused(vm)) = &self.state else { return };
        vm.copy_ahead();
        if !vm.maps_ahead() {
            return;
        }
        let is_running = matches!(self.state, ProcessState::Running(_));
        if is_running {
            vm.pause();
        }
        vm.map_ahead();
        if is_running {
            vm.run();
        }
    }

    /// The pages that the VM has alone. A guest that runs meanwhile may get more.
    pub(super) fn own_pages(&self) -> Result<Done, Refusal> {
        let (ProcessState::Running(vm) | ProcessState::Paused(vm)) = &self.state else {
            return Ok(Done::Reply(Reply::OwnPages(PageRuns::default()), Vec::new()));
        };
        let Some(pagemap) = self.own_pagemap() else {
            let message = "the process has no page table to look at".into();
            return Err(Refusal { code: RefusalCode::State, message });
        };
        let own = vm.ram.own(&pagemap).map_err(|error| failed(&error))?;
        Ok(Done::Reply(Reply::OwnPages(PageRuns::first_of(own)), Vec::new()))
    }
}
