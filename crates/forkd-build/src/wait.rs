//! Waiting for guests, until the build is cancelled.

use std::time::Duration;

use forkd_image::Progress;
use tokio::runtime::Runtime;

/// How often the caller is asked whether it still wants the result.
const ASK: Duration = Duration::from_millis(50);

/// The build was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// Runs what is asynchronous for a caller who is not.
pub struct Wait<'a> {
    runtime: Runtime,
    progress: &'a dyn Progress,
}

impl std::fmt::Debug for Wait<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wait").finish_non_exhaustive()
    }
}

impl<'a> Wait<'a> {
    pub fn new(progress: &'a dyn Progress) -> std::io::Result<Wait<'a>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Wait { runtime, progress })
    }

    pub fn progress(&self) -> &'a dyn Progress {
        self.progress
    }

    /// Waits for something, unless the caller does not want it any more: then it is dropped.
    pub fn until<T>(&self, what: impl Future<Output = T>) -> Result<T, Interrupted> {
        self.runtime.block_on(async {
            tokio::select! {
                done = what => Ok(done),
                () = self.unwanted() => Err(Interrupted),
            }
        })
    }

    async fn unwanted(&self) {
        while !self.progress.is_cancelled() {
            tokio::time::sleep(ASK).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    struct Flag(AtomicBool);

    impl Progress for Flag {
        fn step(&self, _: &str) {}
        fn detail(&self, _: &str) {}
        fn warn(&self, _: &str) {}
        fn is_cancelled(&self) -> bool {
            self.0.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn what_nobody_wants_is_not_waited_for() {
        let flag = Flag(AtomicBool::new(false));
        let wait = Wait::new(&flag).unwrap();
        assert_eq!(wait.until(async { 7 }), Ok(7));
        std::thread::scope(|scope| {
            scope.spawn(|| flag.0.store(true, Ordering::Relaxed));
            assert_eq!(wait.until(std::future::pending::<()>()), Err(Interrupted));
        });
    }
}
