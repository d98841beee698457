//! A thread of a VM, which can be left behind by a fork.

use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle};

use super::stack::Stack;

const STACK_BYTES: usize = 256 << 10;

#[derive(Debug)]
pub struct Thread {
    handle: JoinHandle<()>,
    /// There before the thread does anything.
    stack: Arc<OnceLock<Stack>>,
}

impl Thread {
    pub fn start(name: String, work: impl FnOnce() + Send + 'static) -> std::io::Result<Thread> {
        let stack = Arc::new(OnceLock::new());
        let handle = Builder::new().name(name).stack_size(STACK_BYTES).spawn({
            let stack = Arc::clone(&stack);
            move || {
                if let Some(own) = Stack::of_this_thread() {
                    let _ = stack.set(own);
                }
                drop(stack);
                work();
            }
        })?;
        Ok(Thread { handle, stack })
    }

    /// Waits for its end. One that panicked has ended too.
    pub fn join(self) {
        let _ = self.handle.join();
    }

    /// Forgets a thread that does not exist in the forked process: it cannot be joined.
    pub fn forget(self) {
        std::mem::forget(self.handle);
        if let Some(stack) = Arc::into_inner(self.stack).and_then(OnceLock::into_inner) {
            stack.unmap_if_left_behind();
        }
    }
}
