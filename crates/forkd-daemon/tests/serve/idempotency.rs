//! Repeated requests. What was created is counted for all tests together, so each compares its own answers.

use std::time::Duration;

use forkd_api::error::ErrorCode;
use forkd_api::token::Scope;
use tokio::io::AsyncWriteExt;

use crate::client::Request;
use crate::daemon::Daemon;

fn create(key: &str, body: &str) -> Request {
    Request::post("/test/create", body).header("idempotency-key", key)
}

#[tokio::test]
async fn the_same_key_gets_the_same_answer() {
    let daemon = Daemon::start().await;
    let first = create("k", "{}").send(daemon.tcp()).await;
    let again = create("k", "{}").header("x-request-id", "second").send(daemon.tcp()).await;
    assert_eq!((first.status, &first.body), (200, &again.body));
    assert_eq!(again.headers["idempotency-replayed"], "true");
    assert_eq!(again.headers["x-request-id"], "second");
    assert!(!first.headers.contains_key("idempotency-replayed"));
    assert_eq!(again.headers["content-type"], "application/json");

    let other = create("k", r#"{"delay_ms": 0}"#).send(daemon.tcp()).await;
    assert_eq!(other.code(), ErrorCode::IdempotencyMismatch);
    let elsewhere =
        Request::post("/test/create?x", "{}").header("idempotency-key", "k").send(daemon.tcp()).await;
    assert_eq!(elsewhere.code(), ErrorCode::IdempotencyMismatch);
    assert_ne!(create("other", "{}").send(daemon.tcp()).await.body, first.body);
    // Without a key, each counts.
    let plain = async || Request::post("/test/create", "{}").send(daemon.tcp()).await;
    assert_ne!(plain().await.body, plain().await.body);
    for bad in ["", "a b", &"x".repeat(256)] {
        assert_eq!(create(bad, "{}").send(daemon.tcp()).await.code(), ErrorCode::Malformed, "{bad}");
    }
}

#[tokio::test]
async fn keys_are_the_callers_own() {
    let daemon = Daemon::start().await;
    let (one, two) = (daemon.token("one", Scope::Run), daemon.token("two", Scope::Run));
    let first = create("k", "{}").token(&one).send(daemon.tcp()).await;
    let other = create("k", r#"{"delay_ms": 1}"#).token(&two).send(daemon.tcp()).await;
    assert_eq!((first.status, other.status), (200, 200));
    assert_ne!(first.body, other.body);
}

#[tokio::test]
async fn many_at_once_create_one() {
    let daemon = Daemon::start().await;
    let request = create("at-once", r#"{"delay_ms": 2000}"#);
    let address = daemon.address;
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let request = request.clone();
            tokio::spawn(async move { request.send(crate::client::To::Tcp(address)).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(100)).await;
    // Another request with the key does not have to wait to be refused.
    let begun = std::time::Instant::now();
    assert_eq!(create("at-once", "{}").send(daemon.tcp()).await.code(), ErrorCode::IdempotencyMismatch);
    assert!(begun.elapsed() < Duration::from_millis(1500));
    let mut answers = std::collections::BTreeSet::new();
    let mut replayed = 0;
    for task in tasks {
        let answer = task.await.unwrap();
        replayed += usize::from(answer.headers.contains_key("idempotency-replayed"));
        answers.insert(answer.json().to_string());
    }
    assert_eq!((answers.len(), replayed), (1, 19));
}

#[tokio::test]
async fn a_caller_who_went_away_finds_the_answer_later() {
    let daemon = Daemon::start().await;
    let request = create("lost", r#"{"delay_ms": 200}"#);
    let mut stream = daemon.tcp().connect().await;
    stream.write_all(&request.bytes()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    drop(stream);
    let answer = request.send(daemon.tcp()).await;
    assert_eq!((answer.status, answer.headers["idempotency-replayed"].as_str()), (200, "true"));
}

#[tokio::test]
async fn refusals_are_kept_and_failures_that_may_pass_are_not() {
    let daemon = Daemon::start().await;
    for (code, kept) in [
        ("name_taken", true),
        ("not_found", true),
        ("no_memory", false),
        ("internal", false),
        ("too_many", false),
    ] {
        let request = create(code, &format!(r#"{{"fail": "{code}"}}"#));
        let first = request.send(daemon.tcp()).await.error();
        let again = request.send(daemon.tcp()).await.error();
        assert_eq!(first == again, kept, "{code}");
    }
}

#[tokio::test]
async fn large_answers_are_remembered_for_less_long_or_not_at_all() {
    let daemon = Daemon::start_with(|config| config.limits.idempotency.bytes = 2000).await;
    let ask = async |key: &str| create(key, "{}").send(daemon.tcp()).await.body;
    let first = ask("first").await;
    assert_eq!(ask("first").await, first);
    for number in 0..20 {
        ask(&number.to_string()).await;
    }
    assert_ne!(ask("first").await, first);

    let daemon = Daemon::start_with(|config| config.limits.idempotency.answer_bytes = 3).await;
    let ask = async |key: &str| create(key, "{}").send(daemon.tcp()).await.body;
    assert_ne!(ask("k").await, ask("k").await);
}

#[tokio::test]
async fn what_is_remembered_is_bounded() {
    let daemon = Daemon::start_with(|config| {
        config.limits.idempotency.count = 3;
        config.limits.idempotency.age = Duration::from_secs(2);
    })
    .await;
    let ask = async |key: &str| create(key, "{}").send(daemon.tcp()).await;
    let first = ask("a").await.body;
    for key in ["b", "c"] {
        ask(key).await;
    }
    assert_eq!(ask("a").await.body, first);
    ask("d").await;
    let second = ask("a").await.body;
    assert_ne!(second, first);
    tokio::time::sleep(Duration::from_millis(2100)).await;
    assert_ne!(ask("a").await.body, second);
}
