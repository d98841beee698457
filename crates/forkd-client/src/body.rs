//! What a request carries.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

/// How long a daemon may take to say that it wants a body, before it gets it anyway: whatever is between may not pass that on.
const PATIENCE: Duration = Duration::from_secs(3);

/// Bytes that come while they are sent. An error ends the request, so that the daemon does not take a part for the whole.
pub type Upload = mpsc::Receiver<io::Result<Bytes>>;

/// The body of a request.
#[derive(Debug)]
pub(crate) enum Body {
    Whole(Option<Bytes>),
    Stream {
        upload: Upload,
        /// How much will come, where that is known.
        size: Option<u64>,
        /// Whether it may begin.
        gate: Gate,
    },
}

impl Body {
    pub(crate) fn empty() -> Body {
        Body::Whole(None)
    }

    pub(crate) fn stream(upload: Upload, size: Option<u64>) -> Body {
        Body::Stream { upload, size, gate: Gate(None) }
    }

    /// Keeps a stream back until it is wanted, or nothing is heard for a while: a daemon that refuses a request closes the
    /// connection, and what is still being sent then would cost its answer. Nothing for bodies that are no streams.
    pub(crate) fn keep_back(&mut self) -> Option<watch::Sender<Wish>> {
        let Body::Stream { gate, .. } = self else { return None };
        let (sender, mut wish) = watch::channel(Wish::Unknown);
        *gate = Gate(Some(Box::pin(async move {
            let heard = timeout(PATIENCE, wish.wait_for(|wish| *wish != Wish::Unknown)).await;
            matches!(heard, Ok(Ok(wish)) if *wish == Wish::Unwanted)
        })));
        Some(sender)
    }
}

/// What a daemon says of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    Unknown,
    Wanted,
    Unwanted,
}

/// What is waited for before a stream begins; it says whether the stream is not to begin at all.
pub(crate) struct Gate(Option<Pin<Box<dyn Future<Output = bool> + Send>>>);

impl fmt::Debug for Gate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Gate").field(&self.0.is_some()).finish()
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match &mut *self {
            Body::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Body::Stream { upload, gate, .. } => {
                if let Some(wait) = &mut gate.0 {
                    let unwanted = ready!(wait.as_mut().poll(context));
                    gate.0 = None;
                    if unwanted {
                        return Poll::Ready(Some(Err(io::ErrorKind::Interrupted.into())));
                    }
                }
                upload.poll_recv(context).map(|chunk| chunk.map(|chunk| chunk.map(Frame::data)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Body::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Whole(bytes) => SizeHint::with_exact(
                bytes.as_ref().map_or(0, |bytes| bytes.len().try_into().unwrap_or(u64::MAX)),
            ),
            Body::Stream { size, .. } => size.map_or_else(SizeHint::default, SizeHint::with_exact),
        }
    }
}
