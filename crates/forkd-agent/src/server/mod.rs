//! HTTP/1.1 over anything that accepts connections.
//!
//! A connection costs a task and little memory; how many there may be is bounded. There are no timers on a connection: the
//! other side is the host, which owns the guest, and a timer per idle connection would wake the guest for nothing.

mod listener;
mod memory;
mod peer;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::sync::Semaphore;

pub use listener::{Accept, listen_vsock};
pub use peer::Peer;

/// A thousand processes with a stream each fit twice.
const MAX_CONNECTIONS: usize = 2048;
/// What hyper keeps of a response that is not read. Its own default is 400 KiB.
const WRITE_BUFFER: usize = 64 << 10;
/// After a refused accept (no descriptors left, mostly), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts connections and answers them, without end.
pub async fn serve<A: Accept>(mut listener: A, router: Router) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let crowd = Arc::new(memory::Crowd::default());
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok(stream) => stream,
            Err(_) => {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let crowd = Arc::clone(&crowd);
        crowd.enter();
        let peer = Peer::default();
        let stream = peer::Watched::new(stream, peer.clone(), A::is_transport_reset);
        let routes = TowerToHyperService::new(router.clone());
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(peer.clone());
            routes.call(request)
        });
        tokio::spawn(async move {
            let connection = http1::Builder::new()
                .max_buf_size(WRITE_BUFFER)
                .serve_connection(TokioIo::new(stream), service);
            // The peer went away or did not speak HTTP; it has been told what can be told. Upgrades serve tunnels.
            let _ = connection.with_upgrades().await;
            drop(place);
            if crowd.leave() {
                memory::give_back();
                // What the last of them had is let go by their tasks a moment later.
                tokio::time::sleep(memory::AFTERWARDS).await;
                memory::give_back();
            }
        });
    }
}
