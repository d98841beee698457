//! What a request carries.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::sync::mpsc;

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
    },
}

impl Body {
    pub(crate) fn empty() -> Body {
        Body::Whole(None)
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
            Body::Stream { upload, .. } => {
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
