//! Who a guest is: what its agent is told before it serves anybody.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forkd_proto::agent::account::Account;
use forkd_proto::agent::identity::{CloseResponse, IdentityRequest, IdentityResponse, StepName};
use forkd_proto::agent::{Network, VERSION};
use serde_json::Value;

use crate::agent::{Agent, AgentError};
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
    /// Base64 of 64 bytes or more that nobody else gets.
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
    /// How long it took, in parts.
    pub times: Vec<(CreateStep, Duration)>,
}

/// As many as an agent has.
const MAX_BUSY: usize = 256;
const MAX_CONTEXT_NAME: usize = 100;
const MAX_PROBLEM: usize = 300;
/// More than there are.
const MAX_STEPS: usize = 32;

/// Questions before the identity. The first one finds the agent's memory cold.
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
    Some(closed.problem?.chars().take(MAX_PROBLEM).collect())
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
    let busy = applied.busy.into_iter().flatten().take(MAX_BUSY).map(name).collect();
    Ok(Given { busy, times: Vec::new() })
}

/// Given twice, an identity is taken once: the agent knows its generation.
async fn try_to_give(
    agent: &Agent,
    identity: &Identity,
) -> Result<(IdentityResponse, Vec<(CreateStep, Duration)>), AgentError> {
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
        assert_eq!(judge(busy).unwrap(), Given { busy: vec!["default".into()], times: Vec::new() });
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
}
