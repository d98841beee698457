//! Every failure has the shape, and every answer has an id.

use forkd_api::error::ErrorCode;
use tokio::io::AsyncWriteExt;

use crate::client::{Answer, Request};
use crate::daemon::Daemon;

#[tokio::test]
async fn the_daemon_tells_about_itself() {
    let daemon = Daemon::start().await;
    for to in [daemon.tcp(), daemon.unix()] {
        assert_eq!(Request::get("/healthz").send(to).await.json()["ok"], true);
        let version = Request::get("/version").send(to).await.json();
        assert_eq!((&version["version"], &version["api"]), (&env!("CARGO_PKG_VERSION").into(), &"v1".into()));
        let document = Request::get("/openapi.json").send(to).await.json();
        assert_eq!(document["paths"]["/version"]["get"]["operationId"], "version");
    }
    Request::get("/no/such").send(daemon.tcp()).await;
    let metrics = Request::get("/metrics").send(daemon.tcp()).await;
    assert!(metrics.headers["content-type"].starts_with("application/openmetrics-text"));
    for line in [
        r#"forkd_http_requests_total{route="/healthz",method="GET",status="200"} 2"#,
        r#"forkd_http_requests_total{route="none",method="GET",status="404"} 1"#,
        r#"forkd_errors_total{code="not_found"} 1"#,
        "# EOF",
    ] {
        assert!(metrics.body.lines().any(|is| is == line), "{line} is not in\n{}", metrics.body);
    }
}

