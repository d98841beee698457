//! The client against daemons that answer well, badly, or not at all.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forkd_api::error::ErrorCode;
use forkd_api::exec::{Exec, ExecEvent, ExecStart, STDIN_WINDOW, Signal, TerminalSize};
use forkd_api::library::{AddKernel, ImportImage, PullImage};
use forkd_api::sandbox::{CreateSandboxes, ListSandboxes};
use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio_tungstenite::tungstenite::Message;

use crate::{Address, Client, ClientError, Secret};

const VERSION: &str = r#"{"version": "1", "api": "v1"}"#;

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

struct Daemon {
    _directory: tempfile::TempDir,
    client: Client,
    requests: tokio::sync::mpsc::UnboundedReceiver<String>,
}

fn socket() -> (tempfile::TempDir, UnixListener, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    (directory, UnixListener::bind(&path).unwrap(), path)
}

/// Reads one request with its body.
async fn request(stream: &mut BufReader<UnixStream>) -> Option<String> {
    let (mut text, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        let last = line == "\r\n";
        text += &line;
        // Without a length, nothing more is read.
        if last && length > 0 && text.contains("expect: 100-continue\r\n") {
            stream.write_all(CONTINUE).await.ok()?;
        }
        if last {
            let mut body = vec![0; length];
            stream.read_exact(&mut body).await.ok()?;
            return Some(text + &String::from_utf8(body).unwrap());
        }
    }
}

/// Each list is a connection; it gives these answers and is closed.
fn daemon(connections: Vec<Vec<String>>) -> Daemon {
    let (directory, listener, path) = socket();
    let (heard, requests) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        for answers in connections {
            let mut stream = BufReader::new(listener.accept().await.unwrap().0);
            for answer in answers {
                let Some(request) = request(&mut stream).await else { break };
                let _ = heard.send(request);
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        }
    });
    let client = Client::new(Address::Unix(path), Secret::new("sesame")).unwrap();
    Daemon { _directory: directory, client, requests }
}

