//! Who a guest is: what its agent is told before it serves anybody.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forkd_proto::agent::account::Account;
use forkd_proto::agent::identity::{CloseResponse, IdentityRequest, IdentityResponse, MAX_LINE, StepName};
use forkd_proto::agent::{Header, IDENTITY_PORT, Network, VERSION};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

use crate::agent::{Agent, AgentError};
use crate::guest::ConnectError;
use crate::sandbox::laps::CreateStep;

/// An identity. What is not there stays as it was in the parent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    /// Grows with every fork on the way from the first boot.
    pub generation: u64,
    pub id: String,
    /// Which of the children of one call.
    pub index: u64,
    pub hostname: Option<String>,
    pub machine_id: Option<String>,
    pub env: BTreeMap<String, String>,
    pub access_token: Option<String>,
    pub network: Option<Network>,
    /// For a guest that was booted without one.
    pub account: Option<Account>,
    /// Base64 of 64 bytes or more that no other sandbox gets.
    pub seed: Option<String>,
    /// Whether the guest is a copy of another one, whose connections and SSH host keys it must not use.
    pub renew: bool,
}

/// A guest has its identity, with what is to be said about it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Given {
    /// The interpreter contexts in which code was running. They have new random numbers; their hooks and environment follow when
    /// the code has ended.
    pub busy: Vec<String>,
    /// Those that rest, and take it with their next code.
    pub resting: Vec<String>,
    /// How long it took, in parts.
    pub times: Vec<(CreateStep, Duration)>,
}

/// As many as an agent has.
const MAX_CONTEXTS: usize = 256;
const MAX_CONTEXT_NAME: usize = 100;
const MAX_PROBLEM: usize = 300;
/// More than there are.
const MAX_STEPS: usize = 32;

/// Questions before the identity, over HTTP. The first one finds the agent's memory cold.
const QUESTIONS: usize = 2;

/// Gives a guest its identity and the time of day. From then on it serves.
pub async fn give(agent: &Agent, identity: &Identity, limit: Duration) -> Result<Given, AgentError> {
    forkd_proto::passes!();
    let given = agent.patiently(limit, || try_to_give(agent, identity));
    let (applied, mut times) =
        tokio::time::timeout(limit, given).await.map_err(|_| AgentError::Timeout(limit))??;
    times.extend(applied.steps.iter().take(MAX_STEPS).filter_map(|step| {
        Some((CreateStep::Agent(step.step), Duration::from_micros(step.took_us?).min(limit)))
    }));
    Ok(Given { times, ..judge(applied)? })
}

/// Closes a guest's gate and freezes its programs, before it is frozen itself: every child begins like this. Returns what could not
/// be frozen.
pub async fn close(agent: &Agent, limit: Duration) -> Result<Option<String>, AgentError> {
    Ok(problem_of(agent.post("/forkd/close", &(), limit).await?))
}

/// Agents that cannot freeze answer nothing, or nothing of note. The gate is closed all the same.
fn problem_of(answer: Value) -> Option<String> {
    let closed: CloseResponse = serde_json::from_value(answer).ok()?;
    Some(limited(closed.problem?))
}

fn limited(problem: String) -> String {
    problem.chars().take(MAX_PROBLEM).collect()
}

/// What an agent's answer means. A guest is hostile, so what is passed on of it is bounded.
fn judge(applied: IdentityResponse) -> Result<Given, AgentError> {
    // Agents that do not say which contexts are busy call that a failure of this step. Running code is no reason to refuse a
    // guest, so what else may have failed there is passed over, too: only those agents' snapshots are concerned.
    let tolerated = |step: StepName| applied.busy.is_none() && step == StepName::Interpreters;
    let mut failed = applied.steps.iter().filter(|step| !step.ok).peekable();
    let explained = failed.peek().is_some();
    let refused: Vec<_> = failed
        .filter(|step| !tolerated(step.step))
        .map(|step| format!("{:?}: {}", step.step, step.error.as_deref().unwrap_or("?")))
        .collect();
    if !applied.ok && (!refused.is_empty() || !explained) {
        return Err(AgentError::NotReady(refused.join("; ")));
    }
    let name = |name: String| name.chars().take(MAX_CONTEXT_NAME).collect();
    let names = |names: Vec<String>| names.into_iter().take(MAX_CONTEXTS).map(name).collect();
    let busy = names(applied.busy.unwrap_or_default());
    Ok(Given { busy, resting: names(applied.resting), times: Vec::new() })
}

type TimedResponse = (IdentityResponse, Vec<(CreateStep, Duration)>);

/// Given twice, an identity is taken once: the agent knows its generation.
async fn try_to_give(agent: &Agent, identity: &Identity) -> Result<TimedResponse, AgentError> {
    match in_one_message(agent, identity).await? {
        Some(told) => Ok(told),
        None => over_http(agent, identity).await,
    }
}

