//! Who calls: the access token, and the user that a call is for.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use forkd_envd::HEALTH;
use forkd_envd::caller::{ACCESS_TOKEN, same_secret, user_in};
use forkd_envd::connect::{Code, ConnectError};
use forkd_envd::files::FILES;
use forkd_envd::init::INIT;

use super::rest::RestError;
use crate::agent::Agent;
use crate::connect::error_response;
use crate::runtime::blocking;
use crate::users::{User, Users};

/// Lets a request pass that shows the access token, or needs none: `/health` is for everybody, files may be signed for
/// (checked where the path is known), and `/init` looks into its message.
pub async fn check_token(State(agent): State<Arc<Agent>>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let own_check = matches!(path, HEALTH | FILES | INIT);
    if own_check || token_is_right(&agent, request.headers()) {
        return next.run(request).await;
    }
    let message = "the access token is missing or wrong";
    if path.contains('.') {
        error_response(&ConnectError::new(Code::Unauthenticated, message))
    } else {
        RestError::unauthorized(message).into_response()
    }
}

/// Whether the request shows the sandbox's token, or the sandbox has no token.
pub fn token_is_right(agent: &Agent, headers: &HeaderMap) -> bool {
    let Some(expected) = agent.settings().access_token else { return true };
    headers.get(ACCESS_TOKEN).is_some_and(|shown| same_secret(shown.as_bytes(), expected.as_bytes()))
}

/// The user of an RPC: `Authorization: Basic base64("name:")`, or the default.
pub async fn user(agent: &Agent, headers: &HeaderMap) -> Result<User, ConnectError> {
    let name = basic_name(headers)?;
    let found = find_user(agent, name).await;
    found.map_err(|NoUser(name)| {
        ConnectError::new(Code::Unauthenticated, format!("invalid username: '{name}'"))
    })
}

/// A user by name, or the default one.
pub async fn find_user(agent: &Agent, name: Option<String>) -> Result<User, NoUser> {
    let name = name.filter(|name| !name.is_empty()).unwrap_or_else(|| agent.settings().default_user);
    let asked = name.clone();
    let found = blocking(move || {
        let users = Users::read();
        // A sandbox that was told nothing: E2B's user where the image has it.
        if name.is_empty() { users.find("user").or_else(|_| users.find("root")) } else { users.find(&name) }
    });
    found.await.ok().and_then(Result::ok).ok_or(NoUser(asked))
}

/// A user that the guest does not have, in the words of E2B's agent.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("error looking up user '{0}': user: unknown user {0}")]
pub struct NoUser(String);

fn basic_name(headers: &HeaderMap) -> Result<Option<String>, ConnectError> {
    let Some(value) = headers.get(header::AUTHORIZATION) else { return Ok(None) };
    let name = value.to_str().ok().and_then(user_in);
    name.map(Some)
        .ok_or_else(|| ConnectError::new(Code::Unauthenticated, "the authorization is not Basic with a user"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(value: &'static str) -> Result<Option<String>, ConnectError> {
        basic_name(&HeaderMap::from_iter([(header::AUTHORIZATION, header::HeaderValue::from_static(value))]))
    }

    #[test]
    fn the_user_is_in_basic_authorization() {
        assert_eq!(basic_name(&HeaderMap::new()), Ok(None));
        assert_eq!(name("Basic dXNlcjo="), Ok(Some("user".into())));
        assert!(name("Bearer dXNlcjo=").is_err());
    }
}
