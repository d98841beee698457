//! Who may touch files: whoever shows the token, or a signature made with it.
//!
//! ```text
//!  v1_ + base64 without padding of SHA-256 of   path ":" read|write ":" user ":" token [":" expiration]
//! ```

use std::time::{SystemTime, UNIX_EPOCH};

use axum::http::HeaderMap;
use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use sha2::{Digest, Sha256};

use super::FileQuery;
use crate::agent::Agent;
use crate::envd::caller::{same, token_is_right};
use crate::envd::rest::RestError;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Read,
    Write,
}

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
    let (Some(token), false) = (agent.settings().access_token, headers.contains_key("x-access-token")) else {
        return Err(RestError::unauthorized("the access token is wrong"));
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    signed(query, operation, &token, now)
}

fn signed(query: &FileQuery, operation: Operation, token: &str, now: u64) -> Result<(), RestError> {
    let shown = query
        .signature
        .as_deref()
        .ok_or_else(|| RestError::unauthorized("there is neither token nor signature"))?;
    let path = query.path.as_deref().unwrap_or_default();
    let user = query.username.as_deref().unwrap_or_default();
    let expected = signature(path, operation, user, token, query.signature_expiration);
    if !same(shown.as_bytes(), expected.as_bytes()) {
        return Err(RestError::unauthorized("the signature is wrong"));
    }
    match query.signature_expiration {
        Some(expiration) if expiration < now => Err(RestError::unauthorized("the signature has expired")),
        _ => Ok(()),
    }
}

fn signature(path: &str, operation: Operation, user: &str, token: &str, expiration: Option<u64>) -> String {
    let operation = match operation {
        Operation::Read => "read",
        Operation::Write => "write",
    };
    let mut text = format!("{path}:{operation}:{user}:{token}");
    if let Some(expiration) = expiration {
        text.push_str(&format!(":{expiration}"));
    }
    format!("v1_{}", STANDARD_NO_PAD.encode(Sha256::digest(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_for_one_path_one_user_one_operation_and_a_time() {
        // Made with coreutils: printf '/a:read:user:secret:100' | sha256sum | xxd -r -p | base64
        let query = FileQuery {
            path: Some("/a".into()),
            username: Some("user".into()),
            signature: Some(signature("/a", Operation::Read, "user", "secret", Some(100))),
            signature_expiration: Some(100),
            whole: false,
        };
        assert_eq!(query.signature.as_deref(), Some("v1_b/CTCIP7L66xz0TGUikmdJS4J4CAvso9qxLZETN/KwY"));
        assert!(signed(&query, Operation::Read, "secret", 100).is_ok());
        assert!(signed(&query, Operation::Read, "secret", 101).is_err());
        assert!(signed(&query, Operation::Write, "secret", 100).is_err());
        assert!(signed(&query, Operation::Read, "other", 100).is_err());
        assert!(
            signed(&FileQuery { path: Some("/b".into()), ..query.clone() }, Operation::Read, "secret", 1)
                .is_err()
        );
        assert!(
            signed(&FileQuery { signature_expiration: None, ..query.clone() }, Operation::Read, "secret", 1)
                .is_err()
        );
        assert!(signed(&FileQuery { signature: None, ..query }, Operation::Read, "secret", 1).is_err());
    }
}
