//! Running programs that any client has started through the agent.

use std::time::Duration;

use forkd_api::exec::ExecEvent;
use forkd_envd::Empty;
use forkd_envd::process::{CONNECT, LIST, ListResponse, ProcessInfo, SelectRequest, Selector};

use super::{ExecError, Input, Program, Remote, Running, begin, open};
use crate::agent::Agent;

const CALL: Duration = Duration::from_secs(30);

/// The programs that clients have started and that run, by number.
pub async fn list(agent: &Agent) -> Result<Vec<ProcessInfo>, ExecError> {
    let answer: ListResponse = agent.post(LIST, &Empty {}, CALL).await?;
    Ok(answer.processes)
}

/// Starts a program in the background and returns its number. With `stdin`, it can be written to.
pub async fn detach(agent: &Agent, program: &Program<'_>, stdin: bool) -> Result<u32, ExecError> {
    match begin(agent, program, stdin, None).await?.next().await? {
        ExecEvent::Started { pid } => Ok(pid),
        other => Err(ExecError::Protocol(format!(
            "the message {other:?} of the program came before it was started"
        ))),
    }
}

/// Reads the output of a running program from now on, beside its other readers.
pub async fn connect(agent: &Agent, pid: u32) -> Result<Running, ExecError> {
    open(agent, CONNECT, &SelectRequest { process: Selector::pid(pid) }, None, None).await
}

impl Remote {
    /// A program by its number.
    pub fn of(agent: &Agent, pid: u32) -> Remote {
        Remote { agent: agent.clone(), pid }
    }
}

impl Input {
    /// What a program reads, which runs already. At a terminal it is typed.
    pub fn of(agent: &Agent, pid: u32, terminal: bool) -> Input {
        Input { agent: agent.clone(), pid, terminal, connection: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::answering;

    #[tokio::test]
    async fn programs_are_listed_and_one_that_is_not_there_is_said_to_be() {
        let body = r#"{"processes":[{"config":{"cmd":"sh","args":["-c"]},"pid":7,"terminal":true},
            {"config":{"cmd":"x"},"pid":8,"tag":"t"}]}"#;
        let (_directory, agent, request) = answering("200 OK", body.into());
        let listed = list(&agent).await.unwrap();
        assert!(request.await.unwrap().starts_with("POST /process.Process/List "));
        let seen: Vec<_> = listed.iter().map(|process| (process.pid, process.terminal)).collect();
        assert_eq!(seen, [(7, true), (8, false)]);

        let refused = br#"{"code":"not_found","message":"process with pid 9 not found"}"#;
        let (_directory, agent, request) = answering("404 Not Found", refused.to_vec());
        let error = connect(&agent, 9).await.unwrap_err();
        assert!(matches!(&error, ExecError::NoProcess(text) if text.contains("pid 9")), "{error:?}");
        assert!(request.await.unwrap().contains(r#"{"process":{"pid":9}}"#));
    }
}
