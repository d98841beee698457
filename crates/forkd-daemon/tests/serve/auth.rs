//! Who may do what, by where they come from and by the token they have.

use std::net::SocketAddr;

use forkd_api::error::ErrorCode;
use forkd_api::token::{Scope, TokenLimits};
use forkd_daemon::Server;
use forkd_daemon::config::Tcp;
use forkd_daemon::server::BindError;

use crate::client::{Request, To};
use crate::daemon::Daemon;

const UNKNOWN: &str = "e2b_0000000000000000000000000000000000000000";

fn anywhere() -> Tcp {
    Tcp { address: SocketAddr::from(([0, 0, 0, 0], 0)), tls: None }
}

/// The statuses of something to read, to run, and for admins.
async fn statuses(to: To<'_>, token: Option<&str>) -> [u16; 3] {
    let with = |request: Request| match token {
        Some(token) => request.token(token),
        None => request,
    };
    let read = with(Request::get("/version")).send(to).await;
    let run = with(Request::post("/test/echo", "1")).send(to).await;
    let admin = with(Request::post("/test/admin", "")).send(to).await;
    for answer in [&read, &run, &admin] {
        match answer.status {
            200 => {}
            401 => assert_eq!(
                (answer.code(), answer.headers["www-authenticate"].as_str()),
                (ErrorCode::Unauthorized, "Bearer")
            ),
            _ => assert_eq!(answer.code(), ErrorCode::Forbidden),
        }
        assert!(answer.status == 200 || answer.error().hint.is_some());
    }
    [read.status, run.status, admin.status]
}

#[tokio::test]
async fn scopes_count_over_tcp_and_not_over_the_socket() {
    let daemon = Daemon::start().await;
    // No token yet: the loopback is open, whatever is sent.
    assert_eq!(statuses(daemon.tcp(), None).await, [200; 3]);
    assert_eq!(statuses(daemon.tcp(), Some(UNKNOWN)).await, [200; 3]);

    let read = daemon.token("reader", Scope::Read);
    assert_eq!(statuses(daemon.tcp(), None).await, [401; 3]);
    let run = daemon.token("runner", Scope::Run);
    let admin = daemon.token("boss", Scope::Admin);
    assert_eq!(statuses(daemon.tcp(), Some(&read)).await, [200, 403, 403]);
    assert_eq!(statuses(daemon.tcp(), Some(&run)).await, [200, 200, 403]);
    assert_eq!(statuses(daemon.tcp(), Some(&admin)).await, [200, 200, 200]);
    for bad in [UNKNOWN, "e2b_", "x", "", &read.to_uppercase(), &format!("{read}0")] {
        assert_eq!(statuses(daemon.tcp(), Some(bad)).await, [401; 3], "{bad}");
    }
    for token in [None, Some(UNKNOWN), Some(read.as_str())] {
        assert_eq!(statuses(daemon.unix(), token).await, [200; 3]);
    }

    let who = Request::get("/test/who").header("x-api-key", &run).send(daemon.tcp()).await.json();
    assert_eq!(who["name"], "token:runner");
    let uid = rustix::process::getuid().as_raw();
    let unix = Request::get("/test/who").send(daemon.unix()).await.json();
    assert_eq!(unix["name"], format!("unix:{uid}"));
    let basic = Request::get("/version").header("authorization", "Basic eDp5").send(daemon.tcp()).await;
    assert_eq!(basic.code(), ErrorCode::Unauthorized);

    // What needs none, and what does not say whether it is there.
    assert_eq!(Request::get("/healthz").send(daemon.tcp()).await.status, 200);
    assert_eq!(Request::get("/openapi.json").send(daemon.tcp()).await.status, 200);
    assert_eq!(Request::get("/metrics").send(daemon.tcp()).await.status, 401);
    assert_eq!(Request::get("/no/such").send(daemon.tcp()).await.status, 401);
    assert_eq!(Request::post("/healthz", "").send(daemon.tcp()).await.status, 401);
}

#[tokio::test]
async fn a_removed_token_is_refused_at_once() {
    let daemon = Daemon::start().await;
    let keep = daemon.token("keep", Scope::Read);
    for round in 0..20 {
        let name = format!("round-{round}");
        let secret = daemon.token(&name, Scope::Run);
        assert_eq!(statuses(daemon.tcp(), Some(&secret)).await, [200, 200, 403]);
        daemon.tokens.remove(&name).unwrap();
        assert_eq!(statuses(daemon.tcp(), Some(&secret)).await, [401; 3]);
    }
    assert_eq!(statuses(daemon.tcp(), Some(&keep)).await, [200, 403, 403]);
    // Damage opens nothing, and takes nothing away.
    std::fs::write(daemon.tokens.path(), "damaged").unwrap();
    assert_eq!(statuses(daemon.tcp(), Some(&keep)).await, [200, 403, 403]);
    assert_eq!(statuses(daemon.tcp(), None).await, [401; 3]);
}

