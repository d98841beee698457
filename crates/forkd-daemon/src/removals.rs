//! DELETE may be repeated: a caller that did not receive the first answer gets it again.
//!
//! A request always does its work. Only if there is nothing to remove, and the same caller has removed it a short while ago, the
//! answer is the one of then. It is kept in memory, so a restart of the daemon forgets it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::Extension;
use axum::extract::Request;
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::time::Instant;

use crate::app::Shared;
use crate::auth::Caller;
use crate::idempotency::{Kept, keep};

const AGE: Duration = Duration::from_secs(600);
const MAX_KEPT: usize = 4096;
const MAX_ANSWER: usize = 16 << 10;
/// A longer path is not worth remembering.
const MAX_PATH: usize = 8 << 10;

/// The caller, and what was to be removed.
type Key = (String, String);

/// Answers to what removed something.
#[derive(Debug, Default)]
pub struct Removals(Mutex<Memory>);

#[derive(Debug, Default)]
struct Memory {
    answers: HashMap<Key, (Instant, Kept)>,
    /// In the order in which they were given. A key that was answered again is in it more than once.
    order: VecDeque<(Instant, Key)>,
}

/// The middleware of all routes.
pub async fn repeat(Extension(app): Extension<Shared>, request: Request, next: Next) -> Response {
    if request.method() != Method::DELETE {
        return next.run(request).await;
    }
    let caller = request.extensions().get::<Caller>();
    let caller = caller.map(|caller| format!("{} {}", caller.project, caller.name)).unwrap_or_default();
    let key = (caller, request.uri().to_string());
    let response = next.run(request).await;
    match response.status() {
        StatusCode::NOT_FOUND => match app.removals.find(&key) {
            Some(kept) => kept.into_response(),
            None => response,
        },
        status if status.is_success() && key.1.len() <= MAX_PATH => {
            let (response, kept) = keep(response, MAX_ANSWER).await;
            if let Some(kept) = kept {
                app.removals.remember(key, kept);
            }
            response
        }
        _ => response,
    }
}

impl Removals {
    fn find(&self, key: &Key) -> Option<Kept> {
        let memory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        memory.answers.get(key).filter(|(at, _)| at.elapsed() < AGE).map(|(_, kept)| kept.clone())
    }

    fn remember(&self, key: Key, kept: Kept) {
        let now = Instant::now();
        let mut memory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        memory.answers.insert(key.clone(), (now, kept));
        memory.order.push_back((now, key));
        while memory.order.len() > MAX_KEPT || memory.order.front().is_some_and(|(at, _)| at.elapsed() >= AGE)
        {
            let Some((at, key)) = memory.order.pop_front() else { break };
            if memory.answers.get(&key).is_some_and(|(newest, _)| *newest == at) {
                memory.answers.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn answers_are_kept_for_a_while_and_not_without_bound() {
        let removals = Removals::default();
        let key = |path: usize| ("me".to_owned(), path.to_string());
        let kept = || async { keep(StatusCode::NO_CONTENT.into_response(), MAX_ANSWER).await.1.unwrap() };
        removals.remember(key(1), kept().await);
        assert_eq!(removals.find(&key(1)).unwrap().into_response().status(), StatusCode::NO_CONTENT);
        assert!(removals.find(&("you".into(), "1".into())).is_none());
        tokio::time::advance(AGE).await;
        assert!(removals.find(&key(1)).is_none());
        for number in 0..MAX_KEPT + 10 {
            removals.remember(key(number), kept().await);
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert!(removals.find(&key(9)).is_none() && removals.find(&key(10)).is_some());
        assert_eq!(removals.0.lock().unwrap().answers.len(), MAX_KEPT);
    }
}
