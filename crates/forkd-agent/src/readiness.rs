//! Waiting for descriptors that tokio has no type for: terminals, inotify.
#![expect(unsafe_code, reason = "tokio asks its caller to promise that a descriptor stays open")]

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use tokio::io::unix::AsyncFd;

/// Makes the descriptor non-blocking and enters it into the runtime's poll set.
pub fn watch(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    fcntl_setfl(&descriptor, fcntl_getfl(&descriptor)? | OFlags::NONBLOCK)?;
    // SAFETY: an `OwnedFd` is open until it is dropped and always names the same descriptor, and it moves into the result.
    let registered = unsafe { AsyncFd::register(descriptor) };
    registered.map_err(|refused| refused.into_parts().1)
}
