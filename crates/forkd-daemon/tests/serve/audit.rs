//! The audit log of a daemon that runs.

use std::time::Duration;

use forkd_api::token::Scope;
use tokio::io::AsyncWriteExt;

use crate::client::Request;
use crate::daemon::Daemon;

#[tokio::test]
async fn every_request_leaves_a_line_without_secrets() {
    let daemon = Daemon::start().await;
    let secret = daemon.token("ci", Scope::Read);
    let path = "/v1/sandboxes/sb-7/number/1";
    Request::get(&format!("{path}?token={secret}")).token(&secret).send(daemon.tcp()).await;
    Request::post("/test/echo", "1").token(&secret).send(daemon.tcp()).await;
    Request::get("/version").header("x-api-key", "e2b_wrong").send(daemon.tcp()).await;
    Request::get("/healthz").send(daemon.unix()).await;
    Request::post("/test/echo", "{").send(daemon.unix()).await;
    Request::get("/version").header("x-request-id", &secret).token(&secret).send(daemon.tcp()).await;
    Request::get(&format!("/v1/sandboxes/{secret}/{secret}")).token(&secret).send(daemon.tcp()).await;
    let lines = daemon.audit(7).await;
    let uid = format!("unix:{}", rustix::process::getuid().as_raw());
    let expected = [
        ("token:ci", "GET", path, 200),
        ("token:ci", "POST", "/test/echo", 403),
        ("-", "GET", "/version", 401),
        (&uid, "GET", "/healthz", 200),
        (&uid, "POST", "/test/echo", 400),
        ("token:ci", "GET", "/version", 200),
    ];
    for (line, (who, method, path, status)) in lines.iter().zip(expected) {
        assert_eq!((&line["who"], &line["method"]), (&who.into(), &method.into()), "{line}");
        assert_eq!((&line["path"], &line["status"]), (&path.into(), &status.into()), "{line}");
        let time = line["time"].as_str().unwrap();
        assert!(time.len() == "2026-01-02T03:04:05.678Z".len() && time.ends_with('Z'), "{line}");
        assert!(line["latency_us"].is_u64() && line["request_id"].is_string(), "{line}");
    }
    assert_eq!(lines[0]["sandboxes"], serde_json::json!(["sb-7"]));
    assert!(lines[0]["from"].as_str().unwrap().starts_with("127.0.0.1:"));
    assert_eq!(lines[4]["from"], "unix");
    for line in &lines {
        assert!(!line.to_string().contains(&secret[4..]), "{line}");
    }
}

#[tokio::test]
async fn a_caller_who_goes_away_leaves_a_line_too() {
    let daemon = Daemon::start().await;
    let mut stream = daemon.tcp().connect().await;
    stream.write_all(&Request::get("/test/stuck").bytes()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    drop(stream);
    let lines = daemon.audit(1).await;
    assert_eq!((&lines[0]["path"], lines[0].get("status")), (&"/test/stuck".into(), None));
}

#[tokio::test]
async fn the_log_is_reopened_on_request() {
    let daemon = Daemon::start().await;
    let path = daemon.directory.path().join("audit.log");
    Request::get("/version").send(daemon.tcp()).await;
    daemon.audit(1).await;
    std::fs::rename(&path, daemon.directory.path().join("audit.log.1")).unwrap();
    daemon.handle.reload().await.unwrap();
    Request::get("/healthz").send(daemon.tcp()).await;
    assert_eq!(daemon.audit(1).await[0]["path"], "/healthz");

    // A place that cannot be written to: the old one goes on.
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    assert!(daemon.handle.reload().await.is_err());
    assert_eq!(Request::get("/version").send(daemon.tcp()).await.status, 200);
}
