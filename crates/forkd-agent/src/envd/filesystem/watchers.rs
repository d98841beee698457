//! Watchers that are polled: events are kept until they are asked for.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forkd_envd::connect::{Code, ConnectError};
use forkd_envd::filesystem::Event;
use tokio::task::AbortHandle;

use super::watch::Watch;

const MAX_WATCHERS: usize = 256;
/// Of each watcher. What does not fit is lost, and the next poll says so.
const MAX_EVENTS: usize = 10_000;

#[derive(Debug, Default)]
pub struct Watchers(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    last: u64,
    watchers: HashMap<String, Watcher>,
}

#[derive(Debug)]
struct Watcher {
    kept: Arc<Mutex<Kept>>,
    task: AbortHandle,
}

#[derive(Debug, Default)]
struct Kept {
    events: VecDeque<Event>,
    lost: Option<ConnectError>,
}

impl Watchers {
    /// Keeps the events of a watch, under a name that is given back.
    pub fn insert(&self, watch: Watch) -> Result<String, ConnectError> {
        let mut inner = self.lock();
        if inner.watchers.len() >= MAX_WATCHERS {
            let text = format!("there are {MAX_WATCHERS} watchers already; remove one");
            return Err(ConnectError::new(Code::ResourceExhausted, text));
        }
        inner.last += 1;
        let name = format!("watcher{}", inner.last);
        let kept = Arc::<Mutex<Kept>>::default();
        let task = tokio::spawn(keep(watch, Arc::clone(&kept))).abort_handle();
        inner.watchers.insert(name.clone(), Watcher { kept, task });
        Ok(name)
    }

    /// Takes what has been kept.
    pub fn drain(&self, name: &str) -> Result<Vec<Event>, ConnectError> {
        let inner = self.lock();
        let watcher = inner.watchers.get(name).ok_or_else(|| missing(name))?;
        let mut kept = watcher.kept.lock().unwrap_or_else(PoisonError::into_inner);
        match kept.lost.take() {
            Some(error) => {
                kept.events.clear();
                Err(error)
            }
            None => Ok(std::mem::take(&mut kept.events).into()),
        }
    }

    pub fn remove(&self, name: &str) -> Result<(), ConnectError> {
        let watcher = self.lock().watchers.remove(name).ok_or_else(|| missing(name))?;
        watcher.task.abort();
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn missing(name: &str) -> ConnectError {
    ConnectError::not_found(format!("watcher with id {name} not found"))
}

async fn keep(mut watch: Watch, kept: Arc<Mutex<Kept>>) {
    loop {
        let next = watch.next().await;
        let failed = next.as_ref().is_err_and(|error| error.code != Code::DataLoss);
        kept.lock().unwrap_or_else(PoisonError::into_inner).add(next);
        if failed {
            return;
        }
    }
}

impl Kept {
    fn add(&mut self, next: Result<Vec<Event>, ConnectError>) {
        match next {
            Ok(events) => {
                for event in events {
                    if self.events.len() < MAX_EVENTS {
                        self.events.push_back(event);
                    } else {
                        let text =
                            format!("more than {MAX_EVENTS} events since the last poll: some were lost");
                        self.lost = Some(ConnectError::new(Code::DataLoss, text));
                    }
                }
            }
            Err(error) => self.lost = Some(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use forkd_envd::filesystem::EventType;

    use super::*;

    #[test]
    fn what_does_not_fit_is_reported_as_lost() {
        let event = |name: usize| Event { name: name.to_string(), kind: EventType::Write, entry: None };
        let mut kept = Kept::default();
        kept.add(Ok((0..MAX_EVENTS).map(event).collect()));
        assert_eq!((kept.events.len(), kept.lost.is_some()), (MAX_EVENTS, false));
        kept.add(Ok(vec![event(1)]));
        assert_eq!((kept.events.len(), kept.lost.unwrap().code), (MAX_EVENTS, Code::DataLoss));
    }
}
