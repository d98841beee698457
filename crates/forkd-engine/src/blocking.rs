//! File work in tasks: a disk, or the kernel's lock of all cgroups, may take long, and tokio's workers also answer every request
//! and every sandbox's DNS.

use tokio::runtime::{Handle, RuntimeFlavor};

/// Runs work that may wait for a file system. The worker's other tasks move to another thread meanwhile, which costs some
/// microseconds: work that belongs together is one call. A call within another costs nothing.
///
/// Not `spawn_blocking`: the work borrows from its task, and what a task does next must not begin before it, also when the
/// task is dropped.
pub(crate) fn in_place<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        // A runtime of one thread has no other to move tasks to.
        _ => work(),
    }
}
