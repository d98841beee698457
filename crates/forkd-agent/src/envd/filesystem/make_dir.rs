//! `MakeDir`: a new directory, with those above it.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;

use super::messages::PathRequest;
use super::{Caller, owned, stat};
use crate::agent::Agent;
use crate::connect::{Code, ConnectError, unary};
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
                Err(ConnectError::new(Code::AlreadyExists, format!("{} exists", wanted.display())))
            }
            Ok(_) => Err(ConnectError::invalid(format!(
                "{} already exists and is not a directory",
                wanted.display()
            ))),
            Err(_) => owned::make_directories(&wanted, &caller.user)
                .map_err(|error| ConnectError::system(&wanted.display().to_string(), &error)),
        });
        made.await.map_err(|error| ConnectError::system(&subject, &error))??;
        stat::entry_response(path).await
    })
    .await
}
