//! The contexts of a guest's interpreters.

use std::time::Duration;

use forkd_envd::interpreter::{
    CONTEXTS, ContextInfo, CreateContextRequest, InterruptRequest, InterruptResponse,
};
use http_body_util::{BodyExt, Limited};
use hyper::{Method, StatusCode};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;

use crate::agent::{Agent, AgentError};
use crate::eval::{self, EvalError};

/// What a guest gets to answer; an interpreter that starts needs the most of it.
const ANSWER: Duration = Duration::from_secs(120);
const MAX_ANSWER: usize = 1 << 20;

pub async fn list(agent: &Agent) -> Result<Vec<ContextInfo>, EvalError> {
    read(ask(agent, Method::GET, CONTEXTS, Vec::new(), ANSWER).await?)
}

/// Makes a context, whose interpreter has started then.
pub async fn create(agent: &Agent, wanted: &CreateContextRequest) -> Result<ContextInfo, EvalError> {
    let body = serde_json::to_vec(wanted).map_err(AgentError::Request)?;
    read(ask(agent, Method::POST, CONTEXTS, body, ANSWER).await?)
}

/// Ends a context and the code that runs in it.
pub async fn remove(agent: &Agent, id: &str) -> Result<(), EvalError> {
    ask(agent, Method::DELETE, &path(id), Vec::new(), ANSWER).await.map(drop)
}

/// Gives a context a new interpreter.
pub async fn restart(agent: &Agent, id: &str) -> Result<(), EvalError> {
    ask(agent, Method::POST, &(path(id) + "/restart"), Vec::new(), ANSWER).await.map(drop)
}

/// Interrupts the code that runs in a context. Whether it had to be ended with its interpreter.
pub async fn interrupt(agent: &Agent, id: &str, grace: Duration) -> Result<bool, EvalError> {
    let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
    let body = serde_json::to_vec(&InterruptRequest { grace_ms }).map_err(AgentError::Request)?;
    let asked = ask(agent, Method::POST, &(path(id) + "/interrupt"), body, grace + ANSWER).await;
    let answer = asked.map_err(|error| match error {
        // A router that does not know the path has no words for it; one that does not know the context has.
        EvalError::Refused { status: StatusCode::NOT_FOUND, message } if message.is_empty() => {
            EvalError::Refused {
                status: StatusCode::BAD_REQUEST,
                message: "the agent of this sandbox's snapshot is too old to interrupt code; restart the context instead"
                    .into(),
            }
        }
        error => error,
    })?;
    read::<InterruptResponse>(answer).map(|answer| answer.restarted)
}

fn path(id: &str) -> String {
    format!("{CONTEXTS}/{}", utf8_percent_encode(id, NON_ALPHANUMERIC))
}

async fn ask(
    agent: &Agent,
    method: Method,
    path: &str,
    body: Vec<u8>,
    limit: Duration,
) -> Result<Vec<u8>, EvalError> {
    let asked = async {
        let body = eval::ask(agent, method, path, body).await?;
        let body = Limited::new(body, MAX_ANSWER).collect().await.map_err(AgentError::Answer)?;
        Ok(body.to_bytes().to_vec())
    };
    tokio::time::timeout(limit, asked).await.unwrap_or(Err(AgentError::Timeout(limit).into()))
}

fn read<T: DeserializeOwned>(body: Vec<u8>) -> Result<T, EvalError> {
    serde_json::from_slice(&body).map_err(|error| AgentError::Json(error).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::answering;

    #[tokio::test]
    async fn contexts_are_named_safely_and_early_agents_are_told_apart() {
        let (_directory, agent, request) = answering("200 OK", b"{\"restarted\":true}".to_vec());
        assert!(interrupt(&agent, "a/../b?", Duration::from_secs(2)).await.unwrap());
        let request = request.await.unwrap();
        assert!(request.starts_with("POST /contexts/a%2F%2E%2E%2Fb%3F/interrupt "), "{request}");
        assert!(request.contains("{\"grace_ms\":2000}"), "{request}");

        let (_directory, agent, _request) = answering("404 Not Found", Vec::new());
        let error = interrupt(&agent, "x", Duration::ZERO).await.unwrap_err();
        assert!(error.to_string().contains("too old"), "{error}");
        let (_directory, agent, _request) = answering("404 Not Found", b"Context x not found".to_vec());
        let error = interrupt(&agent, "x", Duration::ZERO).await.unwrap_err();
        assert!(matches!(error, EvalError::Refused { status: StatusCode::NOT_FOUND, .. }), "{error}");

        let body = br#"[{"id":"default","language":"python","cwd":"/root"}]"#.to_vec();
        let (_directory, agent, _request) = answering("200 OK", body);
        assert!(!list(&agent).await.unwrap()[0].busy);
    }
}
