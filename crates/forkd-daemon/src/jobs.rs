//! Long work, most of it on the library: in a thread that may wait, with progress line by line, and cancelled when its caller disconnects.
//!
//! ```text
//!   request ──▶ Place ──▶ (upload to a file without a name) ──▶ thread ──▶ answer, or lines and then the answer
//!               429 if all are taken                              │
//!                                                                 └─ asks between small pieces of work: is the caller
//!                                                                    still there, is the daemon still to go on?
//! ```
//!
//! The place is the thread's until it has ended and cleaned up, however long that takes: abandoned work
//! still counts.

use std::time::Duration;

use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use forkd_api::error::ErrorCode;
use forkd_api::hint::HintCode;
use forkd_api::library::{Image, Kernel, LibraryProgress, Transfer};
use forkd_api::snapshot::{PushedSnapshot, Snapshot};
use forkd_image::Progress;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedRwLockReadGuard, OwnedSemaphorePermit, mpsc};

use crate::app::Shared;
use crate::error::{Answer, ApiError};
use crate::extract::Json;
use crate::ndjson;

/// What is told and not read yet.
const QUEUE: usize = 64;
/// How long a full queue is left alone.
const PAUSE: Duration = Duration::from_millis(2);

/// Room for one piece of long work.
#[derive(Debug)]
pub struct Place {
    _permit: OwnedSemaphorePermit,
    /// The daemon waits for it when it stops.
    _busy: OwnedRwLockReadGuard<()>,
}

impl Place {
    pub async fn take(app: &Shared) -> Answer<Place> {
        let permit = app.jobs.clone().try_acquire_owned().map_err(|_| {
            let text = "too many long jobs are running (images, kernels, checks of snapshots)";
            ApiError::new(ErrorCode::TooMany, text).hint(HintCode::TryLater)
        })?;
        Ok(Place { _permit: permit, _busy: app.busy().await })
    }
}

/// What work has come to.
#[derive(Debug)]
pub enum Made {
    Image(Box<Image>),
    Kernel(Box<Kernel>),
    Snapshot(Box<Snapshot>),
    Pushed(PushedSnapshot),
}

/// Does work in a thread, and answers with what it has come to: as one JSON document, or at the end of a stream.
pub async fn answer(
    app: &Shared,
    place: Place,
    headers: &HeaderMap,
    work: impl FnOnce(&(dyn Progress + Sync)) -> Answer<Made> + Send + 'static,
) -> Answer<Response> {
    let (told, mut heard) = mpsc::channel(QUEUE);
    let telling = Telling { told, app: app.clone() };
    let span = tracing::Span::current();
    let working = tokio::task::spawn_blocking(move || {
        let _place = place;
        let _entered = span.enter();
        work(&telling)
    });
    let working = async { working.await.unwrap_or_else(|error| Err(ApiError::internal(&error))) };
    if !ndjson::is_wanted(headers) {
        let unheard = async { while heard.recv().await.is_some() {} };
        let (made, ()) = tokio::join!(working, unheard);
        return Ok(match made? {
            Made::Image(image) => (StatusCode::CREATED, Json(image)).into_response(),
            Made::Kernel(kernel) => (StatusCode::CREATED, Json(kernel)).into_response(),
            Made::Snapshot(snapshot) => (StatusCode::CREATED, Json(snapshot)).into_response(),
            Made::Pushed(pushed) => (StatusCode::CREATED, Json(pushed)).into_response(),
        });
    }
    let app = app.clone();
    Ok(ndjson::answer(move |lines| async move {
        let tell = async {
            while let Some(line) = heard.recv().await {
                if lines.write(&line).await.is_err() {
                    return;
                }
            }
        };
        let (made, ()) = tokio::join!(working, tell);
        let last = match made {
            Ok(Made::Image(image)) => LibraryProgress::Image(image),
            Ok(Made::Kernel(kernel)) => LibraryProgress::Kernel(kernel),
            Ok(Made::Snapshot(snapshot)) => LibraryProgress::Snapshot(snapshot),
            Ok(Made::Pushed(pushed)) => LibraryProgress::Pushed(pushed),
            Err(error) => {
                app.metrics.failed(error.code());
                LibraryProgress::Error(error.logged())
            }
        };
        // Who has gone does not need it.
        let _ = lines.write(&last).await;
    }))
}

/// What the work says, from its thread.
struct Telling {
    told: mpsc::Sender<LibraryProgress>,
    app: Shared,
}

impl Telling {
    /// Waits while the caller is slow to read. Not with tokio's own means: some work speaks from inside a runtime of its own,
    /// where those refuse to wait.
    fn tell(&self, line: LibraryProgress) {
        let mut line = line;
        // Who does not listen any more is noticed by `is_cancelled`.
        while let Err(TrySendError::Full(back)) = self.told.try_send(line) {
            line = back;
            std::thread::sleep(PAUSE);
        }
    }
}

impl Progress for Telling {
    fn step(&self, what: &str) {
        self.tell(LibraryProgress::Step(what.to_owned()));
    }

    /// Each replaces the one before, so those that find the queue full are not missed.
    fn detail(&self, what: &str) {
        let _ = self.told.try_send(LibraryProgress::Detail(what.to_owned()));
    }

    fn transfer(&self, done: u64, total: u64) {
        let transfer = Transfer { done_bytes: done, total_bytes: total };
        let _ = self.told.try_send(LibraryProgress::Transfer(transfer));
    }

    fn output(&self, line: &str) {
        self.tell(LibraryProgress::Output(line.to_owned()));
    }

    fn warn(&self, what: &str) {
        self.tell(LibraryProgress::Warning(what.to_owned()));
    }

    fn is_cancelled(&self) -> bool {
        self.told.is_closed() || self.app.is_stopping()
    }
}
