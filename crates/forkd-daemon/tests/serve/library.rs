//! Who may change the library, and how much they may send. What becomes of it is tested in `tests/daemon`.

use forkd_api::error::ErrorCode;
use forkd_api::token::Scope;
use serde_json::json;

use crate::client::Request;
use crate::daemon::Daemon;

const CHANGES: [(&str, &str); 10] = [
    ("POST", "/v1/images/pull"),
    ("POST", "/v1/images/debian"),
    ("POST", "/v1/images/import?name=a"),
    ("POST", "/v1/images/build"),
    ("POST", "/v1/images/prune"),
    ("DELETE", "/v1/images/a"),
    ("POST", "/v1/kernels"),
    ("POST", "/v1/kernels/import"),
    ("PUT", "/v1/kernels/default"),
    ("DELETE", "/v1/kernels/a"),
];

#[tokio::test]
async fn everybody_may_look_and_admins_may_change() {
    let daemon = Daemon::start().await;
    let read = daemon.token("reader", Scope::Read);
    let run = daemon.token("runner", Scope::Run);
    let list = Request::get("/v1/images").token(&read).send(daemon.tcp()).await.json();
    assert_eq!(list, json!({ "images": [] }));
    let list = Request::get("/v1/kernels").token(&read).send(daemon.tcp()).await.json();
    assert_eq!(list, json!({ "kernels": [] }));
    let none = Request::get("/v1/images/a%2Fb:c").token(&read).send(daemon.tcp()).await;
    assert_eq!(none.error().error, "there is no image \"a/b:c\"");
    for (method, path) in CHANGES {
        for token in [&read, &run] {
            let answer = Request::new(method, path).token(token).send(daemon.tcp()).await;
            assert_eq!(answer.code(), ErrorCode::Forbidden, "{method} {path}");
        }
        assert_eq!(Request::new(method, path).send(daemon.tcp()).await.code(), ErrorCode::Unauthorized);
    }
}

/// Certificates and proxies of the host may have secrets in them: a proxy's password, for one.
#[tokio::test]
async fn what_a_guest_sees_of_the_host_is_the_admin_s_to_say() {
    let daemon = Daemon::start().await;
    let (run, admin) = (daemon.token("runner", Scope::Run), daemon.token("boss", Scope::Admin));
    let body = r#"{"tag": "t", "image": "none", "host_certs": true}"#;
    let refused = Request::post("/v1/snapshots", body).token(&run).send(daemon.tcp()).await;
    assert_eq!(refused.code(), ErrorCode::Forbidden);
    for (body, token) in [(body, &admin), (r#"{"tag": "t", "image": "none"}"#, &run)] {
        let answer = Request::post("/v1/snapshots", body).token(token).send(daemon.tcp()).await;
        assert_eq!(answer.code(), ErrorCode::NotFound, "{answer:?}");
    }
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_before_anything_is_done() {
    let daemon = Daemon::start().await;
    for (path, body) in [
        ("/v1/images/pull", r#"{"reference": "a b"}"#),
        ("/v1/images/pull", r#"{"reference": "a", "name": "-"}"#),
        ("/v1/images/pull", r#"{"reference": "a", "size_mib": 0}"#),
        ("/v1/images/debian", r#"{"suite": "../x"}"#),
        ("/v1/images/debian", r#"{"include": ["./x.deb"]}"#),
        ("/v1/images/debian", r#"{"mirror": "/etc/apt"}"#),
        ("/v1/images/prune", r#"{"keep": 1}"#),
        ("/v1/kernels", r#"{"source": "package", "version": "6"}"#),
        ("/v1/kernels", r#"{"source": "path"}"#),
    ] {
        let answer = Request::post(path, body).send(daemon.unix()).await;
        assert_eq!(answer.code(), ErrorCode::Malformed, "{path} {body}: {answer:?}");
    }
}

#[tokio::test]
async fn uploads_and_long_work_are_bounded() {
    let small = Daemon::start_with(|config| {
        config.limits.image_bytes = 10;
        config.limits.context_bytes = 10;
        config.limits.kernel_bytes = 10;
    })
    .await;
    for path in ["/v1/images/import?name=a", "/v1/images/build", "/v1/kernels/import"] {
        let said = Request::new("POST", path).body(&[b'x'; 11]).send(small.unix()).await;
        assert_eq!(said.code(), ErrorCode::TooLarge, "{path}");
        // The same without saying so before.
        let mut stream = small.unix().connect().await;
        let text = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n\
             6\r\n123456\r\n6\r\n123456\r\n0\r\n\r\n"
        );
        tokio::io::AsyncWriteExt::write_all(&mut stream, text.as_bytes()).await.unwrap();
        let unsaid = crate::client::Answer::read(&mut stream).await;
        assert_eq!(unsaid.code(), ErrorCode::TooLarge, "{path}");
    }
    let busy = Daemon::start_with(|config| config.limits.jobs = 0).await;
    for (path, body) in [
        ("/v1/images/pull", r#"{"reference": "a"}"#),
        ("/v1/images/debian", "{}"),
        ("/v1/images/import?name=a", ""),
        ("/v1/images/build", ""),
        ("/v1/kernels", "{}"),
        ("/v1/kernels/import", ""),
    ] {
        let answer = Request::post(path, body).send(busy.unix()).await;
        assert_eq!(answer.code(), ErrorCode::TooMany, "{path}: {answer:?}");
    }
}

#[tokio::test]
async fn an_upload_that_stands_still_is_given_up() {
    let daemon =
        Daemon::start_with(|config| config.limits.body_time = std::time::Duration::from_millis(200)).await;
    let mut stream = daemon.unix().connect().await;
    let text = "POST /v1/images/import?name=a HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 9\r\n\r\nx";
    tokio::io::AsyncWriteExt::write_all(&mut stream, text.as_bytes()).await.unwrap();
    assert_eq!(crate::client::Answer::read(&mut stream).await.code(), ErrorCode::RequestTimeout);
}
