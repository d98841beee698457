//! Getting a vCPU's thread out of KVM_RUN from another thread.
//!
//! A signal ends KVM_RUN, but one that arrives just before it is lost. So the handler sets `immediate_exit`, which KVM looks
//! at first: whenever the signal comes, the next KVM_RUN returns at once.

#![expect(
    unsafe_code,
    reason = "a signal handler writes into the page that KVM shares with the vCPU's thread"
)]

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Once;

use kvm_bindings::kvm_run;
use kvm_ioctls::VcpuFd;
use libc::siginfo_t;
use vmm_sys_util::signal::{SIGRTMIN, register_signal_handler};

thread_local! {
    /// The page of the vCPU that this thread runs. Initialised by a constant: the handler must not allocate.
    static RUN_PAGE: Cell<*mut kvm_run> = const { Cell::new(ptr::null_mut()) };
}

/// The signal that kicks.
pub fn signal() -> c_int {
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
