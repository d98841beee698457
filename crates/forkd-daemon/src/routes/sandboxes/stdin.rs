//! Stdin on its way from a client to its program, in order.
//!
//! The task that reads the client's messages must not wait for the program: signals come on the same connection. So what the
//! program has not taken is kept here, up to a window; a client that sends no more than the window is always listened to. One that
//! sends more is not read from until the program has taken some.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};
use forkd_api::exec::STDIN_WINDOW;
use tokio::sync::Notify;

/// What is written to the program at once, and reported as taken.
const PIECE: usize = 64 << 10;
/// At a terminal, the end of stdin is a key (Ctrl-D) that may be pressed any number of times.
const MOST_ENDS: usize = 64;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Typed {
    Bytes(Bytes),
    End,
}

/// What waits, and who waits for what. Each of the three tasks is the only one that waits for its notification.
#[derive(Debug, Default)]
pub(super) struct Stdin {
    state: Mutex<StdinState>,
    arrived: Notify,
    room: Notify,
    progress: Notify,
}

#[derive(Debug, Default)]
struct StdinState {
    waiting: VecDeque<Waiting>,
    /// Bytes that have arrived and are not taken: those that wait, and those that are being written.
    held: usize,
    ends: usize,
    /// Bytes that were taken, and are not reported.
    taken: u64,
    closed: bool,
}

#[derive(Debug)]
enum Waiting {
    Bytes(BytesMut),
    End,
}

impl Stdin {
    /// Waits until the client may be read from. One more message may arrive then, so at most the window and a message are kept.
    pub(super) async fn room(&self) {
        loop {
            {
                let state = self.lock();
                if state.held <= STDIN_WINDOW && state.ends < MOST_ENDS {
                    return;
                }
            }
            self.room.notified().await;
        }
    }

    /// Keys come in messages of a byte: they are put together, so that what is kept is not much more than the bytes.
    pub(super) fn push(&self, bytes: &[u8]) {
        {
            let mut state = self.lock();
            state.held += bytes.len();
            match state.waiting.back_mut() {
                Some(Waiting::Bytes(last)) => last.extend_from_slice(bytes),
                _ => state.waiting.push_back(Waiting::Bytes(bytes.into())),
            }
        }
        self.arrived.notify_one();
    }

    pub(super) fn end(&self) {
        {
            let mut state = self.lock();
            state.ends += 1;
            state.waiting.push_back(Waiting::End);
        }
        self.arrived.notify_one();
    }

    /// Nothing more will come.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.arrived.notify_one();
    }

    /// What the program reads next; `None` when nothing more will come.
    pub(super) async fn next(&self) -> Option<Typed> {
        loop {
            {
                let mut state = self.lock();
                match state.waiting.pop_front() {
                    Some(Waiting::End) => {
                        state.ends -= 1;
                        drop(state);
                        self.room.notify_one();
                        return Some(Typed::End);
                    }
                    Some(Waiting::Bytes(mut bytes)) => {
                        let piece = bytes.split_to(bytes.len().min(PIECE)).freeze();
                        if !bytes.is_empty() {
                            state.waiting.push_front(Waiting::Bytes(bytes));
                        }
                        return Some(Typed::Bytes(piece));
                    }
                    None if state.closed => return None,
                    None => {}
                }
            }
            self.arrived.notified().await;
        }
    }

    /// Bytes of the last piece were taken by the program, or will never be.
    pub(super) fn taken(&self, bytes: usize) {
        {
            let mut state = self.lock();
            state.held -= bytes;
            state.taken += bytes as u64;
        }
        self.room.notify_one();
        self.progress.notify_one();
    }

    /// Waits until bytes were taken that are not reported yet.
    pub(super) async fn progress(&self) -> u64 {
        loop {
            let taken = std::mem::take(&mut self.lock().taken);
            if taken > 0 {
                return taken;
            }
            self.progress.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, StdinState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn bytes_and_ends_stay_in_order() {
        let stdin = Stdin::default();
        let next = || stdin.next().now_or_never();
        assert_eq!(next(), None);
        stdin.push(b"a");
        stdin.push(b"b");
        stdin.end();
        stdin.push(b"");
        stdin.push(&[0; PIECE + 1]);
        stdin.close();
        assert_eq!(next(), Some(Some(Typed::Bytes("ab".into()))));
        assert_eq!(next(), Some(Some(Typed::End)));
        assert_eq!(next(), Some(Some(Typed::Bytes(Bytes::from(vec![0; PIECE])))));
        assert_eq!(next(), Some(Some(Typed::Bytes(Bytes::from_static(&[0])))));
        assert_eq!(next(), Some(None));
    }

    #[test]
    fn there_is_room_for_the_window_and_what_is_taken_is_reported_once() {
        let stdin = Stdin::default();
        let room = || stdin.room().now_or_never().is_some();
        stdin.push(&[0; STDIN_WINDOW]);
        assert!(room());
        stdin.push(&[0]);
        assert!(!room());
        assert_eq!(stdin.progress().now_or_never(), None);
        for _ in 0..2 {
            let Some(Some(Typed::Bytes(bytes))) = stdin.next().now_or_never() else { panic!("no bytes") };
            // What is being written is still held.
            assert_eq!(bytes.len(), PIECE);
            stdin.taken(bytes.len());
        }
        assert!(room());
        assert_eq!(stdin.progress().now_or_never(), Some(2 * PIECE as u64));
        assert_eq!(stdin.progress().now_or_never(), None);
    }

    #[test]
    fn ends_are_bounded() {
        let stdin = Stdin::default();
        (0..MOST_ENDS).for_each(|_| stdin.end());
        assert_eq!(stdin.room().now_or_never(), None);
        assert_eq!(stdin.next().now_or_never(), Some(Some(Typed::End)));
        assert_eq!(stdin.room().now_or_never(), Some(()));
    }
}
