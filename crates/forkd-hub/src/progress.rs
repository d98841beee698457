//! How far a transfer is, and whether it is still wanted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How often the caller is asked while nothing else happens.
const ASK: Duration = Duration::from_millis(100);

/// The caller's side of a transfer. Called from several threads.
pub trait Progress: Sync {
    /// Raw bytes that the operation is about. Called once, before the first byte; not called if the total is unknown.
    fn total(&self, bytes: u64) {
        let _ = bytes;
    }
    /// Raw bytes that are done so far. It never decreases.
    fn done(&self, bytes: u64) {
        let _ = bytes;
    }
    /// Whether the operation should end. It is asked at least ten times a second.
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Reports nothing and never cancels.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {}

/// Adds up what the parts of an operation have done.
pub(crate) struct Tracker<'a> {
    progress: &'a dyn Progress,
    done: AtomicU64,
}

impl<'a> Tracker<'a> {
    pub fn new(progress: &'a dyn Progress, total: u64) -> Tracker<'a> {
        progress.total(total);
        Tracker::without_total(progress)
    }

    /// For an operation whose total is unknown.
    pub fn without_total(progress: &'a dyn Progress) -> Tracker<'a> {
        Tracker { progress, done: AtomicU64::new(0) }
    }

    pub fn advance(&self, bytes: u64) {
        if bytes > 0 {
            self.progress.done(self.done.fetch_add(bytes, Ordering::Relaxed) + bytes);
        }
    }

    pub fn is_cancelled(&self) -> bool {
        self.progress.is_cancelled()
    }
}

/// Returns as soon as the caller no longer wants the operation.
pub(crate) async fn cancelled(progress: &dyn Progress) {
    while !progress.is_cancelled() {
        tokio::time::sleep(ASK).await;
    }
}
