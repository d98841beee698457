//! Sandboxes, snapshots and events of a daemon that has none: what can be said without a VM. With VMs, the same is tested in
//! `tests/daemon`.

use forkd_api::error::ErrorCode;
use serde_json::json;

use crate::client::{Answer, Request};
use crate::daemon::Daemon;

async fn send(daemon: &Daemon, method: &str, path: &str, body: &str) -> Answer {
    let request = Request::new(method, path).header("content-type", "application/json").body(body.as_bytes());
    request.send(daemon.unix()).await
}

#[tokio::test]
async fn lists_are_empty_and_nothing_is_found() {
    let daemon = Daemon::start().await;
    let list = send(&daemon, "GET", "/v1/sandboxes", "").await.json();
    assert_eq!(list, json!({ "sandboxes": [] }));
    assert_eq!(send(&daemon, "GET", "/v1/snapshots", "").await.json(), json!({ "snapshots": [] }));
    for (method, path, body) in [
        ("GET", "/v1/sandboxes/inone", ""),
        ("GET", "/v1/sandboxes/..%2f..", ""),
        ("DELETE", "/v1/sandboxes/inone", ""),
        ("POST", "/v1/sandboxes/inone/pause", ""),
        ("POST", "/v1/sandboxes/inone/resume", ""),
        ("POST", "/v1/sandboxes/inone/branch", "{}"),
        ("POST", "/v1/sandboxes/inone/rollback", r#"{"tag": "t"}"#),
        ("PUT", "/v1/sandboxes/inone/ttl", r#"{"ttl_secs": 1}"#),
        ("GET", "/v1/sandboxes/inone/console", ""),
        ("GET", "/v1/sandboxes/inone/stats", ""),
        ("POST", "/v1/sandboxes", r#"{"snapshot_tag": "none"}"#),
        ("POST", "/v1/sandboxes", r#"{"snapshot_tag": "../none"}"#),
        ("POST", "/v1/sandboxes", r#"{"from_sandbox": "inone"}"#),
        ("GET", "/v1/snapshots/none", ""),
        ("GET", "/v1/snapshots/..%2f..", ""),
        ("DELETE", "/v1/snapshots/none", ""),
        ("DELETE", "/v1/snapshots/none?cascade=true", ""),
        ("POST", "/v1/snapshots", r#"{"tag": "t", "image": "none"}"#),
        ("POST", "/v1/snapshots", r#"{"tag": "t", "image": "../none"}"#),
    ] {
        let answer = send(&daemon, method, path, body).await;
        assert_eq!(answer.code(), ErrorCode::NotFound, "{method} {path} {body}");
        assert!(answer.error().hint.is_some() || path == "/v1/snapshots", "{method} {path}");
    }
}

#[tokio::test]
async fn what_makes_no_sense_is_refused() {
    let daemon = Daemon::start().await;
    for (method, path, body) in [
        ("POST", "/v1/sandboxes", "{}"),
        ("POST", "/v1/sandboxes", r#"{"snapshot_tag": "t", "from_sandbox": "i"}"#),
        ("POST", "/v1/sandboxes", r#"{"snapshot_tag": "t", "n": 0}"#),
        ("POST", "/v1/sandboxes", r#"{"snapshot_tag": "t", "n": 1001}"#),
        ("POST", "/v1/sandboxes", r#"{"snapshot_tag": "t", "n": -1}"#),
        ("POST", "/v1/sandboxes", r#"{"snapshot_tag": "t", "no_such_field": 1}"#),
        ("GET", "/v1/sandboxes?limit=0", ""),
        ("GET", "/v1/sandboxes?state=asleep", ""),
        ("GET", "/v1/sandboxes?after=x", ""),
        ("GET", "/v1/sandboxes?metadata=x", ""),
        ("GET", "/v1/sandboxes/inone/console?bytes=0", ""),
        ("GET", "/v1/sandboxes/inone/console?bytes=1048577", ""),
        ("POST", "/v1/snapshots", r#"{"tag": "A B", "image": "i"}"#),
        ("POST", "/v1/snapshots", r#"{"tag": "t", "image": "i", "vcpus": 0}"#),
        (
            "POST",
            "/v1/snapshots",
            r#"{"tag": "t", "image": "i", "warm_up": [{"language": "cobol", "code": ""}]}"#,
        ),
        ("DELETE", "/v1/snapshots/none?cascade=perhaps", ""),
    ] {
        assert_eq!(
            send(&daemon, method, path, body).await.code(),
            ErrorCode::Malformed,
            "{method} {path} {body}"
        );
    }
}

/// The head of a stream comes before it is known what becomes of it.
#[tokio::test]
async fn a_stream_says_in_its_last_line_that_it_failed() {
    let daemon = Daemon::start().await;
    let request = Request::post("/v1/snapshots", r#"{"tag": "t", "image": "none"}"#);
    let answer = request.header("accept", "application/x-ndjson").send(daemon.unix()).await;
    assert_eq!((answer.status, answer.headers["content-type"].as_str()), (200, "application/x-ndjson"));
    assert!(answer.body.contains(r#""code":"not_found""#), "{answer:?}");
    let metrics = Request::get("/metrics").send(daemon.unix()).await.body;
    assert!(metrics.contains(r#"forkd_errors_total{code="not_found"} 1"#), "{metrics}");
    assert!(metrics.contains(r#"forkd_sandboxes{state="running"} 0"#), "{metrics}");
    assert!(metrics.contains(r#"forkd_snapshots{state="ready"} 0"#), "{metrics}");
}

#[tokio::test]
async fn events_end_with_the_daemon() {
    let daemon = Daemon::start().await;
    let mut stream = daemon.unix().connect().await;
    tokio::io::AsyncWriteExt::write_all(&mut stream, &Request::get("/v1/events").bytes())
        .await
        .expect("sent");
    let reading = tokio::spawn(async move { Answer::read(&mut stream).await });
    // Until the answer has begun.
    daemon.audit(1).await;
    daemon.stop().await;
    let answer = reading.await.expect("an answer");
    assert_eq!((answer.status, answer.headers["content-type"].as_str()), (200, "application/x-ndjson"));
}
