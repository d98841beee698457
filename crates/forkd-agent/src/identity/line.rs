//! The identity in one message: what a child does first, so it costs as little as can be.
//!
//! ```text
//!   host ── connects to vsock port 2 ──▶ agent
//!        ◀── {"version": 1} ────────────        the host takes the time and answers
//!        ─── identity ──────────────────▶       half of the time between the two is how late the host's time is here
//!        ◀── what became of each step ───
//! ```
//!
//! Each is a line of JSON. `POST /forkd/identity` does the same, for hosts that do not know this port.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forkd_proto::agent::VERSION;
use forkd_proto::agent::identity::MAX_LINE;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};

use super::http::take;
use crate::agent::Agent;
use crate::json_line::json_line;
use crate::server::Accept;

const PATIENCE: Duration = Duration::from_secs(60);
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts and serves, one after the other: there is one host, and identities are taken one after the other anyway.
pub async fn serve(mut listener: impl Accept, agent: Arc<Agent>) {
    loop {
        match listener.accept().await {
            // The host went away, or said nothing for long.
            Ok(stream) => drop(tokio::time::timeout(PATIENCE, converse(stream, &agent)).await),
            // No descriptors left, mostly: the loop must not spin.
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

async fn converse(stream: impl AsyncRead + AsyncWrite + Unpin, agent: &Arc<Agent>) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let greeted = Instant::now();
    stream.write_all(&json_line(&json!({ "version": VERSION }))).await?;
    let mut bytes = Vec::new();
    (&mut stream).take(MAX_LINE).read_until(b'\n', &mut bytes).await?;
    let delay = greeted.elapsed() / 2;
    let answer = match take(agent, &bytes, delay).await {
        Ok(response) => serde_json::to_value(response).map_err(io::Error::other)?,
        Err(error) => json!({ "error": error.to_string() }),
    };
    stream.write_all(&json_line(&answer)).await?;
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::agent::Settings;

    /// What the agent says to these lines.
    async fn said(agent: &Arc<Agent>, lines: &[String]) -> Vec<Value> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(serve(listener, Arc::clone(agent)));
        let mut host = BufReader::new(TcpStream::connect(address).await.unwrap());
        let mut said = Vec::new();
        let mut text = String::new();
        for line in lines.iter().map(Some).chain([None]) {
            text.clear();
            host.read_line(&mut text).await.unwrap();
            said.push(serde_json::from_str(&text).unwrap_or_default());
            if let Some(line) = line {
                host.write_all(line.as_bytes()).await.unwrap();
            }
        }
        serving.abort();
        said
    }

    #[test]
    fn an_identity_is_taken_once_and_nonsense_never() {
        crate::runtime::new().unwrap().block_on(async {
            let agent = Arc::new(crate::testing::agent(Settings::default()));
            let one = include_str!("../../../forkd-proto/protocol/gen-1/identity-request.json");
            let one: Value = serde_json::from_str(one).unwrap();
            let first = said(&agent, &[format!("{one}\n")]).await;
            assert_eq!(first[0], json!({ "version": VERSION }));
            assert_eq!((&first[1]["ok"], &first[1]["generation"]), (&json!(true), &one["generation"]));
            assert!(first[1]["steps"][0]["took_us"].is_u64(), "{}", first[1]);
            assert_eq!(said(&agent, &[format!("{one}\n")]).await, first);
            for (wrong, says) in [
                (json!({ "version": 2 }), "speaks version 1, not 2"),
                (json!({ "version": 1, "generation": 1, "id": "i" }), "is older than"),
                (json!([1]), "invalid identity request"),
            ] {
                let refused = said(&agent, &[format!("{wrong}\n")]).await;
                assert!(
                    refused[1]["error"].as_str().is_some_and(|error| error.contains(says)),
                    "{refused:?}"
                );
            }
        });
    }
}
