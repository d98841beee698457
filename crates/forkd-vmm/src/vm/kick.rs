//! Getting a vCPU's thread out of KVM_RUN from another thread.
//!
//! A signal ends KVM_RUN, but one that arrives just before it is lost. So the handler sets `immediate_exit`, which KVM looks
//! at first: whenever the signal comes, the next KVM_RUN returns at once.
//!
//! The signal is that of a timer, which can be for a thread of its own process only. So no VM process needs a call that sends
//! signals, and an attacker who has taken one over cannot end others that have the same user id.

#![expect(
    unsafe_code,
    reason = "a signal handler writes into the page that KVM shares with the vCPU's thread; no crate makes timers for threads"
)]

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::Once;
use std::{io, mem, ptr};

use kvm_bindings::kvm_run;
use kvm_ioctls::VcpuFd;
use libc::siginfo_t;
use vmm_sys_util::signal::{SIGRTMIN, register_signal_handler};

thread_local! {
    /// The page of the vCPU that this thread runs. Initialised by a constant: the handler must not allocate.
    static RUN_PAGE: Cell<*mut kvm_run> = const { Cell::new(ptr::null_mut()) };
}

/// The signal that kicks.
fn signal() -> c_int {
    SIGRTMIN()
}

/// Installs the handler, once a process.
pub fn install() {
    static INSTALLED: Once = Once::new();
    // It can only fail for a signal that does not exist.
    INSTALLED.call_once(|| {
        let _ = register_signal_handler(signal(), on_kick);
    });
}

extern "C" fn on_kick(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
    let page = RUN_PAGE.get();
    if !page.is_null() {
        // SAFETY: the pointer is not null only between `Kickable`'s construction and its drop on this same thread, and
        // during that time the vCPU and its page are there.
        let field = unsafe { &raw mut (*page).immediate_exit };
        // SAFETY: as above; the field is a byte that KVM and this thread read and write without a lock by design.
        unsafe { field.write_volatile(1) };
    }
}

/// Kicks one thread of this process. A process that is forked has none of its parent's: the kernel gives their numbers to others.
#[derive(Debug)]
pub struct Kicker {
    timer: c_int,
}

impl Kicker {
    /// One for the calling thread.
    pub fn of_this_thread() -> io::Result<Kicker> {
        // SAFETY: all zeros are a sigevent.
        let mut event: libc::sigevent = unsafe { mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = signal();
        event.sigev_notify_thread_id = rustix::thread::gettid().as_raw_nonzero().get();
        let mut timer: c_int = 0;
        // SAFETY: both pointers are to what lives longer than the call, and has the size that the kernel reads and writes.
        let result = unsafe {
            libc::syscall(libc::SYS_timer_create, libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer)
        };
        match result {
            0 => Ok(Kicker { timer }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// As soon as it can be. Nothing happens to a thread that has ended.
    pub fn kick(&self) {
        let now = libc::timespec { tv_sec: 0, tv_nsec: 1 };
        let once = libc::itimerspec { it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 }, it_value: now };
        let before: *mut libc::itimerspec = ptr::null_mut();
        // SAFETY: the pointer is to what lives longer than the call; where the old value goes may be null. It can only fail for
        // a timer that is not there.
        let _ = unsafe { libc::syscall(libc::SYS_timer_settime, self.timer, 0, &raw const once, before) };
    }

    /// Not on drop: that may happen in a process that never had it.
    pub fn remove(&self) {
        // SAFETY: no pointers.
        let _ = unsafe { libc::syscall(libc::SYS_timer_delete, self.timer) };
    }
}

/// While this lives, a kick of this thread ends the vCPU's run.
pub struct Kickable<'a> {
    vcpu: &'a mut VcpuFd,
}

impl<'a> Kickable<'a> {
    pub fn new(vcpu: &'a mut VcpuFd) -> Kickable<'a> {
        RUN_PAGE.set(ptr::from_mut(vcpu.get_kvm_run()));
        Kickable { vcpu }
    }

    pub fn vcpu(&mut self) -> &mut VcpuFd {
        self.vcpu
    }
}

impl Drop for Kickable<'_> {
    fn drop(&mut self) {
        RUN_PAGE.set(ptr::null_mut());
    }
}
