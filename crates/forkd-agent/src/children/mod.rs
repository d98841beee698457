//! The one owner of all child processes.
//!
//! PID 1 inherits every orphan of the guest, so it must wait for *any* child, which also takes the exit of children that other
//! code waits for. Hence no other code in this program may wait: not `std::process::Child`, not tokio's.
//!
//! ```text
//!  spawn ── lock ──▶ fork, exec, enter pid ──▶ unlock ──▶ Child { pid, pipes, exit }
//!                                                                            ▲
//!  SIGCHLD ── lock ──▶ wait for any: known pid? leave the table, publish ────┘
//!                                    orphan?    forgotten
//! ```
//!
//! Both sides hold the same lock. So a child that dies at once is still entered before it is waited for, and a process is only
//! signalled while it is in the table: until it has been waited for, its number cannot belong to anybody else.

mod exec;
mod exit;
mod pipes;
mod programs;
mod reaper;
mod signal;
mod spawn;
mod spec;
mod terminal;
#[cfg(test)]
pub use programs::tests::imitation;
#[cfg(test)]
pub mod tests;

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use forkd_envd::Exit;
use tokio::sync::{Mutex, watch};

pub use exit::ExitWatch;
pub use pipes::{Input, Output};
pub use programs::ROOT as CGROUPS;
pub use signal::Signal;
pub use spawn::{Child, SpawnError};
pub use spec::{Source, Spec, Stdio, Target};
pub use terminal::Terminal;

type Table = HashMap<u32, watch::Sender<Option<Exit>>>;

/// A handle; its clones are the same children.
#[derive(Debug, Clone)]
pub struct Children {
    table: Arc<Mutex<Table>>,
    /// The limit of open files for children.
    descriptors: rustix::process::Rlimit,
    programs: Arc<programs::Programs>,
}

impl Children {
    /// Starts reaping on the current runtime. Once in a process.
    pub fn start() -> io::Result<Self> {
        let descriptors = crate::runtime::raise_descriptor_limit();
        let children = Self { table: Arc::default(), descriptors, programs: Arc::default() };
        reaper::start(Arc::clone(&children.table))?;
        Ok(children)
    }

    /// The same children, whose programs from now on run in a cgroup below this one, and can be frozen.
    pub fn below(self, cgroup: &Path) -> Self {
        Self { programs: Arc::new(programs::Programs::below(cgroup)), ..self }
    }
}
