//! Everybody who listens to one process.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use forkd_envd::Exit;
use forkd_envd::connect::{Code, ConnectError};
use forkd_envd::process::{end_event, start_event};
use tokio::time::Instant;

use crate::connect::{Sender, Stall};

/// How long a subscriber may take nothing at all while the process waits for it.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub struct Subscribers {
    pid: u32,
    state: Mutex<SubscribersState>,
}

#[derive(Debug)]
enum SubscribersState {
    Open(Vec<Sender>),
    Ended(Exit),
}

impl Subscribers {
    pub fn new(pid: u32) -> Self {
        Self { pid, state: Mutex::new(SubscribersState::Open(Vec::new())) }
    }

    /// Adds a listener, whose stream begins with the start event. After the end it gets just that.
    pub async fn add(&self, sender: Sender) {
        if sender.send(start_event(self.pid), PATIENCE).await.is_err() {
            return;
        }
        let exit = match &mut *self.lock() {
            SubscribersState::Open(senders) => {
                // A silent process would never notice who has gone.
                senders.retain(|sender| !sender.is_closed());
                senders.push(sender);
                return;
            }
            SubscribersState::Ended(exit) => *exit,
        };
        last(sender, exit).await;
    }

    pub fn is_empty(&self) -> bool {
        match &*self.lock() {
            SubscribersState::Open(senders) => senders.is_empty(),
            SubscribersState::Ended(_) => true,
        }
    }

    /// Hands a message to all, and waits for those who have no room. One task only may call this.
    pub async fn publish(&self, envelope: &Bytes) {
        // Out of the lock while waiting; who comes in the meantime begins with the next message.
        let senders = match &mut *self.lock() {
            SubscribersState::Open(senders) => std::mem::take(senders),
            SubscribersState::Ended(_) => return,
        };
        let mut kept = Vec::with_capacity(senders.len());
        // One patience for all of them: several who do not read delay the process no longer than one.
        let latest = Instant::now() + PATIENCE;
        for sender in senders {
            match sender.send(envelope.clone(), latest.saturating_duration_since(Instant::now())).await {
                Ok(()) => kept.push(sender),
                Err(Stall::Gone) => {}
                Err(Stall::Slow) => sender.finish(Err(too_slow())),
            }
        }
        if let SubscribersState::Open(newcomers) = &mut *self.lock() {
            newcomers.append(&mut kept);
        }
    }

    /// Tells all how the process ended. Later ones are told when they come.
    pub fn end(&self, exit: Exit) {
        let before = std::mem::replace(&mut *self.lock(), SubscribersState::Ended(exit));
        let SubscribersState::Open(senders) = before else { return };
        for sender in senders {
            // Each in a task of its own: the last output of a process does not wait for other clients.
            tokio::spawn(last(sender, exit));
        }
    }

    fn lock(&self) -> MutexGuard<'_, SubscribersState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The whole stream of a process that has ended.
pub async fn replay(pid: u32, exit: Exit, sender: Sender) {
    if sender.send(start_event(pid), PATIENCE).await.is_ok() {
        last(sender, exit).await;
    }
}

async fn last(sender: Sender, exit: Exit) {
    match sender.send(end_event(exit), PATIENCE).await {
        Ok(()) => sender.finish(Ok(())),
        Err(Stall::Gone) => {}
        Err(Stall::Slow) => sender.finish(Err(too_slow())),
    }
}

fn too_slow() -> ConnectError {
    let text = format!(
        "the client read nothing for {} s; the process keeps running without it, and can be connected to",
        PATIENCE.as_secs()
    );
    ConnectError::new(Code::ResourceExhausted, text)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderMap;
    use axum::response::Response;
    use forkd_envd::process::{KEEPALIVE, Stream, data_event};
    use http_body_util::BodyExt;

    use super::*;
    use crate::connect;

    fn stream() -> (Sender, Response) {
        connect::respond(&HeaderMap::new(), KEEPALIVE).unwrap()
    }

    async fn rest(response: Response) -> String {
        String::from_utf8_lossy(&response.into_body().collect().await.unwrap().to_bytes()).into_owned()
    }

    #[tokio::test(start_paused = true)]
    async fn who_comes_late_sees_the_rest_and_who_comes_after_the_end_sees_the_end() {
        let subscribers = Subscribers::new(7);
        let ((first, first_stream), (second, second_stream)) = (stream(), stream());
        subscribers.add(first).await;
        subscribers.publish(&data_event(Stream::Stdout, b"one")).await;
        subscribers.add(second).await;
        subscribers.end(Exit::Code(0));
        let (third, third_stream) = stream();
        tokio::join!(
            async {
                let text = rest(first_stream).await;
                assert!(
                    text.contains("\"pid\":7") && text.contains("b25l") && text.contains("exitCode"),
                    "{text}"
                );
            },
            async {
                let text = rest(second_stream).await;
                assert!(!text.contains("b25l") && text.contains("exitCode"), "{text}");
            },
            async {
                subscribers.add(third).await;
                assert!(rest(third_stream).await.contains("exitCode"));
            },
        );
    }

    #[tokio::test]
    async fn who_is_gone_is_forgotten_when_the_next_comes() {
        let subscribers = Subscribers::new(7);
        for _ in 0..10 {
            let (sender, _stream) = stream();
            subscribers.add(sender).await;
        }
        assert!(matches!(&*subscribers.lock(), SubscribersState::Open(senders) if senders.len() == 1));
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_read_is_waited_for_and_then_left() {
        let subscribers = Subscribers::new(7);
        let ((slow, slow_stream), (slow_too, slow_too_stream), (gone, gone_stream)) =
            (stream(), stream(), stream());
        subscribers.add(slow).await;
        subscribers.add(slow_too).await;
        subscribers.add(gone).await;
        drop(gone_stream);
        let started = tokio::time::Instant::now();
        for _ in 0..4 {
            subscribers.publish(&data_event(Stream::Stdout, b"x")).await;
        }
        assert_eq!(started.elapsed().as_secs(), PATIENCE.as_secs());
        assert!(subscribers.is_empty());
        assert!(rest(slow_stream).await.contains("resource_exhausted"));
        assert!(rest(slow_too_stream).await.contains("resource_exhausted"));
    }
}
