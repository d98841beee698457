//! Request bodies on their way into a guest: bounded in size, and aborted when the client or the guest stalls.

use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::Body;
use bytes::Bytes;
use forkd_api::error::ErrorCode;
use http_body::{Body as _, Frame, SizeHint};

use crate::error::{Answer, ApiError, chain};

/// How often it is looked whether the guest still takes something.
const LOOK: Duration = Duration::from_secs(1);

/// What a body may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub bytes: u64,
    /// How long the guest may take nothing.
    pub guest_time: Duration,
}

/// The body of a request, sent into a guest within its bounds.
#[derive(Debug)]
pub(crate) struct BoundedBody {
    body: Body,
    left: u64,
    bounds: Bounds,
    state: Arc<BodyState>,
}

#[derive(Debug)]
struct BodyState {
    /// When the guest last asked for more.
    asked: Mutex<Instant>,
    /// What the client has done wrong. The guest's own answer to it says less.
    wrong: Mutex<Option<ApiError>>,
}

/// Lets `work` send a body into a guest.
pub(crate) async fn through<T, E, F>(
    body: Body,
    bounds: Bounds,
    work: impl FnOnce(BoundedBody) -> F,
) -> Answer<T>
where
    E: Into<ApiError>,
    F: Future<Output = Result<T, E>>,
{
    // What is said to be too large is not waited for.
    if body.size_hint().lower() > bounds.bytes {
        return Err(too_large(bounds.bytes));
    }
    let state = Arc::new(BodyState { asked: Mutex::new(Instant::now()), wrong: Mutex::default() });
    let mut work = pin!(work(BoundedBody { body, left: bounds.bytes, bounds, state: Arc::clone(&state) }));
    loop {
        tokio::select! {
            result = work.as_mut() => {
                let wrong = state.wrong.lock().unwrap_or_else(PoisonError::into_inner).take();
                return result.map_err(|error| wrong.unwrap_or_else(|| error.into()));
            }
            () = tokio::time::sleep(LOOK.min(bounds.guest_time)) => {
                let asked = *state.asked.lock().unwrap_or_else(PoisonError::into_inner);
                if asked.elapsed() > bounds.guest_time {
                    return Err(ApiError::new(ErrorCode::GuestTimeout, "timed out: the guest stopped reading the body"));
                }
            }
        }
    }
}

fn too_large(limit: u64) -> ApiError {
    ApiError::new(ErrorCode::TooLarge, format!("the body is larger than {limit} bytes"))
}

impl BoundedBody {
    fn fail(&self, error: ApiError) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        *self.state.wrong.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        Poll::Ready(Some(Err(std::io::ErrorKind::UnexpectedEof.into())))
    }
}

/// What is wrong, without what each body around it has put around it.
fn innermost(error: axum::Error) -> Box<dyn std::error::Error + Send + Sync> {
    let mut inner = error.into_inner();
    loop {
        inner = match inner.downcast::<axum::Error>() {
            Ok(error) => error.into_inner(),
            Err(inner) => return inner,
        };
    }
}

impl http_body::Body for BoundedBody {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        *self.state.asked.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        match std::task::ready!(Pin::new(&mut self.body).poll_frame(context)) {
            None => Poll::Ready(None),
            Some(Ok(frame)) => {
                let length = frame.data_ref().map_or(0, |data| u64::try_from(data.len()).unwrap_or(u64::MAX));
                match self.left.checked_sub(length) {
                    Some(left) => self.left = left,
                    None => return self.fail(too_large(self.bounds.bytes)),
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Some(Err(error)) => match innermost(error).downcast::<ApiError>() {
                Ok(stalled) => self.fail(*stalled),
                Err(error) => {
                    let broken = ApiError::new(
                        ErrorCode::Malformed,
                        "the connection closed before the end of the body",
                    );
                    self.fail(broken.detail(chain(&*error)))
                }
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    const BOUNDS: Bounds = Bounds { bytes: 5, guest_time: Duration::from_millis(50) };

    async fn collect(bounded: BoundedBody) -> Answer<Bytes> {
        bounded.collect().await.map(|body| body.to_bytes()).map_err(|error| ApiError::internal(&error))
    }

    /// A body that does not say how long it is.
    fn unknown(text: &'static str) -> Body {
        struct Unknown(Option<&'static str>);
        impl http_body::Body for Unknown {
            type Data = Bytes;
            type Error = std::convert::Infallible;
            fn poll_frame(
                mut self: Pin<&mut Self>,
                _: &mut Context<'_>,
            ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
                Poll::Ready(self.0.take().map(|text| Ok(Frame::data(Bytes::from_static(text.as_bytes())))))
            }
        }
        Body::new(Unknown(Some(text)))
    }

    #[tokio::test]
    async fn a_body_is_bounded_whether_or_not_it_says_its_size() {
        assert_eq!(through(Body::from("12345"), BOUNDS, collect).await.unwrap(), "12345");
        assert_eq!(through(unknown("12345"), BOUNDS, collect).await.unwrap(), "12345");
        for body in [Body::from("123456"), unknown("123456")] {
            assert_eq!(through(body, BOUNDS, collect).await.unwrap_err().code(), ErrorCode::TooLarge);
        }
    }

    #[tokio::test]
    async fn a_client_and_a_guest_that_stand_still_are_told_apart() {
        let stalled = crate::extract::impatient(Body::new(Pending), Duration::from_millis(1));
        let error = through(stalled, BOUNDS, collect).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::RequestTimeout);
        let deaf = through(Body::from("1"), BOUNDS, |bounded| async move {
            let _bounded = bounded;
            std::future::pending::<Answer<()>>().await
        });
        assert_eq!(deaf.await.unwrap_err().code(), ErrorCode::GuestTimeout);
    }

    struct Pending;

    impl http_body::Body for Pending {
        type Data = Bytes;
        type Error = std::convert::Infallible;
        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            Poll::Pending
        }
    }
}
