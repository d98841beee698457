//! Periodic tasks of the daemon: it sweeps, keeps zygotes within their budget, and counts the engine's events.

use std::sync::Arc;
use std::time::Duration;

use forkd_api::event::What;
use forkd_engine::{EngineEvent, ProjectEvent, SandboxState, SnapshotStatus, Swept};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::MissedTickBehavior;

use crate::app::{App, Shared};
use crate::error::chain;
use crate::views;

/// Between two sweeps.
const PERIOD: Duration = Duration::from_secs(60);
/// Between two looks at what zygotes hold, when nothing happens and when much does.
const TRIM_PERIOD: Duration = Duration::from_secs(15);
const TRIM_PAUSE: Duration = Duration::from_millis(500);

/// What becomes of a file that cannot be read.
pub const LEFT_ALONE: &str = "cannot read it: keeping it and all files that it may need";

/// Begins. It ends when the daemon is about to stop.
pub fn start(app: &Shared) {
    let (sweeping, trimming, counting, logging) = (app.clone(), app.clone(), app.clone(), app.clone());
    let told = app.engine.events();
    tokio::spawn(async move {
        tokio::select! {
            () = log(&logging, told) => {}
            () = logging.stopping() => {}
        }
    });
    // Before anything happens that counts.
    let events = app.engine.events();
    let for_protocol = app.clone();
    tokio::spawn(Arc::clone(&app.protocol).chores(for_protocol));
    tokio::spawn(async move {
        tokio::select! {
            () = sweep(&sweeping) => {}
            () = sweeping.stopping() => {}
        }
    });
    tokio::spawn(async move {
        tokio::select! {
            () = trim(&trimming) => {}
            () = trimming.stopping() => {}
        }
    });
    tokio::spawn(async move {
        tokio::select! {
            () = count(&counting, events) => {}
            () = counting.stopping() => {}
        }
    });
}

/// Removes unused files, periodically.
async fn sweep(app: &App) {
    let mut ticks = tokio::time::interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first comes at once, and the engine has just swept.
    ticks.tick().await;
    let mut known = app.engine.unreadable();
    loop {
        ticks.tick().await;
        match app.engine.sweep().await {
            Ok(Swept { sandboxes, zygotes, stored, unreadable, removed }) => {
                // Said once, and not every minute.
                for error in unreadable.iter().filter(|error| !known.contains(error)) {
                    tracing::warn!(%error, "{LEFT_ALONE}");
                }
                for error in known.iter().filter(|error| !unreadable.contains(error)) {
                    tracing::info!(path = %error.path.display(), "readable again");
                }
                known = unreadable;
                for id in sandboxes {
                    tracing::info!(%id, "adopted a sandbox: its process answers again");
                }
                for tag in zygotes {
                    tracing::info!(%tag, "adopted a zygote: its process answers again");
                }
                for tag in stored {
                    tracing::info!(%tag, "a snapshot is readable again");
                }
                if removed > 0 {
                    tracing::info!(removed, "removed unused files");
                }
            }
            Err(error) => tracing::warn!(error = %chain(&error), "cannot remove unused files"),
        }
    }
}

/// Keeps the processes of snapshots within their budget: when one is loaded or can go, and now and then, since they grow.
async fn trim(app: &App) {
    let mut events = app.engine.events();
    let mut ticks = tokio::time::interval(TRIM_PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        // Whatever has happened until now is seen by one look.
        events = events.resubscribe();
        let trimmed = app.engine.trim().await;
        app.metrics.engine.set_zygote_bytes(i64::try_from(trimmed.held_bytes).unwrap_or(i64::MAX));
        for tag in &trimmed.evicted {
            tracing::info!(%tag, "unloaded an idle snapshot from memory");
        }
        tokio::select! {
            _ = ticks.tick() => {}
            () = memory_taken(&mut events) => tokio::time::sleep(TRIM_PAUSE).await,
        }
    }
}

/// A snapshot was loaded, or can be given up from now on.
async fn memory_taken(events: &mut Receiver<ProjectEvent>) {
    loop {
        match events.recv().await.map(|told| told.what) {
            Ok(EngineEvent::Loaded(_) | EngineEvent::Snapshot(_, SnapshotStatus::Ready)) => return,
            Ok(_) => {}
            Err(RecvError::Lagged(_)) => return,
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

/// Keeps what callers are told.
async fn log(app: &App, mut events: Receiver<ProjectEvent>) {
    loop {
        match events.recv().await {
            Ok(ProjectEvent { project, what }) => {
                if let Some(what) = views::event(&app.engine, what) {
                    app.events.add(Some(project), what);
                }
            }
            Err(RecvError::Lagged(count)) => app.events.add(None, What::Missed { count: Some(count) }),
            Err(RecvError::Closed) => return,
        }
    }
}

async fn count(app: &App, mut events: Receiver<ProjectEvent>) {
    loop {
        match events.recv().await.map(|told| told.what) {
            Ok(EngineEvent::Loaded(_)) => app.metrics.engine.zygote_loaded(),
            Ok(EngineEvent::Evicted(_)) => app.metrics.engine.zygote_evicted(),
            Ok(EngineEvent::Busy(id, contexts)) => {
                tracing::info!(sandbox = %id, ?contexts, "code is running: fork hooks and environment follow when it ends");
            }
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
    let loaded = snapshots.iter().filter(|view| view.loaded).count();
    app.metrics.engine.set_zygotes(i64::try_from(loaded).unwrap_or(i64::MAX));
    if let Some(stats) = app.engine.network_pool() {
        app.metrics.engine.set_networks(&stats);
    }
}
