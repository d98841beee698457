//! `MakeDir`: a new directory, with those above it.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use forkd_envd::connect::{Code, ConnectError};
use forkd_envd::filesystem::PathRequest;

use super::{Caller, owned, stat};
use crate::agent::Agent;
use crate::connect::{system_error, unary};
use crate::runtime::blocking;

pub async fn make_dir(State(agent): State<Arc<Agent>>, request: Request) -> Response {
    let headers = request.headers().clone();
    unary(request, |message: PathRequest| async move {
        let caller = Caller::new(&agent, &headers).await?;
        let path = caller.resolve(&message.path)?;
        let subject = path.display().to_string();
        let wanted = path.clone();
        let made = blocking(move || match wanted.metadata() {
            Ok(found) if found.is_dir() => {
                let message = format!("directory already exists: {}", wanted.display());
                Err(ConnectError::new(Code::AlreadyExists, message))
            }
            Ok(_) => Err(ConnectError::invalid(format!(
                "path already exists but it is not a directory: {}",
                wanted.display()
            ))),
            Err(_) => owned::make_directories(&wanted, &caller.user)
                .map_err(|error| system_error(&wanted.display().to_string(), &error)),
        });
        made.await.map_err(|error| system_error(&subject, &error))??;
        stat::entry_response(path).await
    })
    .await
}
