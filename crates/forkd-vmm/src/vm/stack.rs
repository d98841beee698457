//! Stacks of threads that a fork has left behind.
//!
//! ```text
//!   ┌───────┬────────────────────────────┬────────────────────────┐
//!   │ guard │ frames                     │ TLS, glibc's descriptor│
//!   └───────┴────────────────────────────┴────────────────────────┘
//!            ╰──── unmapped ────────────╯ ╰ kept: glibc's list of threads leads through it
//! ```
//!
//! A forked process has a copy of the stacks of all threads, and only one of the threads. glibc's fork would use the others'
//! stacks again; it does not know of a clone3 that it did not make. Without this, each generation of branches would keep the
//! stacks of all before it, and a page more of each for every page that its parent touches.

#![expect(
    unsafe_code,
    reason = "glibc says where a stack is through pointers, and unmapping one is what its caller makes of it"
)]

use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;

/// Of every x86-64.
const PAGE: usize = 4096;

/// Where the frames of a thread are, and where it handles signals.
#[derive(Debug)]
pub struct Stack {
    frames: Range<usize>,
    signals: Range<usize>,
    /// The process that the thread runs in.
    process: rustix::process::Pid,
}

impl Stack {
    /// That of the calling thread. `None` if the C library does not tell.
    pub fn of_this_thread() -> Option<Stack> {
        let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
        let (mut bottom, mut size) = (ptr::null_mut(), 0);
        // SAFETY: it has no conditions.
        let descriptor = unsafe { libc::pthread_self() };
        // SAFETY: the thread is the calling one, so it is there; the attributes are written by the call.
        if unsafe { libc::pthread_getattr_np(descriptor, attributes.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: the attributes were initialised above, and both numbers are valid for writing.
        let found =
            unsafe { libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut bottom, &raw mut size) };
        // SAFETY: the attributes were initialised above, and are not used again.
        unsafe { libc::pthread_attr_destroy(attributes.as_mut_ptr()) };
        let bottom = bottom.addr();
        // What glibc identifies a thread by is the address of its descriptor, at the upper end of its stack.
        let top = usize::try_from(descriptor).ok()? & !(PAGE - 1);
        let is_above = top > bottom && top <= bottom.checked_add(size)?;
        let process = rustix::process::getpid();
        (found == 0 && is_above).then(|| Stack { frames: bottom..top, signals: signal_stack(), process })
    }

    /// Unmaps it if its thread has not come along when the process forked.
    pub fn unmap_if_left_behind(self) {
        let here = 0u8;
        let is_own = self.frames.contains(&(&raw const here).addr());
        if self.process == rustix::process::getpid() || is_own {
            return;
        }
        for range in [self.frames, self.signals] {
            // SAFETY: the thread started in another process, so this one is a copy made by a fork, in which only the thread
            // exists that forked; that is not this stack's, whose frames the calling one would be in. So nothing runs on
            // the range. No other thread refers to it: threads share what is in the heap only, and wait on futexes there.
            unsafe { libc::munmap(ptr::with_exposed_provenance_mut(range.start), range.len()) };
        }
    }
}

/// The stack that the standard library gives each thread to report an overflow on. Empty if it has no such stack.
fn signal_stack() -> Range<usize> {
    let mut stack = MaybeUninit::<libc::stack_t>::uninit();
    // SAFETY: nothing is set, and what is set is written to where there is room for it.
    if unsafe { libc::sigaltstack(ptr::null(), stack.as_mut_ptr()) } != 0 {
        return 0..0;
    }
    // SAFETY: the call has written it.
    let stack = unsafe { stack.assume_init() };
    match stack.ss_flags & libc::SS_DISABLE {
        0 => stack.ss_sp.addr()..stack.ss_sp.addr().saturating_add(stack.ss_size),
        _ => 0..0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_knows_its_stack_and_keeps_it() {
        let kept = std::thread::Builder::new().stack_size(256 << 10).spawn(|| {
            let stack = Stack::of_this_thread().expect("glibc tells");
            let here = 0u8;
            assert!(stack.frames.contains(&(&raw const here).addr()), "{stack:?}");
            assert!((128 << 10..=256 << 10).contains(&stack.frames.len()), "{stack:?}");
            let other = Stack {
                process: rustix::process::Pid::INIT,
                ..Stack::of_this_thread().expect("glibc tells")
            };
            // The first is of this process; the second is the one that this runs on.
            stack.unmap_if_left_behind();
            other.unmap_if_left_behind();
            here
        });
        assert_eq!(kept.unwrap().join().unwrap(), 0);
    }
}
