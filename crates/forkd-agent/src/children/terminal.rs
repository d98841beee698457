//! Pseudo-terminals: the agent has the master, the child the other side.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use rustix::buffer::spare_capacity;
use rustix::pty::{OpenptFlags, grantpt, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::io::unix::AsyncFd;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    pub columns: u16,
    pub rows: u16,
}

/// The master. Clones are the same terminal.
#[derive(Debug, Clone)]
pub struct Terminal(Arc<AsyncFd<OwnedFd>>);

/// Opens both sides. The child's side is owned by whoever opens it first, and /dev/pts gives it to the user of this process;
/// the caller changes the owner if the child is somebody else.
pub(super) fn open(size: Size) -> io::Result<(OwnedFd, OwnedFd)> {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    // By descriptor, not by path: the guest may have mounted anything over /dev/pts.
    let child = rustix::pty::ioctl_tiocgptpeer(
        &master,
        OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC,
    )?;
    tcsetwinsize(&child, window(size))?;
    Ok((master, child))
}

impl Terminal {
    pub(super) fn new(master: OwnedFd) -> io::Result<Self> {
        Ok(Self(Arc::new(crate::readiness::watch(master)?)))
    }

    pub(super) async fn read(&self, limit: usize) -> io::Result<Bytes> {
        loop {
            let mut ready = self.0.readable().await?;
            let mut buffer = Vec::with_capacity(limit);
            let read =
                ready.try_io(|master| Ok(rustix::io::read(master.get_ref(), spare_capacity(&mut buffer))?));
            match read {
                Ok(Ok(_)) => return Ok(buffer.into()),
                // What the kernel says when nobody has the other side open any more.
                Ok(Err(error)) if error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) => {
                    return Ok(Bytes::new());
                }
                Ok(Err(error)) => return Err(error),
                Err(_would_block) => {}
            }
        }
    }

    pub(super) async fn write(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let mut ready = self.0.writable().await?;
            match ready.try_io(|master| Ok(rustix::io::write(master.get_ref(), bytes)?)) {
                Ok(Ok(written)) => bytes = bytes.get(written..).unwrap_or_default(),
                Ok(Err(error)) => return Err(error),
                Err(_would_block) => {}
            }
        }
        Ok(())
    }

    pub fn resize(&self, size: Size) -> io::Result<()> {
        Ok(tcsetwinsize(self.0.get_ref(), window(size))?)
    }
}

fn window(size: Size) -> Winsize {
    Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 }
}
