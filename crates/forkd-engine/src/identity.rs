//! Who a guest is: what its agent is told before it serves anybody.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::agent::{Agent, AgentError};

const VERSION: u32 = 1;

/// An identity. What is not there stays as it was in the parent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Identity {
    /// Grows with every fork on the way from the first boot.
    pub generation: u64,
    pub id: String,
    /// Which of the children of one call.
    pub index: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_id: Option<String>,
    pub env: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_token: Option<String>,
    /// Base64 of 64 bytes or more that nobody else gets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<String>,
}

#[derive(Debug, Serialize)]
struct Request<'a> {
    version: u32,
    unix_time_ns: u64,
    #[serde(flatten)]
    identity: &'a Identity,
}

#[derive(Debug, Deserialize)]
struct Applied {
    ok: bool,
    steps: Value,
}

/// Questions before the identity. The first one finds the agent's memory cold.
const QUESTIONS: usize = 2;

/// Gives a guest its identity and the time of day. From then on it serves.
pub async fn give(agent: &Agent, identity: &Identity, limit: Duration) -> Result<(), AgentError> {
    let given = agent.patiently(limit, || try_to_give(agent, identity));
    let applied = tokio::time::timeout(limit, given).await.map_err(|_| AgentError::Timeout(limit))??;
    if applied.ok { Ok(()) } else { Err(AgentError::NotReady(applied.steps.to_string())) }
}

/// Given twice, an identity is taken once: the agent knows its generation.
async fn try_to_give(agent: &Agent, identity: &Identity) -> Result<Applied, AgentError> {
    let mut connection = agent.connect().await?;
    // The guest's clock will be as late as the request takes to get there. A question of the same kind shows how long that is.
    let mut round_trip = Duration::ZERO;
    for _ in 0..QUESTIONS {
        let asked = Instant::now();
        connection.get::<Value>("/forkd/ready").await?;
        round_trip = asked.elapsed();
    }
    connection.post("/forkd/identity", &request(identity, round_trip / 2)).await
}

fn request(identity: &Identity, delay: Duration) -> Request<'_> {
    let then = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() + delay;
    let unix_time_ns = u64::try_from(then.as_nanos()).unwrap_or(u64::MAX);
    Request { version: VERSION, unix_time_ns, identity }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn it_is_written_as_agents_of_the_first_generation_read_it() {
        let text = include_str!("../../forkd-agent/protocol/gen-1/identity-request.json");
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
            seed: word("seed"),
        };
        let mut written: Value = serde_json::to_value(request(&identity, Duration::ZERO)).unwrap();
        assert!(written["unix_time_ns"].as_u64() > expected["unix_time_ns"].as_u64());
        for message in [&mut written, &mut expected] {
            message["unix_time_ns"] = json!(0);
            message["network"] = json!(null);
        }
        assert_eq!(written, expected);
    }
}
