//! The body of an upload, which can still be read to its end after its reader has failed.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use bytes::Bytes;
use futures_core::Stream;

/// What is read for nothing, so that a client hears why it was refused. Beyond that the connection just ends.
const MAX_DRAINED: usize = 256 << 20;
const MAX_DRAINING: Duration = Duration::from_secs(120);
/// A client that stops sending for so long has stopped waiting, too.
const MAX_PAUSE: Duration = Duration::from_secs(10);

/// Clones read the same body.
#[derive(Debug, Clone)]
pub struct SharedBody(Arc<Mutex<BodyDataStream>>);

impl SharedBody {
    pub fn new(body: Body) -> Self {
        Self(Arc::new(Mutex::new(body.into_data_stream())))
    }

    pub fn poll_next(&self, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        let mut body = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Pin::new(&mut *body).poll_next(context).map_err(io::Error::other)
    }

    pub async fn next(&self) -> Option<io::Result<Bytes>> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// Reads the rest, within reason.
    pub async fn drain(&self) {
        let all = async {
            let mut drained = 0;
            while let Ok(Some(Ok(bytes))) = tokio::time::timeout(MAX_PAUSE, self.next()).await {
                drained += bytes.len();
                if drained > MAX_DRAINED {
                    return;
                }
            }
        };
        let _ = tokio::time::timeout(MAX_DRAINING, all).await;
    }
}
