//! A protocol that the daemon speaks beside its own, on the same ports: E2B's, which is `forkd-e2b`'s.
//!
//! The gate asks it about every request, so that callers, audit log, metrics and limits are the same for both.

use std::fmt;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::Uri;
use axum::response::Response;
use forkd_store::Tag;
use futures_util::future::BoxFuture;

use crate::app::{App, Shared};
use crate::auth::{Caller, Peer};

/// Where a request belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plane {
    /// forkd's own API.
    Own,
    /// The protocol's own routes.
    Control,
    /// A port of a sandbox.
    Data(Aim),
}

/// The sandbox and port that a request is for, or why it is for none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Aim {
    Port {
        id: String,
        port: u16,
        /// Whether the host name says so: it is the guest's own then.
        by_name: bool,
    },
    Wrong(&'static str),
}

/// What the daemon asks of such a protocol.
pub trait Protocol: fmt::Debug + Send + Sync {
    /// The routes of its control plane.
    fn routes(self: Arc<Self>, app: &Shared) -> Router<Shared>;

    /// Where a request belongs.
    fn plane(&self, app: &App, request: &Request) -> Plane;

    /// Who has sent a request to the control plane with a link instead of a token.
    fn link_caller(&self, uri: &Uri) -> Option<Caller>;

    /// Gives an answer of the control plane its shape.
    fn dress(&self, response: Response) -> Response;

    /// Passes a request on to a port of a sandbox.
    fn serve(
        self: Arc<Self>,
        app: Shared,
        peer: Peer,
        aim: Aim,
        request: Request,
    ) -> BoxFuture<'static, Response>;

    /// The snapshot that one of its names means.
    fn snapshot(&self, name: &str) -> Option<Tag>;

    /// What it does unasked, until the daemon stops: it removes what an earlier daemon did not bring to its end, and measures.
    fn chores(self: Arc<Self>, app: Shared) -> BoxFuture<'static, ()>;
}

/// No protocol but the daemon's own.
#[derive(Debug)]
pub struct OwnOnly;

impl Protocol for OwnOnly {
    fn routes(self: Arc<Self>, _: &Shared) -> Router<Shared> {
        Router::new()
    }

    fn plane(&self, _: &App, _: &Request) -> Plane {
        Plane::Own
    }

    fn link_caller(&self, _: &Uri) -> Option<Caller> {
        None
    }

    fn dress(&self, response: Response) -> Response {
        response
    }

    fn serve(self: Arc<Self>, _: Shared, _: Peer, _: Aim, _: Request) -> BoxFuture<'static, Response> {
        Box::pin(async { Response::default() })
    }

    fn snapshot(&self, _: &str) -> Option<Tag> {
        None
    }

    fn chores(self: Arc<Self>, _: Shared) -> BoxFuture<'static, ()> {
        Box::pin(async {})
    }
}
