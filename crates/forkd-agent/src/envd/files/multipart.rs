//! `multipart/form-data`: several files in one body.
//!
//! multer looks for boundaries. It takes whatever is there before it looks, and keeps what it has not understood yet; so what
//! it is given is metered: one piece at a time, and an end to it when nothing comes of it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_core::Stream;
use multer::Multipart;

use super::shared_body::SharedBody;
use crate::envd::rest::RestError;

/// What multer may hold without making a part or a chunk of it: headers, a boundary, and a piece or two.
const MAX_HELD: usize = 1 << 20;

#[derive(Debug)]
pub struct Parts {
    multipart: Multipart<'static>,
    held: Arc<AtomicUsize>,
}

/// One part; its file name is as it came, with all directories.
#[derive(Debug)]
pub struct Part {
    field: multer::Field<'static>,
    held: Arc<AtomicUsize>,
}

impl Parts {
    pub fn new(content_type: &str, body: SharedBody) -> Result<Self, RestError> {
        let boundary = multer::parse_boundary(content_type).map_err(|error| refused(&error))?;
        let held = Arc::<AtomicUsize>::default();
        let stream = Metered { body, held: Arc::clone(&held), resting: false };
        Ok(Self { multipart: Multipart::new(stream, boundary), held })
    }

    /// The next part that is a file: the one before must have been dropped.
    pub async fn next(&mut self) -> Result<Option<Part>, RestError> {
        loop {
            let field = self.multipart.next_field().await.map_err(|error| refused(&error))?;
            self.held.store(0, Ordering::Relaxed);
            let Some(field) = field else { return Ok(None) };
            if field.name() == Some("file") {
                return Ok(Some(Part { field, held: Arc::clone(&self.held) }));
            }
        }
    }
}

impl Part {
    /// Browsers, and clients that follow them, write quotes and line ends in a name as percent codes.
    pub fn file_name(&self) -> Option<String> {
        let name = self.field.file_name()?;
        Some(name.replace("%22", "\"").replace("%0D", "\r").replace("%0A", "\n"))
    }

    pub async fn chunk(&mut self) -> Result<Option<Bytes>, RestError> {
        let chunk = self.field.chunk().await.map_err(|error| refused(&error))?;
        self.held.store(0, Ordering::Relaxed);
        Ok(chunk)
    }
}

fn refused(error: &multer::Error) -> RestError {
    RestError::bad_request(format!("the multipart body is not understood: {error}"))
}

struct Metered {
    body: SharedBody,
    held: Arc<AtomicUsize>,
    resting: bool,
}

impl Stream for Metered {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if std::mem::take(&mut self.resting) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        match std::task::ready!(self.body.poll_next(context)) {
            Some(Ok(bytes)) => {
                self.resting = true;
                let held = self.held.fetch_add(bytes.len(), Ordering::Relaxed) + bytes.len();
                let too_much = held > MAX_HELD.max(2 * bytes.len());
                let item = if too_much {
                    Err(io::Error::other("a part has no end to its headers"))
                } else {
                    Ok(bytes)
                };
                Poll::Ready(Some(item))
            }
            Some(Err(error)) => Poll::Ready(Some(Err(error))),
            None => Poll::Ready(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    const TYPE: &str = "multipart/form-data; boundary=frontier";

    async fn read(body: String) -> Result<Vec<(Option<String>, String)>, RestError> {
        let mut parts = Parts::new(TYPE, SharedBody::new(Body::from(body)))?;
        let mut all = Vec::new();
        while let Some(mut part) = parts.next().await? {
            let mut text = Vec::new();
            while let Some(chunk) = part.chunk().await? {
                text.extend_from_slice(&chunk);
            }
            all.push((part.file_name(), String::from_utf8(text).unwrap()));
        }
        Ok(all)
    }

    fn part(disposition: &str, text: &str) -> String {
        format!("--frontier\r\nContent-Disposition: form-data; {disposition}\r\n\r\n{text}\r\n")
    }

    #[tokio::test]
    async fn names_keep_their_directories() {
        let body = part(r#"name="file"; filename="/home/user/a b.txt""#, "one")
            + &part(r#"name="other"; filename="/x""#, "skipped")
            + &part(r#"name="file"; filename="dir/é%22.txt""#, "two\r\n--front")
            + "--frontier--\r\n";
        let expected = [
            (Some("/home/user/a b.txt".to_owned()), "one".to_owned()),
            (Some("dir/é\".txt".to_owned()), "two\r\n--front".to_owned()),
        ];
        assert_eq!(read(body).await.unwrap(), expected);
    }

    #[tokio::test]
    async fn what_never_becomes_a_part_is_refused() {
        assert_eq!(read("--frontier\r\nX: ".to_owned()).await.unwrap_err().status(), 400);
        assert_eq!(read(part(r#"name="file"; filename="/a""#, "cut")).await.unwrap_err().status(), 400);
        assert!(Parts::new("multipart/form-data", SharedBody::new(Body::empty())).is_err());
    }

    #[tokio::test]
    async fn headers_without_an_end_are_not_collected() {
        struct Endless(usize);
        impl Stream for Endless {
            type Item = io::Result<Bytes>;
            fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
                self.0 += 1;
                assert!(self.0 < 100, "all of it was taken");
                Poll::Ready(Some(Ok(Bytes::from(vec![b'x'; 64 << 10]))))
            }
        }
        let mut parts = Parts::new(TYPE, SharedBody::new(Body::from_stream(Endless(0)))).unwrap();
        assert_eq!(parts.next().await.unwrap_err().status(), 400);
    }
}
