//! One connection, from its first byte to its last.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};

use super::stream::{AnswerBody, Answers, Stream};
use crate::app::Shared;
use crate::auth::Peer;

/// What hyper keeps of a request's head and of an answer that is not read.
const BUFFER: usize = 64 << 10;

/// Serves HTTP/1.1 until the client or the daemon has had enough. Not HTTP/2: it would multiply what one client can make
/// the daemon hold, and all that it would spare is connections to the same host.
pub(crate) async fn serve<S>(stream: S, peer: Peer, app: Shared, router: Router)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    forkd_proto::passes!();
    let _counted = app.metrics.connection();
    let answers = Arc::new(Answers::default());
    let stream = Stream::new(stream, app.limits.write_time, Arc::clone(&answers));
    let router = TowerToHyperService::new(router);
    let service = service_fn(|mut request: Request<Incoming>| {
        let answer = answers.begin();
        request.extensions_mut().insert(peer.clone());
        let (response, answers) = (router.call(request), Arc::clone(&answers));
        async move {
            let response = response.await?;
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                answers.upgraded();
            }
            Ok::<_, Infallible>(response.map(|body| AnswerBody::new(body, answer)))
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(app.limits.head_time)
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = app.stopping() => {
            // What is being answered is answered; nothing new is taken, half a head least of all.
            if !answers.any() {
                return;
            }
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(error = %crate::error::chain(&error), "a connection failed");
    }
}
