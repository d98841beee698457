//! `SendSignal`: to the process and to everything in its process group.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::Value;

use super::messages::{Empty, SendSignalRequest};
use crate::agent::Agent;
use crate::children::Signal;
use crate::connect::{ConnectError, unary};

pub async fn send_signal(State(agent): State<Arc<Agent>>, request: Request) -> Response {
    unary(request, |message: SendSignalRequest| async move {
        let signal = signal(&message.signal)?;
        let process = agent.processes.running(&message.process)?;
        let gone = || ConnectError::not_found(format!("process with pid {} has ended", process.pid));
        agent.children.signal_group(process.pid, signal).await.map_err(|_| gone())?;
        Ok(Empty {})
    })
    .await
}

/// Protobuf's JSON has enums by name or by number; here the numbers are the system's. Official clients know `SIGNAL_SIGKILL` and
/// `SIGNAL_SIGTERM`; the others are for terminals.
fn signal(value: &Value) -> Result<Signal, ConnectError> {
    let named = value.as_str().and_then(|text| text.strip_prefix("SIGNAL_SIG")).and_then(Signal::named);
    let numbered = || value.as_u64().and_then(Signal::numbered);
    named.or_else(numbered).ok_or_else(|| {
        ConnectError::invalid(format!("signal {value} is none that is sent, as SIGNAL_SIGKILL is"))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn signals_have_names_and_numbers() {
        for (value, is) in [
            (json!("SIGNAL_SIGKILL"), Some(Signal::KILL)),
            (json!(2), Some(Signal::INT)),
            (json!("SIGNAL_SIGINT"), Some(Signal::INT)),
            (json!("SIGKILL"), None),
            (json!("SIGNAL_SIGSEGV"), None),
            (json!(0), None),
            (json!(null), None),
            (json!(-9), None),
        ] {
            assert_eq!(signal(&value).ok(), is, "{value}");
        }
        assert_eq!(signal(&json!("SIGNAL_SIGHUP")), signal(&json!(1)));
    }
}
