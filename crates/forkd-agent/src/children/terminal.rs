//! Pseudo-terminals: the agent has the master, the child the other side.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use forkd_envd::process::TerminalSize;
use rustix::buffer::spare_capacity;
use rustix::pty::{OpenptFlags, grantpt, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::io::unix::AsyncFd;

/// The master. Clones are the same terminal.
#[derive(Debug, Clone)]
pub struct Terminal(Arc<AsyncFd<OwnedFd>>);

/// Opens both sides. The child's side is owned by its first opener, and /dev/pts gives it to the user of this process;
/// the caller changes the owner if the child is another user's.
pub(super) fn open(size: TerminalSize) -> io::Result<(OwnedFd, OwnedFd)> {
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
            let is_hung_up = ready.ready().is_read_closed();
            let mut buffer = Vec::with_capacity(limit);
            let read =
                ready.try_io(|master| Ok(rustix::io::read(master.get_ref(), spare_capacity(&mut buffer))?));
            match read {
                Ok(Ok(_)) => return Ok(buffer.into()),
                // The kernel's error when no process has the other side open any more.
                Ok(Err(error)) if error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) => {
                    return Ok(Bytes::new());
                }
                Ok(Err(error)) => return Err(error),
                // Another process has opened the other side again; the child's output has ended all the same.
                Err(_would_block) if is_hung_up => return Ok(Bytes::new()),
                Err(_would_block) => {}
            }
        }
    }

    pub(super) async fn write(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let mut ready = self.0.writable().await?;
            let is_hung_up = ready.ready().is_write_closed();
            match ready.try_io(|master| Ok(rustix::io::write(master.get_ref(), bytes)?)) {
                Ok(Ok(written)) => bytes = bytes.get(written..).unwrap_or_default(),
                Ok(Err(error)) => return Err(error),
                // No process has the other side open, and its buffer is full. The kernel still reports the master as writable, and
                // tokio never forgets a hang-up: waiting again would be a loop that holds up the whole agent.
                Err(_would_block) if is_hung_up => {
                    return Err(io::ErrorKind::BrokenPipe.into());
                }
                Err(_would_block) => {}
            }
        }
        Ok(())
    }

    pub fn resize(&self, size: TerminalSize) -> io::Result<()> {
        Ok(tcsetwinsize(self.0.get_ref(), window(size))?)
    }
}

fn window(size: TerminalSize) -> Winsize {
    Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};

    use super::*;

    /// Without an answer, the thread that waits for it runs in circles.
    #[test]
    fn who_writes_to_a_terminal_that_is_hung_up_is_told() {
        let (told, answer) = mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            told.send(runtime.block_on(async {
                let (master, child) = open(TerminalSize { columns: 80, rows: 24 }).unwrap();
                let mut raw = tcgetattr(&child).unwrap();
                raw.make_raw();
                tcsetattr(&child, OptionalActions::Now, &raw).unwrap();
                let terminal = Terminal::new(master).unwrap();
                let much = vec![b'x'; 1 << 20];
                let full = tokio::time::timeout(Duration::from_millis(50), terminal.write(&much)).await;
                assert!(full.is_err(), "{full:?}");
                drop(child);
                terminal.write(&much).await
            }))
        });
        let written = answer.recv_timeout(Duration::from_secs(30)).unwrap();
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
