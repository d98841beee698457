//! Access to files: with the token, or a signature made with it.

use std::time::{SystemTime, UNIX_EPOCH};

use axum::http::HeaderMap;
use forkd_envd::caller::ACCESS_TOKEN;
use forkd_envd::files::FileQuery;
use forkd_envd::signature::Operation;

use crate::agent::Agent;
use crate::envd::caller::token_is_right;
use crate::envd::rest::RestError;

/// A token in the headers wins over a signature.
pub fn check(
    agent: &Agent,
    headers: &HeaderMap,
    query: &FileQuery,
    operation: Operation,
) -> Result<(), RestError> {
    if token_is_right(agent, headers) {
        return Ok(());
    }
    let (Some(token), false) = (agent.settings().access_token, headers.contains_key(ACCESS_TOKEN)) else {
        return Err(RestError::unauthorized("the access token is wrong"));
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    query.check_signature(&token, operation, now).map_err(|error| RestError::unauthorized(error.to_string()))
}
