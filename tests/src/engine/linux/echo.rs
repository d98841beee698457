//! Conversations with `guest-echo`, over whatever carries them.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;

use crate::engine::process::Failure;

/// What a conversation exchanges at a time: more than fits into one packet of any kind.
const ROUND: usize = 100_000;

/// Sends so many bytes and reads as many at the same time: they must be the same.
pub fn exchange<S>(stream: &S, length: usize) -> Result<(), Failure>
where
    S: Sync,
    for<'a> &'a S: Read + Write,
{
    let sent = bytes(length);
    let mut received = vec![0; length];
    std::thread::scope(|scope| -> io::Result<()> {
        let writer = scope.spawn(|| (&mut &*stream).write_all(&sent));
        let read = (&mut &*stream).read_exact(&mut received);
        let written = writer.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()));
        read.and(written)
    })?;
    match sent.iter().zip(&received).position(|(sent, received)| sent != received) {
        Some(at) => Err(format!("byte {at} of {length} comes back as another").into()),
        None => Ok(()),
    }
}

/// Bytes without a pattern that a shifted or repeated packet could hide in.
fn bytes(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.flatten().take(length).collect()
}

/// A connection that is never still: something goes there and back again all the time.
#[derive(Debug)]
pub struct Chatter<S> {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU32>,
    thread: JoinHandle<Result<S, Failure>>,
}

impl<S> Chatter<S>
where
    S: Send + Sync + 'static,
    for<'a> &'a S: Read + Write,
{
    pub fn start(stream: S) -> Chatter<S> {
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&rounds));
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::SeqCst) {
                exchange(&stream, ROUND)?;
                count.fetch_add(1, Ordering::SeqCst);
            }
            Ok(stream)
        });
        Chatter { stop, rounds, thread }
    }

    /// Waits until so many more rounds were made, or the conversation has broken off.
    pub fn wait_for(&self, rounds: u32) {
        let enough = self.rounds.load(Ordering::SeqCst) + rounds;
        while self.rounds.load(Ordering::SeqCst) < enough && !self.thread.is_finished() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    /// Ends the conversation; the connection is still open.
    pub fn stop(self) -> Result<S, Failure> {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().map_err(|_| "the conversation has panicked")?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn an_echo_is_told_from_something_else() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let echo = std::thread::spawn(move || {
            let mut buffer = [0; 100];
            for round in 0.. {
                let length = (&theirs).read(&mut buffer).unwrap();
                if length == 0 {
                    return;
                }
                buffer[0] ^= u8::from(round >= 200);
                (&theirs).write_all(&buffer[..length]).unwrap();
            }
        });
        exchange(&ours, 10_000).unwrap();
        assert!(exchange(&ours, 100_000).unwrap_err().to_string().contains("comes back as another"));
        drop(ours);
        echo.join().unwrap();
    }
}
