//! Long background work of this process: at lower priority than guests until a request waits for it.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use rustix::process::Pid;
use rustix::thread::gettid;
use tokio::sync::oneshot;

use crate::priority::{self, Priority};

/// How far a thread stands back whose priority could not be taken back.
const NICE: i32 = 10;

#[derive(Debug, thiserror::Error)]
pub enum BackgroundError {
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    #[error("the thread panicked")]
    Panicked,
}

/// Work in a thread of its own: a thread of tokio's would keep the priority. It keeps running when dropped.
#[derive(Debug)]
pub(crate) struct Background<T> {
    worker: Arc<Mutex<Worker>>,
    result: oneshot::Receiver<T>,
}

/// Another thread may get the number of one that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Worker {
    New { in_a_hurry: bool },
    Runs(Pid),
    Over,
}

impl<T: Send + 'static> Background<T> {
    pub fn begin(work: impl FnOnce() -> T + Send + 'static) -> Result<Background<T>, BackgroundError> {
        let worker = Arc::new(Mutex::new(Worker::New { in_a_hurry: false }));
        let (done, result) = oneshot::channel();
        let its = Arc::clone(&worker);
        let run = move || {
            let _over = Over(Arc::clone(&its));
            begin_at(&its);
            // The requester may be gone.
            let _ = done.send(work());
        };
        thread::Builder::new().name("background".into()).spawn(run).map_err(BackgroundError::Thread)?;
        Ok(Background { worker, result })
    }

    /// A request waits for it.
    pub fn hurry(&self) {
        let mut worker = lock(&self.worker);
        match &mut *worker {
            Worker::New { in_a_hurry } => *in_a_hurry = true,
            // Held until it is done: the thread has not ended meanwhile.
            Worker::Runs(thread) => drop(priority::set(*thread, Priority::Usual)),
            Worker::Over => {}
        }
    }

    /// Waits for its end, and can be asked again after it was given up.
    pub async fn done(&mut self) -> Result<T, BackgroundError> {
        (&mut self.result).await.map_err(|_| BackgroundError::Panicked)
    }
}

/// Does work that stands back until `wanted`.
pub(crate) async fn behind<T: Send + 'static>(
    wanted: impl Future<Output = ()>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, BackgroundError> {
    let mut background = Background::begin(work)?;
    tokio::select! {
        biased;
        done = background.done() => return done,
        () = wanted => background.hurry(),
    }
    background.done().await
}

/// The thread, from here on until it ends.
fn begin_at(worker: &Mutex<Worker>) {
    let mut worker = lock(worker);
    let in_a_hurry = *worker == Worker::New { in_a_hurry: true };
    *worker = Worker::Runs(gettid());
    // Without it the work is only less polite. Threads that this one starts have it too.
    if in_a_hurry {
        return;
    }
    if priority::can_be_taken_back() {
        let _ = priority::set(gettid(), Priority::Least);
    } else {
        let _ = rustix::process::nice(NICE);
    }
}

struct Over(Arc<Mutex<Worker>>);

impl Drop for Over {
    fn drop(&mut self) {
        *lock(&self.0) = Worker::Over;
    }
}

fn lock(worker: &Mutex<Worker>) -> MutexGuard<'_, Worker> {
    // Nothing is done with the lock held that could panic half-way.
    worker.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::sync::mpsc;

    use crate::priority::testing::nice_of;

    /// Whether the calling thread does.
    fn stands_back() -> bool {
        nice_of(gettid().as_raw_nonzero().get()) >= NICE
    }

    #[tokio::test]
    async fn work_stands_back_until_somebody_waits_for_it() {
        let (go, gone) = mpsc::channel();
        let (said, says) = mpsc::channel();
        let work = move || {
            said.send(stands_back()).unwrap();
            gone.recv().unwrap();
            stands_back()
        };
        let mut background = Background::begin(work).unwrap();
        assert!(says.recv().unwrap());
        background.hurry();
        go.send(()).unwrap();
        assert_eq!(background.done().await.unwrap(), !priority::can_be_taken_back());
        // It has ended: no other process is touched.
        background.hurry();
    }

    #[tokio::test]
    async fn work_that_is_waited_for_does_not_stand_back_for_long() {
        assert_eq!(behind(std::future::pending(), || 7).await.unwrap(), 7);
        let (go, gone) = mpsc::channel();
        let wanted = async move { go.send(()).unwrap() };
        let stood_back = behind(wanted, move || {
            gone.recv().unwrap();
            // It is told to go on just after it is wanted.
            for _ in 0..100 {
                if !stands_back() {
                    return false;
                }
                thread::sleep(std::time::Duration::from_millis(10));
            }
            true
        });
        assert_eq!(stood_back.await.unwrap(), !priority::can_be_taken_back());
    }

    #[tokio::test]
    async fn a_panic_is_told() {
        let panicked = behind(std::future::pending(), || -> u32 { panic!("on purpose") }).await;
        assert!(matches!(panicked, Err(BackgroundError::Panicked)));
    }
}
