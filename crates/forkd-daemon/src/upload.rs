//! Bodies that are larger than memory should be: to a file that has no name, so that nothing is left of it whatever happens.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};

use axum::body::Body;
use bytes::Bytes;
use forkd_api::error::ErrorCode;
use forkd_api::hint::HintCode;
use http_body::Body as _;
use http_body_util::BodyExt;
use tokio::sync::mpsc;

use crate::app::Shared;
use crate::error::{Answer, ApiError, chain};

/// Pieces on their way to the disk.
const QUEUE: usize = 8;
/// Bytes between two looks at the free space.
const LOOK: u64 = 64 << 20;

/// Writes a body of at most `limit` bytes to a file in a directory, which is made if it is not there. The free disk space
/// that is kept stays free.
pub async fn to_file(app: &Shared, body: Body, directory: PathBuf, limit: u64) -> Answer<File> {
    let too_large = || ApiError::new(ErrorCode::TooLarge, format!("the body is larger than {limit} bytes"));
    // What is said to be too large is not waited for.
    let said = body.size_hint().lower();
    if said > limit {
        return Err(too_large());
    }
    let (sender, pieces) = mpsc::channel(QUEUE);
    let (shared, place) = (app.clone(), directory.clone());
    let writing = tokio::task::spawn_blocking(move || write(&shared, &place, said, pieces));
    let sent = send(body, limit, &sender).await;
    drop(sender);
    let written = writing.await.map_err(|error| ApiError::internal(&error))?;
    match (sent, written) {
        (Sent::All, written) => written,
        // The writer says why it ended early.
        (Sent::Untaken, Err(error)) => Err(error),
        (Sent::Untaken, Ok(_)) => Err(ApiError::new(ErrorCode::Internal, "the daemon failed")),
        (Sent::TooLarge, _) => Err(too_large()),
        (Sent::Broken(error), _) => Err(error),
    }
}

enum Sent {
    All,
    Untaken,
    TooLarge,
    Broken(ApiError),
}

async fn send(mut body: Body, limit: u64, to: &mpsc::Sender<Bytes>) -> Sent {
    let mut size = 0_u64;
    while let Some(frame) = body.frame().await {
        let piece = match frame {
            Ok(frame) => frame.into_data().unwrap_or_default(),
            Err(error) => return Sent::Broken(broken(error)),
        };
        size = size.saturating_add(piece.len() as u64);
        if size > limit {
            return Sent::TooLarge;
        }
        if to.send(piece).await.is_err() {
            return Sent::Untaken;
        }
    }
    Sent::All
}

/// Each layer of a body has wrapped what went wrong below it.
fn broken(error: axum::Error) -> ApiError {
    let error = match error.into_inner().downcast::<axum::Error>() {
        Ok(inner) => return broken(*inner),
        Err(error) => error,
    };
    match error.downcast::<ApiError>() {
        Ok(stalled) => *stalled,
        Err(error) => ApiError::new(ErrorCode::Malformed, "the connection closed before the end of the body")
            .detail(chain(&*error)),
    }
}

fn write(app: &Shared, directory: &Path, said: u64, mut pieces: mpsc::Receiver<Bytes>) -> Answer<File> {
    std::fs::create_dir_all(directory).map_err(failed)?;
    app.engine.admit_bytes(directory, said)?;
    let mut file = tempfile::tempfile_in(directory).map_err(failed)?;
    let mut since = 0;
    while let Some(piece) = pieces.blocking_recv() {
        file.write_all(&piece).map_err(failed)?;
        since += piece.len() as u64;
        if since >= LOOK {
            since = 0;
            app.engine.admit_bytes(directory, 0)?;
        }
    }
    file.rewind().map_err(failed)?;
    Ok(file)
}

fn failed(error: io::Error) -> ApiError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            ApiError::new(ErrorCode::NoDisk, "the disk of the daemon's host is full")
                .hint(HintCode::RemoveImages)
        }
        _ => ApiError::internal(&error),
    }
}
