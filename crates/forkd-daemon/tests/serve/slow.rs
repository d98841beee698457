//! Clients that are slow, silent or many.

use std::time::{Duration, Instant};

use forkd_api::error::ErrorCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::client::{Answer, Request, read_all};
use crate::daemon::Daemon;

/// Patience for a second.
async fn impatient() -> Daemon {
    Daemon::start_with(|config| {
        config.limits.head_time = Duration::from_secs(1);
        config.limits.body_time = Duration::from_secs(1);
        config.limits.write_time = Duration::from_secs(1);
    })
    .await
}

#[tokio::test]
async fn a_head_that_never_ends_is_cut_off() {
    let daemon = impatient().await;
    let mut stream = daemon.tcp().connect().await;
    let begun = Instant::now();
    stream.write_all(b"GET /version HTTP/1.1\r\n").await.unwrap();
    // A byte now and then does not buy time.
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let _ = stream.write_all(b"x").await;
    }
    assert_eq!(read_all(&mut stream).await, "");
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert_eq!(Request::get("/version").send(daemon.tcp()).await.status, 200);
}

#[tokio::test]
async fn half_a_body_times_out() {
    let daemon = impatient().await;
    for path in ["/test/echo", "/test/upload"] {
        for framing in ["content-length: 100\r\n\r\n[1,", "transfer-encoding: chunked\r\n\r\n3\r\n[1,\r\n"] {
            let mut stream = daemon.tcp().connect().await;
            let head =
                format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n");
            stream.write_all(format!("{head}{framing}").as_bytes()).await.unwrap();
            let answer = Answer::read(&mut stream).await;
            assert_eq!(answer.code(), ErrorCode::RequestTimeout);
            assert!(answer.headers.contains_key("x-request-id"));
        }
    }
    // One that breaks off is nobody's to answer, and leaves its line.
    let mut stream = daemon.tcp().connect().await;
    stream.write_all(b"POST /test/echo HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n[").await.unwrap();
    drop(stream);
    assert_eq!(daemon.audit(5).await.len(), 5);
}

#[tokio::test]
async fn an_upload_may_be_larger_than_json_and_slow_but_steady() {
    let daemon = impatient().await;
    let body = vec![b'x'; 5 << 20];
    let answer = Request::new("POST", "/test/upload").body(&body).send(daemon.tcp()).await;
    assert_eq!(answer.body, (5 << 20).to_string());
    let mut stream = daemon.tcp().connect().await;
    stream.write_all(b"POST /test/upload HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 10\r\n\r\n").await.unwrap();
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(150)).await;
        stream.write_all(b"x").await.unwrap();
    }
    assert_eq!(Answer::read(&mut stream).await.body, "10");
}

#[tokio::test]
async fn a_body_that_is_said_to_be_too_large_is_not_read() {
    let daemon = Daemon::start().await;
    let mut stream = daemon.tcp().connect().await;
    let head = "POST /test/echo HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 99999999999\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    assert_eq!(Answer::read(&mut stream).await.code(), ErrorCode::TooLarge);
    // Nor is one that does not say it.
    let mut stream = daemon.tcp().connect().await;
    let head = "POST /test/echo HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let chunk = format!("10000\r\n{}\r\n", "[".repeat(0x10000));
    for _ in 0..17 {
        let _ = stream.write_all(chunk.as_bytes()).await;
    }
    assert_eq!(Answer::read(&mut stream).await.code(), ErrorCode::TooLarge);
}

#[tokio::test]
async fn an_answer_that_nobody_reads_is_given_up() {
    let daemon = impatient().await;
    let mut stream = daemon.tcp().connect().await;
    stream.write_all(&Request::get("/test/large").bytes()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes).await;
    assert!(bytes.len() < 32 << 20, "{}", bytes.len());
}

#[tokio::test]
async fn five_hundred_idle_connections_are_in_nobodys_way() {
    let daemon = Daemon::start().await;
    let mut idle = Vec::new();
    for number in 0..500 {
        let mut stream = daemon.tcp().connect().await;
        if number % 2 == 0 {
            stream.write_all(b"GET /version HTTP/1.1\r\n").await.unwrap();
        }
        idle.push(stream);
    }
    for _ in 0..20 {
        assert_eq!(Request::get("/version").send(daemon.tcp()).await.status, 200);
    }
    let metrics = Request::get("/metrics").send(daemon.tcp()).await.body;
    assert!(metrics.contains("forkd_http_connections 501"), "{metrics}");
    // The idle ones still work.
    let stream = idle.swap_remove(1);
    assert_eq!(Request::get("/version").send_on(stream).await.status, 200);
}

#[tokio::test]
async fn too_many_connections_are_told_so_and_the_socket_stays_free() {
    let daemon = Daemon::start_with(|config| config.limits.connections = 10).await;
    let mut idle = Vec::new();
    for _ in 0..10 {
        idle.push(daemon.tcp().connect().await);
    }
    let refused = Request::get("/version").send(daemon.tcp()).await;
    assert_eq!(refused.code(), ErrorCode::Unavailable);
    assert_eq!(Request::get("/version").send(daemon.unix()).await.status, 200);
    idle.clear();
    for _ in 0..100 {
        if Request::get("/version").send(daemon.tcp()).await.status == 200 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the places are not free again");
}
