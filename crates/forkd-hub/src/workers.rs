//! Threads for hashing and compression, beside the one thread that speaks with the network.
//!
//! Jobs borrow the caller's sources and sinks, which tokio's own blocking threads cannot.

use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;

use tokio::sync::oneshot;

type Job<'env> = Box<dyn FnOnce() + Send + 'env>;

pub(crate) struct Workers<'env> {
    jobs: mpsc::Sender<Job<'env>>,
}

/// Runs `body` with one thread for each CPU, and ends them afterwards.
pub(crate) fn with_workers<'env, T>(body: impl FnOnce(&Workers<'env>) -> T) -> T {
    let (jobs, queue) = mpsc::channel::<Job<'env>>();
    let queue = Mutex::new(queue);
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, NonZeroUsize::get) {
            scope.spawn(|| {
                loop {
                    // The lock is held while waiting, and not while working.
                    let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    match job {
                        Ok(job) => job(),
                        Err(mpsc::RecvError) => return,
                    }
                }
            });
        }
        let workers = Workers { jobs };
        body(&workers)
        // The sender goes with `workers`: what is queued is still done, then the threads end.
    })
}

impl<'env> Workers<'env> {
    /// Runs a job in one of the threads.
    pub async fn run<T: Send + 'env>(&self, job: impl FnOnce() -> T + Send + 'env) -> T {
        let (sender, receiver) = oneshot::channel();
        let job = move || {
            // The operation failed or was cancelled, and the result is not waited for.
            if !sender.is_closed() {
                let _ = sender.send(job());
            }
        };
        self.jobs.send(Box::new(job)).expect("the threads run as long as the pool does");
        receiver.await.expect("a job ends with its result, or its thread's panic ends the operation")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_borrow_and_return() {
        let data = [1_u64, 2, 3];
        let sum = with_workers(|workers| {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                let jobs = data.iter().map(|number| workers.run(move || number * 2));
                futures_util::future::join_all(jobs).await.into_iter().sum::<u64>()
            })
        });
        assert_eq!(sum, 12);
    }
}
