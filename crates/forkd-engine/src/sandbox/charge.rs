//! Charge: which cgroup pays for the memory of a sandbox and of its branches.
//!
//! ```text
//!   more memory is allowed ─▶ Branch: the VM pauses and resumes ─▶ next cgroup ─▶ move ─▶ record ─▶ the branch's limits
//! ```
//!
//! At a branch, every page of the sandbox becomes one of the branch, too, and the sandbox pays for a copy of each that it writes
//! to afterwards. The kernel never moves a charge. So the branch keeps the cgroup that its pages are charged to, and the sandbox
//! moves to a new one, with its limits. Copies that it makes before it has moved are charged to the old one, which is allowed
//! more for that long.
//!
//! A branch is promised only after the sandbox has moved. A daemon that finds one without a promise ends it; which cgroup a
//! process is in is read from the kernel.

use crate::engine::Shared;
use crate::error::EngineError;
use crate::fault;
use crate::limits::cgroup::Cgroups;
use crate::limits::quota::{next_of_sandbox, of_sandbox, zygote_quota};
use crate::limits::usage::{blocking, memory_of_process};
use crate::record::{SandboxRecord, ZygoteRecord};
use crate::sandbox::Sandbox;

impl Sandbox {
    /// Prepares the sandbox's cgroup to become a branch's. `None` if the sandbox is in none of its own.
    pub(crate) fn lend_cgroup(&self) -> Result<Option<String>, EngineError> {
        let lent = match (&self.shared.cgroups, &self.record.quota) {
            (Some(cgroups), Some(quota)) => match cgroups.name_of(self.process.pid) {
                Some(name) => {
                    // All of its memory may be written to before it has moved.
                    cgroups.raise_memory(&name, quota.memory_bytes.saturating_mul(2))?;
                    Some(name)
                }
                None => None,
            },
            _ => None,
        };
        fault::place("branch.lent");
        Ok(lent)
    }

    /// Leaves the cgroup to the branch that was made in it.
    pub(crate) async fn leave_cgroup(&mut self, lent: Option<&str>) -> Result<(), EngineError> {
        let next = next_of_sandbox(&self.record);
        let cgroups = self.shared.cgroups.clone().zip(lent.map(str::to_owned));
        if let (Some((cgroups, _)), Some(quota)) = (&cgroups, &self.record.quota) {
            cgroups.make(&next, quota)?;
        }
        fault::place("branch.next-cgroup");
        if let Some((cgroups, lent)) = cgroups.clone() {
            let (next, pid) = (next.clone(), self.process.pid);
            // The kernel may take some tens of milliseconds.
            let moved = blocking(move || Ok(cgroups.move_process(&lent, &next, pid)));
            let moved = moved.await.map_err(EngineError::io("move a process"))?;
            if let Err(error) = moved {
                self.shared.leave_later(next_of_sandbox(&self.record));
                return Err(error.into());
            }
        }
        fault::place("branch.moved");
        if let Some((cgroups, lent)) = &cgroups {
            moved_on(&mut self.record, cgroups, lent, next);
            self.save()?;
        }
        fault::place("branch.moved-written");
        if let Some((cgroups, lent)) = &cgroups {
            cgroups.set_limits_of_branch(lent, &zygote_quota(&self.record.shape))?;
        }
        fault::place("branch.limited");
        Ok(())
    }

    /// The branch has failed and its process has ended: its cgroup belongs to the sandbox as before, or is unused.
    pub(crate) fn take_cgroup_back(&self, lent: Option<String>) {
        let (Some(lent), Some(cgroups)) = (lent, &self.shared.cgroups) else { return };
        match &self.record.quota {
            Some(quota) if of_sandbox(&self.record) == lent => {
                // What cannot be set now is set by the next sweep.
                let _ = cgroups.set_limits(&lent, quota);
            }
            _ => self.shared.leave_later(lent),
        }
    }

    /// Ends what was allowed for the time of a branch. A daemon that died in a branch leaves that to the next.
    pub(crate) fn restore_limits(&self) {
        if let (Some(cgroups), Some(quota)) = (&self.shared.cgroups, &self.record.quota) {
            cgroups.restore_memory(&of_sandbox(&self.record), quota);
        }
    }

    /// What a branch of now would keep: the memory that only this sandbox has.
    pub(crate) async fn own_memory(&self) -> u64 {
        let pid = self.process.pid;
        let read = blocking(move || memory_of_process(pid)).await;
        // What cannot be measured may be all of it.
        read.map_or(self.record.shape.memory_bytes, |memory| memory.private_bytes)
    }
}

/// Writes down that a sandbox is in another cgroup, with the CPU time that it has used before.
fn moved_on(record: &mut SandboxRecord, cgroups: &Cgroups, from: &str, to: String) {
    record.cpu_us_before = record.cpu_us_before.saturating_add(cgroups.cpu_us(from).unwrap_or(0));
    record.cgroup = Some(to);
}

impl Shared {
    /// What a record says of the cgroup of a sandbox, put right: a daemon may have died between the move and the record.
    pub(crate) fn find_cgroup_of_sandbox(&self, record: &mut SandboxRecord, pid: i32) {
        let Some(cgroups) = &self.cgroups else { return };
        let written = of_sandbox(record);
        if let Some(found) = cgroups.name_of(pid).filter(|found| *found != written) {
            moved_on(record, cgroups, &written, found);
        }
    }

    /// The same for a zygote.
    pub(crate) fn find_cgroup_of_zygote(&self, record: &mut ZygoteRecord, pid: i32) {
        if let Some(found) = self.cgroups.as_ref().and_then(|cgroups| cgroups.name_of(pid)) {
            record.cgroup = Some(found);
        }
    }
}
