//! Lists come by pages: at most a hundred, and a header that says where the next one begins.

use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;

use forkd_daemon::error::Answer;
use forkd_daemon::operations::checks::within;

const NEXT: HeaderName = HeaderName::from_static("x-next-token");
const PAGE: u32 = 100;

/// How many a page has.
pub(super) fn limit(wanted: Option<u32>) -> Answer<usize> {
    let limit = within("limit", wanted.unwrap_or(PAGE), 1..=PAGE)?;
    Ok(usize::try_from(limit).unwrap_or(usize::MAX))
}

/// The page, with where the next one begins, if there is one.
pub(super) fn with_next(mut page: Response, next: Option<String>) -> Response {
    if let Some(next) = next.and_then(|next| HeaderValue::try_from(next).ok()) {
        page.headers_mut().insert(NEXT, next);
    }
    page
}
