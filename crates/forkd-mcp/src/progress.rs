//! How far a call is, for clients that gave a progress token.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::{Peer, RoleServer};
use tokio::time::{Instant, MissedTickBehavior, interval};

/// How often a client hears that something goes on. Some give up after a minute without a word.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// The shortest time between two lines of output.
const BETWEEN_LINES: Duration = Duration::from_millis(500);
/// The longest line that is shown.
const MAX_LINE: usize = 200;

#[derive(Debug)]
pub(crate) struct Progress {
    to: Option<(Peer<RoleServer>, ProgressToken)>,
    /// It has to grow with every notification.
    count: AtomicU32,
    output: Mutex<OutputLines>,
}

/// What of the output has been told.
#[derive(Debug, Default)]
struct OutputLines {
    told: Option<Instant>,
    /// A line that came too soon after another. The next heartbeat has it.
    waiting: Option<String>,
}

impl OutputLines {
    /// The line to tell now, if the output has one and its time has come.
    fn add(&mut self, piece: &[u8], now: Instant) -> Option<String> {
        let line = last_line(piece)?;
        if self.told.is_some_and(|told| now.saturating_duration_since(told) < BETWEEN_LINES) {
            self.waiting = Some(line);
            return None;
        }
        (self.told, self.waiting) = (Some(now), None);
        Some(line)
    }
}

fn last_line(output: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(output);
    let line = text.lines().map(str::trim).rfind(|line| !line.is_empty())?;
    Some(line.chars().filter(|character| !character.is_control()).take(MAX_LINE).collect())
}

impl Progress {
    pub(crate) fn new(peer: Peer<RoleServer>, token: Option<ProgressToken>) -> Progress {
        Progress { to: token.map(|token| (peer, token)), count: AtomicU32::new(0), output: Mutex::default() }
    }

    #[cfg(test)]
    pub(crate) fn unheard() -> Progress {
        Progress { to: None, count: AtomicU32::new(0), output: Mutex::default() }
    }

    /// Says what is done now.
    pub(crate) async fn say(&self, message: &str) {
        let Some((peer, token)) = &self.to else { return };
        let count = self.count.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        let mut told = ProgressNotificationParam::new(token.clone(), f64::from(count));
        told.message = Some(message.chars().take(MAX_LINE).collect());
        // A client that is gone is noticed elsewhere.
        let _ = peer.notify_progress(told).await;
    }

    /// Tells the last line of new output, unless one was told just now.
    pub(crate) async fn output(&self, piece: &[u8]) {
        if self.to.is_none() {
            return;
        }
        let line = self.lock().add(piece, Instant::now());
        if let Some(line) = line {
            self.say(&line).await;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, OutputLines> {
        // Nothing is half done when a thread panics.
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says every few seconds that something still runs, with the last line of its output if that was not told.
    pub(crate) async fn during<T>(&self, what: &str, work: impl Future<Output = T>) -> T {
        if self.to.is_none() {
            return work.await;
        }
        let begun = Instant::now();
        let mut ticks = interval(HEARTBEAT);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return done,
                _ = ticks.tick() => {
                    let waiting = self.lock().waiting.take();
                    let line = waiting.map(|line| format!(": {line}")).unwrap_or_default();
                    self.say(&format!("{what}: {} s{line}", begun.elapsed().as_secs())).await;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_that_says_something_is_told() {
        assert_eq!(last_line(b"one\n two\x1b[0m\n\n"), Some("two[0m".into()));
        assert_eq!(last_line(b"\n"), None);
        assert_eq!(last_line(&[b'x'; 1000]).map(|line| line.len()), Some(MAX_LINE));
    }

    #[test]
    fn lines_are_told_at_intervals_and_the_newest_waits() {
        let (mut output, begun) = (OutputLines::default(), Instant::now());
        assert_eq!(output.add(b"one\n", begun), Some("one".into()));
        assert_eq!(output.add(b"two\n", begun), None);
        assert_eq!(output.add(b"three\n", begun + BETWEEN_LINES / 2), None);
        assert_eq!(output.waiting.as_deref(), Some("three"));
        assert_eq!(output.add(b"\n", begun + BETWEEN_LINES), None);
        assert_eq!(output.add(b"four\n", begun + BETWEEN_LINES), Some("four".into()));
        assert_eq!(output.waiting, None);
    }
}