/// As agents take it that have a port for it; `None` from others. The agent speaks first, and finds out how late the answer's time is.
async fn in_one_message(agent: &Agent, identity: &Identity) -> Result<Option<TimedResponse>, AgentError> {
    let begun = Instant::now();
    let stream = match agent.guest().connect(IDENTITY_PORT).await {
        Err(ConnectError::Refused { .. }) => return Ok(None),
        stream => stream?,
    };
    let mut stream = BufReader::new(stream);
    let Some(Header { version }) = receive(&mut stream).await? else { return Ok(None) };
    if version != VERSION {
        return Err(AgentError::NotReady(format!(
            "agent protocol version {version}, expected {VERSION}; rebuild the snapshot"
        )));
    }
    let connected = Instant::now();
    let mut message = serde_json::to_vec(&request(identity, Duration::ZERO)).map_err(AgentError::Request)?;
    message.push(b'\n');
    stream.write_all(&message).await.map_err(AgentError::Line)?;
    let answer =
        receive(&mut stream).await?.ok_or_else(|| AgentError::Line(ErrorKind::UnexpectedEof.into()))?;
    let applied = match answer {
        Answer::Applied(applied) => applied,
        Answer::Refused { error } => return Err(AgentError::NotReady(limited(error))),
    };
    let times = vec![
        (CreateStep::Connect, connected.duration_since(begun)),
        (CreateStep::Identity, connected.elapsed()),
    ];
    Ok(Some((applied, times)))
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Answer {
    Applied(IdentityResponse),
    Refused { error: String },
}

/// One line of a guest's; `None` if it has closed the connection.
async fn receive<T: DeserializeOwned>(stream: &mut BufReader<UnixStream>) -> Result<Option<T>, AgentError> {
    let mut line = Vec::new();
    stream.take(MAX_LINE).read_until(b'\n', &mut line).await.map_err(AgentError::Line)?;
    if line.is_empty() {
        return Ok(None);
    }
    serde_json::from_slice(&line).map(Some).map_err(AgentError::Json)
}

/// As all agents take it.
async fn over_http(agent: &Agent, identity: &Identity) -> Result<TimedResponse, AgentError> {
    let begun = Instant::now();
    let mut connection = agent.connect().await?;
    let connected = Instant::now();
    // The guest's clock will be as late as the request takes to get there. A question of the same kind shows how long that is.
    let mut round_trip = Duration::ZERO;
    for _ in 0..QUESTIONS {
        let asked = Instant::now();
        connection.get::<Value>("/forkd/ready").await?;
        round_trip = asked.elapsed();
    }
    let asked = Instant::now();
    let applied = connection.post("/forkd/identity", &request(identity, round_trip / 2)).await?;
    let times = vec![
        (CreateStep::Connect, connected.duration_since(begun)),
        (CreateStep::Ask, asked.duration_since(connected)),
        (CreateStep::Identity, asked.elapsed()),
    ];
    Ok((applied, times))
}

fn request(identity: &Identity, delay: Duration) -> IdentityRequest {
    let then = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() + delay;
    let Identity {
        generation,
        id,
        index,
        hostname,
        machine_id,
        env,
        access_token,
        network,
        account,
        seed,
        renew,
    } = identity.clone();
    IdentityRequest {
        version: VERSION,
        generation,
        id,
        index,
        hostname,
        machine_id,
        unix_time_ns: u64::try_from(then.as_nanos()).ok(),
        env,
        access_token,
        network,
        account,
        seed,
        renew,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn answer(text: &str) -> IdentityResponse {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn running_code_is_reported_and_refuses_nobody() {
        let busy = answer(include_str!("../../forkd-proto/protocol/gen-1/identity-response-busy.json"));
        assert_eq!(judge(busy).unwrap(), Given { busy: vec!["default".into()], ..Given::default() });
        // As agents say it that know no other way.
        let step =
            json!({ "step": "interpreters", "ok": false, "error": "context default: code was running" });
        let mut old = json!({ "version": 1, "generation": 2, "ok": false, "steps": [step] });
        assert_eq!(judge(answer(&old.to_string())).unwrap(), Given::default());
        old["busy"] = json!([]);
        let refused = judge(answer(&old.to_string())).unwrap_err();
        assert!(matches!(refused, AgentError::NotReady(why) if why.contains("Interpreters")));
    }

    #[test]
    fn any_answer_to_a_close_will_do() {
        for text in
            ["null", "{}", "[1]", include_str!("../../forkd-proto/protocol/gen-1/close-response.json")]
        {
            assert_eq!(problem_of(serde_json::from_str(text).unwrap()), None, "{text}");
        }
        let text = include_str!("../../forkd-proto/protocol/gen-1/close-response-late.json");
        let mut late: Value = serde_json::from_str(text).unwrap();
        assert!(problem_of(late.clone()).is_some_and(|why| why.contains("not frozen")));
        late["problem"] = json!("x".repeat(1000));
        assert_eq!(problem_of(late).map(|why| why.len()), Some(MAX_PROBLEM));
    }

    #[test]
    fn other_failures_refuse() {
        let network = answer(include_str!("../../forkd-proto/protocol/gen-1/identity-response.json"));
        assert!(matches!(judge(network), Err(AgentError::NotReady(why)) if why.contains("Network")));
        let unexplained = answer(r#"{ "version": 1, "generation": 1, "ok": false, "steps": [] }"#);
        assert!(judge(unexplained).is_err());
    }

    #[test]
    fn it_is_written_as_agents_of_the_first_generation_read_it() {
        let text = include_str!("../../forkd-proto/protocol/gen-1/identity-request.json");
        let mut expected: Value = serde_json::from_str(text).unwrap();
        let word = |name: &str| expected[name].as_str().map(str::to_owned);
        let identity = Identity {
            generation: expected["generation"].as_u64().unwrap(),
            id: word("id").unwrap(),
            index: expected["index"].as_u64().unwrap(),
            hostname: word("hostname"),
            machine_id: word("machine_id"),
            env: serde_json::from_value(expected["env"].clone()).unwrap(),
            access_token: word("access_token"),
            network: serde_json::from_value(expected["network"].clone()).unwrap(),
            account: None,
            seed: word("seed"),
            renew: false,
        };
        let mut written: Value = serde_json::to_value(request(&identity, Duration::ZERO)).unwrap();
        assert!(written["unix_time_ns"].as_u64() > expected["unix_time_ns"].as_u64());
        for message in [&mut written, &mut expected] {
            message["unix_time_ns"] = json!(0);
        }
        assert_eq!(written, expected);
    }

    /// A guest that answers the one who connects to the identity's port with these lines, after reading one for each but the first;
    /// and all others with an agent of old.
    fn guest(lines: Option<&'static [&'static str]>) -> (tempfile::TempDir, Agent) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("vsock");
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let mut client = BufReader::new(client);
                let mut line = String::new();
                client.read_line(&mut line).await.unwrap();
                if line != format!("CONNECT {IDENTITY_PORT}\n") {
                    client.write_all(b"OK 1\n").await.unwrap();
                    old_agent(client).await;
                    continue;
                }
                let Some(lines) = lines else { continue };
                client.write_all(b"OK 1\n").await.unwrap();
                for (index, answer) in lines.iter().enumerate() {
                    if index > 0 {
                        line.clear();
                        client.read_line(&mut line).await.unwrap();
                        assert_eq!(serde_json::from_str::<Value>(&line).unwrap()["id"], "i1");
                    }
                    client.write_all(answer.as_bytes()).await.unwrap();
                }
            }
        });
        (directory, Agent::new(crate::guest::Guest::new(path)))
    }

    async fn old_agent(mut client: BufReader<UnixStream>) {
        let mut line = String::new();
        while client.read_line(&mut line).await.is_ok_and(|read| read > 0) {
            let body = match line.as_str() {
                "GET /forkd/ready HTTP/1.1\r\n" => "{}",
                "POST /forkd/identity HTTP/1.1\r\n" => {
                    r#"{"version":1,"generation":1,"ok":true,"steps":[],"busy":["old"]}"#
                }
                _ => {
                    line.clear();
                    continue;
                }
            };
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            client.write_all(answer.as_bytes()).await.unwrap();
            line.clear();
        }
    }

    #[tokio::test]
    async fn it_is_given_in_one_message_or_as_of_old() {
        let identity = Identity { id: "i1".into(), generation: 1, ..Identity::default() };
        let limit = Duration::from_secs(10);
        let new: &[&str] = &[
            "{\"version\":1}\n",
            "{\"version\":1,\"generation\":1,\"ok\":true,\"steps\":[{\"step\":\"clock\",\"ok\":true,\"took_us\":7}]}\n",
        ];
        let (_directory, agent) = guest(Some(new));
        let given = give(&agent, &identity, limit).await.unwrap();
        let steps: Vec<_> = given.times.iter().map(|(step, _)| *step).collect();
        assert_eq!(steps, [CreateStep::Connect, CreateStep::Identity, CreateStep::Agent(StepName::Clock)]);
        assert_eq!(given.times[2].1, Duration::from_micros(7));
        // Nothing listens there, or an agent that does not know this port.
        for old in [None, Some(&[][..])] {
            let (_directory, agent) = guest(old);
            assert_eq!(give(&agent, &identity, limit).await.unwrap().busy, ["old"]);
        }
    }

    #[tokio::test]
    async fn nonsense_at_its_port_is_refused() {
        let identity = Identity { id: "i1".into(), generation: 1, ..Identity::default() };
        let limit = Duration::from_secs(10);
        let refused: &[&str] = &["{\"version\":1}\n", "{\"error\":\"generation 1 is older\"}\n"];
        for (lines, says) in [
            (&["{\"version\":9}\n"][..], "version 9"),
            (&["no\n"][..], "cannot parse"),
            (&["{\"version\":1}\n", "[1]\n"][..], "cannot parse"),
            (refused, "is older"),
        ] {
            let (_directory, agent) = guest(Some(lines));
            let error = give(&agent, &identity, limit).await.unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}
