//! The walls around a VM process. It builds them itself, before it has read a single byte that is not its own.
//!
//! ```text
//!   started by the daemon           opens /dev/kvm, /dev/null; has its control socket
//!      │ world    own mount, IPC, host name and network namespaces; an empty root that cannot be written
//!      │ limits   no core dumps, no locked memory
//!      │ rights   a user id of its own, no group, no capability, never more again, not dumpable
//!      │ paths    Landlock: no file, no port, no socket of others
//!      ▼ filter   seccomp: the calls that the process makes, and no others
//!   jailed: descriptors are all it has
//! ```
//!
//! | who | user id | capabilities | filter |
//! |---|---|---|---|
//! | a zygote that was loaded: no guest code ran in it | of the zygote | to change user and group id | [`Role::Trusted`] |
//! | a child of one | its own | none | [`Role::Control`], and one for each thread |
//! | a VM that was booted, what is branched off it, what is forked from that | of the first | none | the same |
//!
//! There is no pid namespace: when its first process ends, the kernel ends all others, and a zygote is ended as soon as it is
//! in the way. There is a user namespace only if the process is not started by root: the starter has no user ids to give away
//! then, and all of its VM processes have its own.

mod filter;
mod limits;
mod names;
mod paths;
mod program;
mod rights;
mod table;
mod world;

use std::io;

pub use filter::{enforce, role};
pub use names::of as call_name;
pub use rights::{become_user, drop_all};
pub use table::Role;

/// The user id of a process that was given none. It is the first of those that the daemon gives away by default.
pub const DEFAULT_UID: u32 = 2_000_000_000;

/// A wall that could not be built. A process without one of them does nothing for anybody.
#[derive(Debug, thiserror::Error)]
#[error("cannot sandbox the VM process: {step}")]
pub struct JailError {
    pub step: &'static str,
    pub source: io::Error,
}

/// Names the step that failed.
fn failed<E: Into<io::Error>>(step: &'static str) -> impl Fn(E) -> JailError {
    move |source| JailError { step, source: source.into() }
}

/// What a process is jailed with.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// The user and group id that it has from then on. The starter of the process must be root.
    pub uid: Option<u32>,
    /// The most bytes of a file that it writes.
    pub file_bytes: Option<u64>,
    /// Whether system calls are filtered. A test of the other walls has to do without.
    pub filtered: bool,
}

/// Jails the calling process, which has one thread. What it has open stays open.
pub fn enter(plan: Plan) -> Result<(), JailError> {
    let standing = rights::Standing::find(plan.uid)?;
    filter::prepare(plan.filtered)?;
    world::leave(&standing)?;
    limits::set(plan.file_bytes)?;
    rights::give_up(&standing)?;
    first_threads()?;
    paths::forbid()?;
    filter::enforce(Role::Trusted)
}

/// With the first thread of a process, glibc installs signal handlers of its own. Filters do not allow that, so it is made
/// here, and ends at once. A second one gets its stack: what glibc looks up in its libraries for that is known from then on, in
/// every child.
fn first_threads() -> Result<(), JailError> {
    for _ in 0..2 {
        let thread = std::thread::Builder::new().spawn(|| {}).map_err(failed("a thread"))?;
        // It does nothing that could fail.
        let _ = thread.join();
    }
    Ok(())
}
