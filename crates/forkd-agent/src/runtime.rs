//! The one thread that serves, and the few that may block.
//!
//! A guest's agent is mostly asleep, and a child of a fork pays for every page it touches. So there is one thread, which sleeps
//! in epoll without a timeout when nothing is to be done. Calls that can block on a disk run on a small pool whose threads end
//! when they have had nothing to do for a moment.

use std::io;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::{Builder, Runtime};

/// Enough that a few long removals or listings leave room for everything short; a thread that works costs some 30 KiB.
const BLOCKING_THREADS: usize = 16;
const BLOCKING_IDLE: Duration = Duration::from_secs(2);
/// A process has three pipes: a thousand of them need more descriptors than Linux gives PID 1.
const DESCRIPTORS: u64 = 65_536;
/// What programs of the guest may ask for; the kernel's own upper limit.
const MOST_DESCRIPTORS: u64 = 1 << 20;

pub fn new() -> io::Result<Runtime> {
    Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_keep_alive(BLOCKING_IDLE)
        .build()
}

/// Runs something that may wait for a disk, off the thread that serves.
///
/// # Errors
///
/// When `work` panicked, which is a bug of ours that must not end the agent.
pub async fn blocking<T, F>(work: F) -> io::Result<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)
}

/// Lets this process open many files, and returns the limit for its children. They start with what this process had, because
/// programs that close every possible descriptor are slow under a large limit; but they may raise it.
pub fn raise_descriptor_limit() -> Rlimit {
    let before = getrlimit(Resource::Nofile);
    let maximum = before.maximum.map_or(MOST_DESCRIPTORS, |maximum| maximum.max(MOST_DESCRIPTORS));
    let wanted = Rlimit { current: Some(DESCRIPTORS), maximum: Some(maximum) };
    if setrlimit(Resource::Nofile, wanted).is_err() {
        // Not root: as many as there may be.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: before.maximum, maximum: before.maximum });
    }
    Rlimit { current: before.current, maximum: getrlimit(Resource::Nofile).maximum }
}