#[tokio::test]
async fn an_address_of_others_needs_a_token_before_it_starts_and_ever_after() {
    let directory = tempfile::tempdir().unwrap();
    let config = forkd_daemon::config::Config {
        home: directory.path().into(),
        socket: None,
        tcp: Some(anywhere()),
        audit: None,
        snapshot_policy: None,
        mcp: Default::default(),
        limits: Default::default(),
        spans: None,
    };
    let error = Server::bind(&config, crate::daemon::app(&config).await).await.unwrap_err();
    assert!(matches!(error, BindError::Unprotected(_)) && error.to_string().contains("forkd token create"));
    let nowhere = forkd_daemon::config::Config { tcp: None, ..config.clone() };
    let error = Server::bind(&nowhere, crate::daemon::app(&nowhere).await).await.unwrap_err();
    assert!(matches!(error, BindError::Nowhere));

    let home = directory.path().to_owned();
    let tokens = forkd_daemon::auth::TokenFile::new(&home);
    let secret = tokens.create("one", &Default::default(), Scope::Run, TokenLimits::default()).unwrap().1;
    let daemon = Daemon::start_with(|config| {
        config.home = home;
        config.tcp = Some(anywhere());
    })
    .await;
    let to = To::Tcp(SocketAddr::from(([127, 0, 0, 1], daemon.address.port())));
    assert_eq!(statuses(to, Some(secret.expose())).await, [200, 200, 403]);
    tokens.remove("one").unwrap();
    assert_eq!(statuses(to, Some(secret.expose())).await, [401; 3]);
    assert_eq!(statuses(to, None).await, [401; 3]);
}

#[tokio::test]
async fn a_web_page_cannot_use_an_open_loopback() {
    let daemon = Daemon::start().await;
    let page =
        Request::post("/test/admin", "").header("origin", "https://page.example").send(daemon.tcp()).await;
    assert_eq!(page.code(), ErrorCode::Forbidden);
    let text = format!(
        "POST /test/admin HTTP/1.1\r\nhost: page.example:{}\r\nconnection: close\r\n\r\n",
        daemon.address.port()
    );
    let mut stream = daemon.tcp().connect().await;
    tokio::io::AsyncWriteExt::write_all(&mut stream, text.as_bytes()).await.unwrap();
    assert_eq!(crate::client::Answer::read(&mut stream).await.code(), ErrorCode::Forbidden);
}

#[tokio::test]
async fn it_is_written_down_when_a_token_was_used() {
    let daemon = Daemon::start().await;
    let secret = daemon.token("used", Scope::Read);
    daemon.token("unused", Scope::Read);
    assert_eq!(statuses(daemon.tcp(), Some(&secret)).await[0], 200);
    let tokens = daemon.tokens.clone();
    let (directory, handle, task) = (daemon.directory, daemon.handle, daemon.task);
    handle.stop();
    task.await.unwrap();
    let used: Vec<bool> =
        tokens.list().unwrap().iter().map(|token| token.last_used_at_unix.is_some()).collect();
    assert_eq!(used, [false, true]);
    drop(directory);
}

/// A GET that does more than look needs more than the right to look.
#[tokio::test]
async fn programs_and_ports_are_not_for_readers() {
    let daemon = Daemon::start().await;
    let (read, run) = (daemon.token("reader", Scope::Read), daemon.token("runner", Scope::Run));
    for path in ["/v1/sandboxes/x/exec", "/v1/sandboxes/x/proxy/80/", "/v1/sandboxes/x/proxy/80/a/b"] {
        for (token, code) in [(&read, ErrorCode::Forbidden), (&run, ErrorCode::NotFound)] {
            assert_eq!(Request::get(path).token(token).send(daemon.tcp()).await.code(), code, "{path}");
        }
    }
    for path in ["files?path=/x", "files/info?path=/x", "files/list?path=/x"] {
        let answer = Request::get(&format!("/v1/sandboxes/x/{path}")).token(&read).send(daemon.tcp()).await;
        assert_eq!(answer.code(), ErrorCode::NotFound, "{path}");
    }
}
