//! `/forkd/place` and `/forkd/pack`: trees of files into and out of a guest, as tar archives; `/forkd/grow` (`grow.rs`): room
//! for them.
//!
//! ```text
//!   host ── POST /forkd/place?owner=app:app ── tar ──▶ place ──▶ files of the guest
//!   host ── POST /forkd/pack {sources, …} ◀── tar ─── pack ◀─── files of the guest
//! ```
//!
//! Builds of images use these. Nothing of the image is needed, not even a shell, and names of users are those that
//! the image knows. All paths are the guest's own, so no link leads out of it. The archive is never whole in memory.

mod grow;
mod http;
mod pack;
mod pattern;
mod pipe;
mod place;

use axum::Router;
use axum::routing::post;

pub fn routes() -> Router {
    Router::new()
        .route("/forkd/place", post(http::place))
        .route("/forkd/pack", post(http::pack))
        .route("/forkd/grow", post(grow::grow))
}
