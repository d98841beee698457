//! The last events, numbered, for those who follow them and those who come back.
//!
//! One task writes. Each reader has the number of the next event that it wants, and waits for it; one that is too far behind, or
//! comes back too late, is told how many it has missed. A cursor is the log's own mark and the number of an event, so one from
//! another daemon is not taken for one of this.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use forkd_api::event::{Event, What};
use forkd_engine::project::Project;
use tokio::sync::watch;

/// Events that can be read again.
const KEPT: usize = 8192;

#[derive(Debug)]
pub struct EventLog {
    mark: String,
    kept: Mutex<Kept>,
    /// The number of the next event.
    next: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Kept {
    events: VecDeque<Arc<EventEntry>>,
    /// The number of the first of them.
    first: u64,
}

/// An event and its project. An event without a known project concerns all.
#[derive(Debug)]
pub struct EventEntry {
    pub project: Option<Project>,
    pub event: Event,
}

/// A place in a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position(u64);

/// A cursor that no log has made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotACursor;

impl Default for EventLog {
    fn default() -> EventLog {
        let mut mark = [0; 8];
        // Without random numbers, a cursor of another daemon may be taken for one of this, and some events be missed.
        let _ = getrandom::fill(&mut mark);
        EventLog { mark: hex::encode(mark), kept: Mutex::default(), next: watch::Sender::new(0) }
    }
}

impl EventLog {
    pub fn add(&self, project: Option<Project>, what: What) {
        let mut kept = self.lock();
        let number = kept.first + kept.events.len() as u64;
        let event = self.event(Position(number + 1), what);
        kept.events.push_back(Arc::new(EventEntry { project, event }));
        if kept.events.len() > KEPT {
            kept.events.pop_front();
            kept.first += 1;
        }
        drop(kept);
        self.next.send_replace(number + 1);
    }

    /// After everything that has happened.
    pub fn now(&self) -> Position {
        Position(*self.next.borrow())
    }

    /// Where a cursor leads. The beginning of this log for one of another.
    pub fn position(&self, cursor: &str) -> Result<Position, NotACursor> {
        let (mark, number) = cursor.split_once('-').ok_or(NotACursor)?;
        let number: u64 = number.parse().map_err(|_| NotACursor)?;
        match mark == self.mark {
            true if number <= *self.next.borrow() => Ok(Position(number)),
            true => Err(NotACursor),
            false if mark.len() == self.mark.len() && hex::decode(mark).is_ok() => Ok(Position(0)),
            false => Err(NotACursor),
        }
    }

    /// Whether this log has made a cursor.
    pub fn is_own(&self, cursor: &str) -> bool {
        cursor.strip_prefix(&self.mark).is_some_and(|rest| rest.starts_with('-'))
    }

    /// An event of this moment, behind which a position is.
    pub fn event(&self, position: Position, what: What) -> Event {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let at_unix_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        Event { at_unix_ms, cursor: format!("{}-{}", self.mark, position.0), what }
    }

    /// What is at a position; waits for it. How many events before it are not kept any more, if any.
    pub async fn next(&self, position: &mut Position) -> Result<Arc<EventEntry>, u64> {
        loop {
            {
                let kept = self.lock();
                if position.0 < kept.first {
                    let missed = kept.first - position.0;
                    position.0 = kept.first;
                    return Err(missed);
                }
                let index = usize::try_from(position.0 - kept.first).unwrap_or(usize::MAX);
                if let Some(entry) = kept.events.get(index) {
                    position.0 += 1;
                    return Ok(Arc::clone(entry));
                }
            }
            let wanted = position.0;
            // The sender lives as long as this.
            let _ = self.next.subscribe().wait_for(|next| *next > wanted).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn removed(number: usize) -> What {
        What::SandboxRemoved { id: number.to_string() }
    }

    #[tokio::test]
    async fn a_reader_comes_back_to_where_it_was_and_is_told_what_it_missed() {
        let log = EventLog::default();
        let mut reader = log.now();
        for number in 0..3 {
            log.add(None, removed(number));
        }
        let first = log.next(&mut reader).await.unwrap();
        assert_eq!(first.event.what, removed(0));
        let mut again = log.position(&first.event.cursor).unwrap();
        assert_eq!(log.next(&mut again).await.unwrap().event.what, removed(1));
        for number in 3..KEPT + 5 {
            log.add(None, removed(number));
        }
        // It had read one; five are gone.
        assert_eq!(log.next(&mut reader).await.unwrap_err(), 4);
        assert_eq!(log.next(&mut reader).await.unwrap().event.what, removed(5));
        let mut end = log.now();
        let waiting = log.next(&mut end);
        tokio::pin!(waiting);
        assert!(futures_util::poll!(&mut waiting).is_pending());
        log.add(None, removed(0));
        assert_eq!(waiting.await.unwrap().event.what, removed(0));
    }

    #[test]
    fn cursors_of_others_begin_anew_and_nonsense_is_refused() {
        let (log, other) = (EventLog::default(), EventLog::default());
        let cursor = other.event(other.now(), removed(1)).cursor;
        assert_eq!((log.position(&cursor), log.is_own(&cursor)), (Ok(Position(0)), false));
        assert!(other.is_own(&cursor));
        let future = format!("{}-7", log.mark);
        for wrong in ["", "7", "x-7", "0123456789abcdef-", &future] {
            assert_eq!(log.position(wrong), Err(NotACursor), "{wrong}");
        }
    }
}
