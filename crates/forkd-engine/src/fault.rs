//! What tests have go wrong in this process. Not in release builds.
//!
//! - `FORKD_FAULT=PLACE`: it ends at a place, as `kill -9` would end it.
//! - `FORKD_FAULT_HANG=PLACE`: the thread that comes to a place waits there for 20 s, as for a slow disk.
//! - `FORKD_FAULT_READ=ERRNO:END`: records, manifests and directories whose paths end with END cannot be read.
//! - `FORKD_FAULT_SYNC=ERRNO:END`: directories whose paths end with END cannot be synced.

use std::io;
use std::path::Path;

/// All of them. Each is between two steps of which a daemon that dies there has taken only the first.
pub const PLACES: [&str; 41] = [
    "create.written",
    "create.forked",
    "create.running",
    "create.ready",
    "create.promised",
    "branch.lent",
    "branch.written",
    "branch.branched",
    "branch.settled",
    "branch.next-cgroup",
    "branch.moved",
    "branch.moved-written",
    "branch.limited",
    "branch.promised",
    "rollback.written",
    "rollback.handed-over",
    "rollback.forked",
    "rollback.succeeded",
    "rollback.settled",
    "persist.written",
    "persist.published",
    "load.started",
    "load.loaded",
    "prefault.ready",
    "prefault.kept",
    "change.written",
    "change.changed",
    "merge.created",
    "merge.merged",
    "merge.written",
    "merge.replaced",
    "evict.ended",
    "remove.ended",
    "remove.files",
    "arrive.small",
    "arrive.fetched",
    "arrive.layers",
    "arrive.received",
    "arrive.kept",
    "arrive.published",
    "undo.arrived",
];

/// A place.
#[cfg(debug_assertions)]
pub(crate) fn place(name: &'static str) {
    debug_assert!(PLACES.contains(&name), "{name} is not listed");
    if std::env::var_os("FORKD_FAULT").is_some_and(|wanted| wanted == name) {
        // Not an abort, which would leave last words, and not an exit, which would clean up.
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
    if std::env::var_os("FORKD_FAULT_HANG").is_some_and(|wanted| wanted == name) {
        std::thread::sleep(std::time::Duration::from_secs(20));
    }
}

#[cfg(not(debug_assertions))]
pub(crate) fn place(_: &'static str) {}

/// What reading a path fails with.
#[cfg(debug_assertions)]
pub(crate) fn read(path: &Path) -> io::Result<()> {
    fails("FORKD_FAULT_READ", path)
}

/// What syncing a directory fails with.
#[cfg(debug_assertions)]
pub(crate) fn sync(path: &Path) -> io::Result<()> {
    fails("FORKD_FAULT_SYNC", path)
}

#[cfg(debug_assertions)]
fn fails(variable: &str, path: &Path) -> io::Result<()> {
    let wanted = std::env::var(variable).unwrap_or_default();
    match wanted.split_once(':') {
        Some((errno, end)) if path.ends_with(end) => {
            Err(io::Error::from_raw_os_error(errno.parse().unwrap_or_default()))
        }
        _ => Ok(()),
    }
}

#[cfg(not(debug_assertions))]
pub(crate) fn read(_: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(not(debug_assertions))]
pub(crate) fn sync(_: &Path) -> io::Result<()> {
    Ok(())
}
