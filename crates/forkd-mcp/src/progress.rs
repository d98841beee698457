//! How far a call is, for clients that gave a progress token.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::{Peer, RoleServer};
use tokio::time::{Instant, MissedTickBehavior, interval};

/// How often a client hears that something goes on. Some give up after a minute without a word.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// The longest line that is shown.
const MAX_LINE: usize = 200;

#[derive(Debug)]
pub(crate) struct Progress {
    to: Option<(Peer<RoleServer>, ProgressToken)>,
    /// It has to grow with every notification.
    count: AtomicU32,
}

impl Progress {
    pub(crate) fn new(peer: Peer<RoleServer>, token: Option<ProgressToken>) -> Progress {
        Progress { to: token.map(|token| (peer, token)), count: AtomicU32::new(0) }
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

    /// Says every few seconds that something still goes on.
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
                _ = ticks.tick() => self.say(&format!("{what}: {} s", begun.elapsed().as_secs())).await,
            }
        }
    }
}
