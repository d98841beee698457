//! What the daemon does by itself: it sweeps, and counts what happens in the engine without being asked for.

use std::time::Duration;

use forkd_engine::engine::{Happened, SandboxState, SnapshotStatus};
use tokio::sync::broadcast::error::RecvError;
use tokio::time::MissedTickBehavior;

use crate::app::{App, Shared};
use crate::error::chain;

/// Between two sweeps.
const PERIOD: Duration = Duration::from_secs(60);

/// Begins. It ends when the daemon is about to stop.
pub fn start(app: &Shared) {
    let (sweeping, counting) = (app.clone(), app.clone());
    tokio::spawn(async move {
        tokio::select! {
            () = sweep(&sweeping) => {}
            () = sweeping.stopping() => {}
        }
    });
    tokio::spawn(async move {
        tokio::select! {
            () = count(&counting) => {}
            () = counting.stopping() => {}
        }
    });
}

/// Removes what is nobody's any more, again and again.
async fn sweep(app: &App) {
    let mut ticks = tokio::time::interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first comes at once, and the engine has just swept.
    ticks.tick().await;
    loop {
        ticks.tick().await;
        let engine = app.engine.clone();
        match tokio::task::spawn_blocking(move || engine.sweep()).await {
            Ok(Ok(0)) => {}
            Ok(Ok(removed)) => tracing::info!(removed, "removed layers of disks that nobody had any more"),
            Ok(Err(error)) => tracing::warn!(error = %chain(&error), "cannot sweep"),
            Err(error) => tracing::error!(%error, "cannot sweep"),
        }
    }
}

async fn count(app: &App) {
    let mut happened = app.engine.happenings();
    loop {
        match happened.recv().await {
            Ok(Happened::Loaded(_)) => app.metrics.engine.zygote_loaded(),
            Ok(_) | Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
    }
}

/// Looks how many sandboxes and snapshots there are, in each state.
pub(crate) fn gauge(app: &App) {
    let sandboxes = app.engine.sandboxes();
    for (state, name) in [
        (SandboxState::Starting, "starting"),
        (SandboxState::Running, "running"),
        (SandboxState::Paused, "paused"),
        (SandboxState::Ended, "ended"),
    ] {
        let count = sandboxes.iter().filter(|view| view.state == state).count();
        app.metrics.engine.set_sandboxes(name, i64::try_from(count).unwrap_or(i64::MAX));
    }
    let snapshots = app.engine.snapshots();
    for (status, name) in [
        (SnapshotStatus::Live, "live"),
        (SnapshotStatus::Persisting, "persisting"),
        (SnapshotStatus::Ready, "ready"),
        (SnapshotStatus::Failed, "failed"),
    ] {
        let count = snapshots.iter().filter(|view| view.status == status).count();
        app.metrics.engine.set_snapshots(name, i64::try_from(count).unwrap_or(i64::MAX));
    }
}