#[tokio::test]
async fn every_failure_has_the_shape() {
    let daemon = Daemon::start().await;
    let json = |path: &str, body: &str| Request::post(path, body);
    let large = format!("\"{}\"", "x".repeat(1 << 20));
    let cases = [
        (Request::get("/no/such/path?x=y"), ErrorCode::NotFound),
        (Request::get("/v1/no-such"), ErrorCode::NotFound),
        (Request::new("DELETE", "/healthz"), ErrorCode::MethodNotAllowed),
        (Request::new("BREW", "/version"), ErrorCode::MethodNotAllowed),
        (Request::get("/test/echo"), ErrorCode::MethodNotAllowed),
        (json("/test/echo", "{"), ErrorCode::Malformed),
        (json("/test/echo", ""), ErrorCode::Malformed),
        (json("/test/echo", "{} {}"), ErrorCode::Malformed),
        (json("/test/strict", "{}"), ErrorCode::Malformed),
        (json("/test/strict", r#"{"number": -1}"#), ErrorCode::Malformed),
        (json("/test/strict", r#"{"number": 1, "unknown": 2}"#), ErrorCode::Malformed),
        (json("/test/echo", &"[".repeat(10_000)), ErrorCode::Malformed),
        (json("/test/echo", &large), ErrorCode::TooLarge),
        (Request::new("POST", "/test/echo").body(b"{}"), ErrorCode::UnsupportedMediaType),
        (
            Request::new("POST", "/test/echo").header("content-type", "text/plain").body(b"{}"),
            ErrorCode::UnsupportedMediaType,
        ),
        (Request::get("/test/query"), ErrorCode::Malformed),
        (Request::get("/test/query?number=x"), ErrorCode::Malformed),
        (Request::get("/test/query?number=1&number=2"), ErrorCode::Malformed),
        (Request::get("/v1/sandboxes/a/number/256"), ErrorCode::Malformed),
        (Request::get("/v1/sandboxes/%ff/number/1"), ErrorCode::Malformed),
        (Request::get("/test/plain"), ErrorCode::WrongState),
        (Request::get("/test/fault"), ErrorCode::Internal),
        (Request::get("/test/panic"), ErrorCode::Internal),
    ];
    for (request, code) in cases {
        for to in [daemon.tcp(), daemon.unix()] {
            let answer = request.send(to).await;
            assert_eq!(answer.code(), code, "{request:?}: {answer:?}");
            assert!(answer.headers.contains_key("x-request-id"));
            assert!(!answer.body.contains("s3cret"));
            if code == ErrorCode::MethodNotAllowed {
                assert!(answer.headers.contains_key("allow"), "{answer:?}");
            }
        }
    }
    // And goes on.
    assert_eq!(Request::post("/test/echo", "[1]").send(daemon.tcp()).await.body, "[1]");
}

#[tokio::test]
async fn what_is_not_http_is_refused_in_the_shape() {
    let daemon = Daemon::start().await;
    let long_head = format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "x".repeat(300 << 10));
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(200));
    let long_path = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(300 << 10));
    for bytes in [
        "\x16\x03\x01\x02garbage\r\n\r\n",
        "GET\r\n\r\n",
        "GET / HTTP/9\r\n\r\n",
        &long_head,
        &many,
        &long_path,
    ] {
        let mut stream = daemon.tcp().connect().await;
        let _ = stream.write_all(bytes.as_bytes()).await;
        let answer = Answer::read(&mut stream).await;
        assert_eq!(answer.code(), ErrorCode::Malformed, "{:?}", &bytes[..20.min(bytes.len())]);
    }
}

#[tokio::test]
async fn a_request_keeps_its_id_or_gets_one() {
    let daemon = Daemon::start().await;
    let request = Request::get("/version").header("x-request-id", "build-7.a_b");
    assert_eq!(request.send(daemon.tcp()).await.headers["x-request-id"], "build-7.a_b");
    let failing = Request::get("/no/such").header("x-request-id", "mine");
    assert_eq!(failing.send(daemon.tcp()).await.headers["x-request-id"], "mine");
    let mut seen = std::collections::BTreeSet::new();
    for bad in ["", "a b", "{}", &"x".repeat(65)] {
        let answer = Request::get("/version").header("x-request-id", bad).send(daemon.tcp()).await;
        assert!(seen.insert(answer.headers["x-request-id"].clone()));
    }
    assert!(seen.iter().all(|id| id.len() == 32));
    // In the audit log, too.
    let lines = daemon.audit(6).await;
    assert_eq!((&lines[0]["request_id"], &lines[1]["request_id"]), (&"build-7.a_b".into(), &"mine".into()));
}

#[tokio::test]
async fn garbage_after_a_request_is_refused_in_the_shape_too() {
    let daemon = Daemon::start().await;
    for path in ["/version", "/no/such", "/test/plain"] {
        let mut stream = daemon.tcp().connect().await;
        for _ in 0..3 {
            stream
                .write_all(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes())
                .await
                .unwrap();
            let answer = Answer::read_one(&mut stream).await;
            assert!(answer.headers.contains_key("x-request-id") && !answer.body.is_empty());
        }
        stream.write_all(b"\x01\r\n\r\n").await.unwrap();
        let answer = Answer::read(&mut stream).await;
        assert_eq!(answer.code(), ErrorCode::Malformed);
        assert_eq!(answer.headers["x-request-id"].len(), 32);
    }
}

#[tokio::test]
async fn odd_requests_are_answered() {
    let daemon = Daemon::start().await;
    for line in [
        "CONNECT example:443",
        "OPTIONS *",
        "GET //",
        "GET /%00",
        "GET http://localhost/no/such",
        "TRACE /version",
    ] {
        let mut stream = daemon.tcp().connect().await;
        let request = format!("{line} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let answer = Answer::read(&mut stream).await;
        assert!(
            matches!(answer.code(), ErrorCode::NotFound | ErrorCode::MethodNotAllowed),
            "{line}: {answer:?}"
        );
    }
    let head = Request::new("HEAD", "/healthz").send(daemon.tcp()).await;
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    let old = "GET /version HTTP/1.0\r\n\r\n";
    let mut stream = daemon.tcp().connect().await;
    stream.write_all(old.as_bytes()).await.unwrap();
    assert_eq!(Answer::read(&mut stream).await.status, 200);
}
