//! Places where a test has this process end, as `kill -9` would end it: `FORKD_FAULT=PLACE`. Not in release builds.

/// All of them. Each is between two steps of which a daemon that dies there has taken only the first.
pub const PLACES: [&str; 26] = [
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
    "evict.ended",
    "remove.ended",
    "remove.files",
];

/// A place.
#[cfg(debug_assertions)]
pub(crate) fn place(name: &'static str) {
    debug_assert!(PLACES.contains(&name), "{name} is not listed");
    if std::env::var_os("FORKD_FAULT").is_some_and(|wanted| wanted == name) {
        // Not an abort, which would leave last words, and not an exit, which would clean up.
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}

#[cfg(not(debug_assertions))]
pub(crate) fn place(_: &'static str) {}
