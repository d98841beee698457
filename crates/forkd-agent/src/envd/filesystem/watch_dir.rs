//! `WatchDir`: events as a stream.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::Response;
use forkd_envd::connect::{Code, ConnectError, message};
use forkd_envd::filesystem::{WATCH_KEEPALIVE, WATCH_START, WatchMessage, WatchRequest};

use super::Caller;
use super::watch::{Options, Watch};
use crate::agent::Agent;
use crate::connect::{self, Sender, Stall, error_response};

/// A client that reads nothing for this long loses the stream; until then the kernel keeps the events.
const PATIENCE: Duration = Duration::from_secs(30);

pub async fn watch_dir(State(agent): State<Arc<Agent>>, request: Request) -> Response {
    serve(&agent, request).await.unwrap_or_else(|error| error_response(&error))
}

async fn serve(agent: &Agent, request: Request) -> Result<Response, ConnectError> {
    let (headers, request) = connect::read_request::<WatchRequest>(request).await?;
    let path = Caller::new(agent, &headers).await?.resolve(&request.path)?;
    let watch = Watch::open(path, options(&request)).await?;
    let (sender, response) = connect::respond(&headers, WATCH_KEEPALIVE)?;
    tokio::spawn(async move {
        match carry(watch, &sender).await {
            Some(error) => sender.finish(Err(error)),
            None => sender.finish(Ok(())),
        }
    });
    Ok(response)
}

pub fn options(request: &WatchRequest) -> Options {
    Options {
        recursive: request.recursive,
        include_entry: request.include_entry,
        allow_network_mounts: request.allow_network_mounts,
    }
}

/// Until the client is gone, which is nothing, or something goes wrong.
async fn carry(mut watch: Watch, sender: &Sender) -> Option<ConnectError> {
    if let Err(stall) = sender.send(message(WATCH_START), PATIENCE).await {
        return too_slow(&stall);
    }
    loop {
        let events = tokio::select! {
            () = sender.closed() => return None,
            events = watch.next() => events,
        };
        let events = match events {
            Ok(events) => events,
            Err(error) => return Some(error),
        };
        for event in events {
            let json = serde_json::to_vec(&WatchMessage { filesystem: event }).unwrap_or_default();
            if let Err(stall) = sender.send(message(&json), PATIENCE).await {
                return too_slow(&stall);
            }
        }
    }
}

fn too_slow(stall: &Stall) -> Option<ConnectError> {
    let text = || format!("the client read nothing for {} s", PATIENCE.as_secs());
    (*stall == Stall::Slow).then(|| ConnectError::new(Code::ResourceExhausted, text()))
}
