//! Eventfds in the type that kvm-ioctls takes, usable with everything else.

#![expect(unsafe_code, reason = "the type has no borrowed form of its descriptor")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use vmm_sys_util::eventfd::EventFd;

/// An eventfd whose reads and writes never wait.
pub fn new() -> io::Result<EventFd> {
    EventFd::new(libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)
}

/// Its descriptor.
pub fn as_fd(event: &EventFd) -> BorrowedFd<'_> {
    // SAFETY: the eventfd owns this descriptor and keeps it open at least as long as the borrow lasts.
    unsafe { BorrowedFd::borrow_raw(event.as_raw_fd()) }
}

/// A descriptor that another owner may have closed since: good only for a call that fails on a descriptor
/// that it does not know, such as removing it from epoll.
pub fn still_open(fd: RawFd) -> Option<BorrowedFd<'static>> {
    // SAFETY: not -1, the one value that a borrowed descriptor must not have. If the number has come to mean another file,
    // the kernel finds that epoll does not watch that file and refuses.
    (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
}