fn answer(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn one(status: &str, body: &str) -> Daemon {
    daemon(vec![vec![answer(status, body)]])
}

#[tokio::test]
async fn requests_carry_what_the_daemon_needs() {
    let mut daemon = daemon(vec![vec![
        answer("200 OK", VERSION),
        answer("404 Not Found", r#"{"error": "no", "code": "not_found"}"#),
    ]]);
    assert_eq!(daemon.client.version().await.unwrap().api, "v1");
    let wanted = CreateSandboxes { snapshot_tag: Some("base".into()), n: 2, ..Default::default() };
    let error = daemon.client.create_sandboxes(&wanted).await.unwrap_err();
    assert!(error.is_not_found());
    let head = daemon.requests.recv().await.unwrap();
    assert!(
        head.starts_with("GET /version HTTP/1.1\r\n") && head.contains("authorization: Bearer sesame\r\n"),
        "{head}"
    );
    // On the same connection.
    let body = daemon.requests.recv().await.unwrap();
    assert!(body.contains("content-type: application/json") && body.contains(r#""n":2"#), "{body}");
}

#[tokio::test]
async fn a_connection_that_was_closed_meanwhile_is_replaced() {
    let daemon = daemon(vec![vec![answer("200 OK", VERSION)], vec![answer("200 OK", VERSION)]]);
    daemon.client.version().await.unwrap();
    daemon.client.version().await.unwrap();
}

#[tokio::test]
async fn lists_are_read_page_by_page() {
    let page = |next: &str| answer("200 OK", &format!(r#"{{"sandboxes": []{next}}}"#));
    let mut daemon = daemon(vec![vec![page(r#", "next": "7-a""#), page("")]]);
    assert_eq!(daemon.client.sandboxes(&ListSandboxes::default()).await.unwrap(), []);
    daemon.requests.recv().await.unwrap();
    let second = daemon.requests.recv().await.unwrap();
    assert!(second.starts_with("GET /v1/sandboxes?limit=1000&after=7-a "), "{second}");
}

#[tokio::test]
async fn what_is_not_the_daemon_is_named() {
    for (status, body) in [
        ("200 OK", "<html>"),
        ("200 OK", ""),
        ("502 Bad Gateway", "<html>"),
        ("301 Moved", "x"),
        ("404 Not Found", "{}"),
    ] {
        let error = one(status, body).client.version().await.unwrap_err();
        assert!(matches!(error, ClientError::Foreign { .. }), "{status} {body}: {error:?}");
    }
    let error = daemon(vec![vec!["ssh-2.0\r\n\r\n".into()]]).client.version().await.unwrap_err();
    assert!(matches!(error, ClientError::Broken(_)), "{error:?}");
    let error =
        daemon(vec![vec!["HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{".into()]]).client.version().await;
    assert!(matches!(error, Err(ClientError::Broken(_))), "{error:?}");
}

#[tokio::test]
async fn nobody_there_is_said_with_the_address() {
    let directory = tempfile::tempdir().unwrap();
    let client = Client::new(Address::Unix(directory.path().join("none")), None).unwrap();
    let error = client.version().await.unwrap_err();
    assert!(
        matches!(&error, ClientError::Unreachable { address, .. } if address.starts_with("unix:///")),
        "{error:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_daemon_that_says_nothing_is_given_up() {
    let (_directory, _listener, path) = socket();
    let error = Client::new(Address::Unix(path), None).unwrap().version().await.unwrap_err();
    assert!(matches!(error, ClientError::TimedOut(limit) if limit == Duration::from_secs(60)), "{error:?}");
}

fn stream(body: &str) -> Daemon {
    daemon(vec![vec![format!("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{body}")]])
}

fn exec() -> Exec {
    serde_json::from_str(r#"{"args": ["sh"]}"#).unwrap()
}

#[tokio::test]
async fn programs_are_followed_to_their_end() {
    let daemon = stream(
        "{\"started\":{\"pid\":7}}\n\n{\"stdout\":\"/wA=\"}\n{\"exited\":{\"exit_code\":3,\"timed_out\":false}}\n",
    );
    let mut following = daemon.client.follow("i", &exec()).await.unwrap();
    assert_eq!(following.next().await.unwrap(), ExecEvent::Started { pid: 7 });
    assert_eq!(following.next().await.unwrap(), ExecEvent::Stdout(vec![0xff, 0].into()));
    assert_eq!(following.next().await.unwrap(), ExecEvent::Exited { exit_code: 3, timed_out: false });
    assert!(matches!(following.next().await, Err(ClientError::CutOff)));
}

#[tokio::test]
async fn streams_that_break_are_not_taken_for_whole() {
    for (body, is_cut_off) in
        [("", true), ("{\"started\":", true), ("nonsense\n", false), ("{\"stdout\":\"?\"}\n", false)]
    {
        let daemon = stream(body);
        let error = daemon.client.follow("i", &exec()).await.unwrap().next().await.unwrap_err();
        assert_eq!(matches!(error, ClientError::CutOff), is_cut_off, "{body}: {error:?}");
    }
    let daemon = stream("{\"error\":{\"error\":\"gone\",\"code\":\"guest_failed\"}}\n");
    let error = daemon.client.follow("i", &exec()).await.unwrap().next().await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::GuestFailed));
}

#[tokio::test]
async fn a_line_without_end_is_given_up() {
    let (_directory, listener, path) = socket();
    tokio::spawn(async move {
        let mut stream = BufReader::new(listener.accept().await.unwrap().0);
        request(&mut stream).await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        while stream.write_all(&[b'x'; 65536]).await.is_ok() {}
    });
    let client = Client::new(Address::Unix(path), None).unwrap();
    let error = client.events(&Default::default()).await.unwrap().next().await.unwrap_err();
    assert!(matches!(error, ClientError::TooLarge(_)), "{error:?}");
}

#[tokio::test]
async fn uploads_arrive_and_broken_ones_are_not_taken_for_whole() {
    for broken in [false, true] {
        let (_directory, listener, path) = socket();
        let daemon = tokio::spawn(async move {
            let mut stream = listener.accept().await.unwrap().0;
            let mut text = Vec::new();
            loop {
                let mut chunk = [0; 4096];
                let read = stream.read(&mut chunk).await.unwrap_or(0);
                text.extend_from_slice(&chunk[..read]);
                if text.ends_with(b"\r\n\r\n") && !text.ends_with(b"0\r\n\r\n") {
                    // Who has gone does not need it.
                    let _ = stream.write_all(CONTINUE).await;
                }
                if read == 0 || text.ends_with(b"0\r\n\r\n") {
                    break;
                }
            }
            let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await;
            String::from_utf8(text).unwrap()
        });
        let client = Client::new(Address::Unix(path), None).unwrap();
        let (sender, upload) = tokio::sync::mpsc::channel(4);
        sender.send(Ok("abc".into())).await.unwrap();
        if broken {
            sender.send(Err(std::io::Error::other("unreadable"))).await.unwrap();
        }
        drop(sender);
        let sent = client.write_file("i", "/a b", upload).await;
        assert_eq!(matches!(sent, Err(ClientError::Upload(_))), broken, "{sent:?}");
        let text = daemon.await.unwrap();
        // Of a broken one, the daemon may have seen nothing at all.
        assert!(broken || text.starts_with("PUT /v1/sandboxes/i/files?path=%2Fa%20b HTTP/1.1"), "{text}");
        assert_eq!(text.ends_with("0\r\n\r\n"), !broken, "{text}");
    }
}

#[tokio::test]
async fn programs_are_talked_to_over_a_websocket() {
    let (_directory, listener, path) = socket();
    let daemon = tokio::spawn(async move {
        let stream = listener.accept().await.unwrap().0;
        let mut socket = tokio_tungstenite::accept_async(stream).await.unwrap();
        let mut heard = Vec::new();
        for _ in 0..5 {
            heard.push(socket.next().await.unwrap().unwrap());
        }
        socket.send(Message::binary(&b"\x02oh"[..])).await.unwrap();
        socket.send(Message::text(r#"{"exited":{"exit_code":1,"timed_out":true}}"#)).await.unwrap();
        socket.close(None).await.unwrap();
        heard
    });
    let client = Client::new(Address::Unix(path), None).unwrap();
    let size = TerminalSize { cols: 80, rows: 24 };
    let wanted = ExecStart { args: vec!["sh".into()], tty: Some(size), ..Default::default() };
    let (mut input, mut output) = client.start("i", &wanted).await.unwrap();
    input.stdin("ls\n".into()).await.unwrap();
    input.resize(size).await.unwrap();
    input.signal(Signal::Int).await.unwrap();
    input.close_stdin().await.unwrap();
    assert_eq!(output.next().await.unwrap(), ExecEvent::Stderr("oh".into()));
    assert_eq!(output.next().await.unwrap(), ExecEvent::Exited { exit_code: 1, timed_out: true });
    assert!(matches!(output.next().await, Err(ClientError::CutOff)));
    let heard = daemon.await.unwrap();
    assert!(heard[0].to_text().unwrap().contains(r#""tty":{"cols":80,"rows":24}"#), "{heard:?}");
    assert_eq!(heard[1], Message::binary(&b"ls\n"[..]));
}

#[tokio::test]
async fn signals_overtake_stdin_that_a_program_has_not_taken() {
    let (_directory, listener, path) = socket();
    let daemon = tokio::spawn(async move {
        let stream = listener.accept().await.unwrap().0;
        let mut socket = tokio_tungstenite::accept_async(stream).await.unwrap();
        assert!(socket.next().await.unwrap().unwrap().is_text());
        let (mut taken, mut signalled) = (0, false);
        while let Some(Ok(message)) = socket.next().await {
            match message {
                Message::Binary(bytes) => taken += bytes.len(),
                Message::Text(_) => signalled = true,
                _ => break,
            }
            if signalled && taken == STDIN_WINDOW {
                let event = format!(r#"{{"stdin_taken":{{"bytes":{STDIN_WINDOW}}}}}"#);
                socket.send(Message::text(event)).await.unwrap();
            }
            if taken > STDIN_WINDOW {
                let much = r#"{"stdin_taken":{"bytes":18446744073709551615}}"#;
                socket.send(Message::text(much)).await.unwrap();
            }
        }
        (taken, signalled)
    });
    let client = Client::new(Address::Unix(path), None).unwrap();
    let wanted = ExecStart { args: vec!["sh".into()], stdin_window: true, ..Default::default() };
    let (mut input, mut output) = client.start("i", &wanted).await.unwrap();
    input.stdin(vec![0; STDIN_WINDOW].into()).await.unwrap();
    let full = tokio::time::timeout(Duration::from_millis(50), input.room(1)).await;
    assert!(full.is_err());
    input.signal(Signal::Int).await.unwrap();
    let more = async { input.stdin("x".into()).await };
    // A daemon that takes more than it was sent is not believed.
    let (sent, heard) = tokio::join!(more, output.next());
    sent.unwrap();
    assert!(matches!(heard, Err(ClientError::Foreign { .. })), "{heard:?}");
    drop((input, output));
    assert_eq!(daemon.await.unwrap(), (STDIN_WINDOW + 1, true));
}

#[tokio::test]
async fn a_websocket_that_is_refused_says_why() {
    let refused = one("409 Conflict", r#"{"error": "it is paused", "code": "wrong_state"}"#);
    let error = refused.client.start("i", &ExecStart::default()).await.unwrap_err();
    assert_eq!((error.code(), error.to_string().as_str()), (Some(ErrorCode::WrongState), "it is paused"));
    let foreign = one("200 OK", "<html>").client.start("i", &ExecStart::default()).await.unwrap_err();
    assert!(matches!(foreign, ClientError::Foreign { .. }), "{foreign:?}");
}

#[tokio::test]
async fn a_certificate_that_nobody_knows_is_refused() {
    let key = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let config =
        rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![key.cert.der().clone()],
                rustls::pki_types::PrivateKeyDer::try_from(key.signing_key.serialize_der()).unwrap(),
            )
            .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let _ = acceptor.accept(stream).await;
        }
    });
    let address = Address::Tcp { tls: true, host: "localhost".into(), port };
    let error = Client::new(address, None).unwrap().version().await.unwrap_err();
    assert!(matches!(error, ClientError::Untrusted { .. }), "{error:?}");
}

const IMAGE: &str = r#"{"id": "x", "names": [], "shared": false, "created_at_unix": 1, "size_bytes": 1, "disk_bytes": 1,
    "default_user": "root", "source": {"kind": "build"}, "layers": [],
    "config": {"env": {}, "entrypoint": [], "cmd": [], "labels": {}}}"#;
const KERNEL: &str = r#"{"name": "6-x", "version": "6", "default": true, "shared": false, "created_at_unix": 1, "modules": [],
    "missing": []}"#;

fn upload(pieces: Vec<std::io::Result<bytes::Bytes>>) -> crate::Upload {
    let (sender, upload) = tokio::sync::mpsc::channel(8);
    pieces.into_iter().for_each(|piece| sender.try_send(piece).unwrap());
    upload
}

#[tokio::test]
async fn what_is_made_is_told_and_then_given() {
    let lines = |last: &str| {
        let line = last.replace('\n', "");
        answer("200 OK", &format!("{{\"step\": \"one\"}}\n{{\"output\": \"two\"}}\n{line}\n"))
    };
    let image = format!(r#"{{"image": {IMAGE}}}"#);
    let kernel = format!(r#"{{"kernel": {KERNEL}}}"#);
    let refused = r#"{"error": {"error": "no", "code": "build_failed"}}"#;
    let mut daemon = daemon(vec![
        vec![lines(&image)],
        vec![lines(&kernel)],
        vec![lines(refused)],
        vec![answer("200 OK", "{\"step\": \"one\"}\n")],
    ]);
    let mut told = Vec::new();
    let wanted = ImportImage { name: "a b".into(), size_mib: Some(7) };
    let archive = upload(vec![Ok("con".into()), Ok("tent".into())]);
    let made = daemon.client.import_image(&wanted, archive, Some(7), |step| told.push(step)).await.unwrap();
    assert_eq!((made.summary.id.as_str(), told.len()), ("x", 2));
    let request = daemon.requests.recv().await.unwrap();
    assert!(request.starts_with("POST /v1/images/import?name=a%20b&size_mib=7 "), "{request}");
    assert!(
        request.contains("accept: application/x-ndjson\r\n") && request.ends_with("\r\ncontent"),
        "{request}"
    );

    let made = daemon.client.add_kernel(&AddKernel::default(), |_| {}).await.unwrap();
    assert!(made.default && made.name == "6-x");
    daemon.requests.recv().await.unwrap();
    let pull = PullImage { reference: "x".into(), name: None, size_mib: None, credentials: None };
    let error = daemon.client.pull_image(&pull, |_| {}).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::BuildFailed));
    let error = daemon.client.pull_image(&pull, |_| {}).await.unwrap_err();
    assert!(matches!(error, ClientError::CutOff), "{error:?}");
}

/// What cannot be read to its end is not taken for the whole.
#[tokio::test]
async fn an_upload_that_breaks_is_named() {
    let daemon = one("200 OK", "");
    let broken = upload(vec![Ok("part".into()), Err(std::io::Error::other("the file is gone"))]);
    let wanted = ImportImage { name: "a".into(), size_mib: None };
    let error = daemon.client.import_image(&wanted, broken, Some(100), |_| {}).await.unwrap_err();
    assert!(matches!(error, ClientError::Upload(_)), "{error:?}");
}

/// Its answer is heard, since nothing is sent that is not read.
#[tokio::test]
async fn a_daemon_that_refuses_an_upload_gets_none_of_it() {
    let (_directory, listener, path) = socket();
    let daemon = tokio::spawn(async move {
        let mut stream = BufReader::new(listener.accept().await.unwrap().0);
        request(&mut stream).await.unwrap();
        let refusal = answer("403 Forbidden", r#"{"error": "no", "code": "forbidden"}"#);
        stream.write_all(refusal.as_bytes()).await.unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
        rest.len()
    });
    let client = Client::new(Address::Unix(path), None).unwrap();
    let wanted = ImportImage { name: "a".into(), size_mib: None };
    let archive = upload(vec![Ok(vec![0; 1 << 20].into())]);
    let error = client.import_image(&wanted, archive, None, |_| {}).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::Forbidden), "{error:?}");
    drop(client);
    assert_eq!(daemon.await.unwrap(), 0);
}
