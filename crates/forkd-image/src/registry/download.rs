//! Where a download goes: a writer that knows how much is to come and that can be told to stop.

use std::io::{self, Write};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::AsyncWrite;

use crate::progress::Progress;

/// Bytes between two reports.
const REPORT: u64 = 1 << 20;

/// Writes to a blocking writer. A disk does not keep a download waiting for long, and nothing else runs meanwhile.
pub(super) struct Sink<'a, W> {
    to: &'a mut W,
    size: u64,
    written: u64,
    progress: &'a dyn Progress,
}

impl<'a, W: Write> Sink<'a, W> {
    pub fn new(to: &'a mut W, size: u64, progress: &'a dyn Progress) -> Sink<'a, W> {
        Sink { to, size, written: 0, progress }
    }

    fn take(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.progress.is_cancelled() {
            // Not `Interrupted`, which writers try again for ever.
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        if bytes.len() as u64 > self.size - self.written {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                "the blob is larger than its manifest says",
            ));
        }
        let count = self.to.write(bytes)?;
        let before = self.written / REPORT;
        self.written += count as u64;
        if self.written / REPORT != before {
            self.progress.detail(&format!("{} of {} MiB", self.written >> 20, self.size.div_ceil(1 << 20)));
        }
        Ok(count)
    }
}

impl<W: Write> AsyncWrite for Sink<'_, W> {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(self.get_mut().take(bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.get_mut().to.flush())
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Silent;

    #[test]
    fn more_than_was_said_is_refused() {
        let mut to = Vec::new();
        let mut sink = Sink::new(&mut to, 5, &Silent);
        assert_eq!(sink.take(b"abc").unwrap(), 3);
        assert_eq!(sink.take(b"def").unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(sink.take(b"de").unwrap(), 2);
        assert_eq!(to, b"abcde");
    }
}
