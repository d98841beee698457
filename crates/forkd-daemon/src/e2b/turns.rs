//! Turns: what changes whether a sandbox stands still happens one after the other, for each sandbox.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::OwnedMutexGuard;

type Turn = tokio::sync::Mutex<()>;

/// Whose turn it is, by the ids of sandboxes. Only those that somebody waits for are remembered.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<HashMap<String, Weak<Turn>>>);

impl Turns {
    /// Waits for the turn.
    pub async fn take(&self, id: &str) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            turns.retain(|_, turn| turn.strong_count() > 0);
            let turn = turns.get(id).and_then(Weak::upgrade).unwrap_or_default();
            turns.insert(id.to_owned(), Arc::downgrade(&turn));
            turn
        };
        turn.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_at_a_time_and_nothing_is_left() {
        let turns = Arc::new(Turns::default());
        let first = turns.take("a").await;
        let other = turns.take("b").await;
        let waiting = {
            let turns = Arc::clone(&turns);
            tokio::spawn(async move { turns.take("a").await })
        };
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop((first, other));
        drop(waiting.await.unwrap());
        drop(turns.take("c").await);
        assert!(turns.0.lock().unwrap().len() <= 1);
    }
}
