//! Ports of a sandbox.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use forkd_api::error::ErrorCode;
use forkd_tests::engine::process::Failure;
use forkd_tests::engine::tiny::PATIENCE;
use tokio_tungstenite::tungstenite::{self, Message};

use crate::client::Answer;
use crate::world::World;

/// A server on a port of this host, which plays the guest's: what it does with each connection.
pub fn server(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Result<u16, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    let serve = std::sync::Arc::new(serve);
    thread::spawn(move || {
        for client in listener.incoming() {
            let (Ok(client), serve) = (client, serve.clone()) else { return };
            thread::spawn(move || serve(client));
        }
    });
    Ok(port)
}

/// The head of a request. Byte by byte: what comes after it is the body.
fn head(mut client: &TcpStream) -> String {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") && client.read(&mut byte).is_ok_and(|read| read > 0) {
        head.extend(byte);
    }
    String::from_utf8_lossy(&head).into_owned()
}

/// Answers every request with what was asked.
fn echo(mut client: TcpStream) {
    let head = head(&client);
    let _ = write!(
        client,
        "HTTP/1.1 404 Mine\r\nx-mine: yes\r\nkeep-alive: 5\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{head}",
        head.len()
    );
}

pub fn ask(world: &World, request: &str, headers: &str) -> Result<Answer, Failure> {
    let mut stream = UnixStream::connect(world.socket())?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "{request} HTTP/1.1\r\nhost: example.org\r\nconnection: close\r\n{headers}\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(|| format!("no answer: {text:?}"))?;
    let status = head.split(' ').nth(1).ok_or("no status")?.parse()?;
    Ok(Answer { status, head: head.to_ascii_lowercase(), body: body.to_owned() })
}

#[test]
fn requests_and_answers_pass_as_they_are() -> Result<(), Failure> {
    let mut world = World::new()?;
    let (id, _agent) = world.real()?;
    let port = server(echo)?;
    let base = format!("/v1/sandboxes/{id}/proxy/{port}");
    let token = format!("authorization: Bearer e2b_{}\r\nx-mine: 1\r\nte: trailers\r\n", "0".repeat(40));
    let answer = ask(&world, &format!("PATCH {base}/a%2Fb//c?d=%20&e"), &token)?;
    assert_eq!(answer.status, 404);
    assert!(answer.body.starts_with("PATCH /a%2Fb//c?d=%20&e HTTP/1.1\r\n"), "{}", answer.body);
    let seen = answer.body.to_ascii_lowercase();
    for part in [
        format!("host: localhost:{port}\r\n"),
        "x-mine: 1\r\n".into(),
        "x-forwarded-host: example.org\r\n".into(),
        "x-forwarded-proto: http\r\n".into(),
        format!("x-forwarded-prefix: {}\r\n", base.to_ascii_lowercase()),
    ] {
        assert!(seen.contains(&part), "{part}: {seen}");
    }
    assert!(!seen.contains("e2b_") && !seen.contains("trailers"), "{seen}");
    assert!(answer.head.contains("x-mine: yes") && answer.head.contains("x-request-id"), "{}", answer.head);
    assert!(!answer.head.contains("keep-alive") && answer.head.contains("content-security-policy: sandbox"));
    // What is for the guest is passed on.
    let basic = ask(&world, &format!("GET {base}"), "authorization: Basic bWU6\r\n")?;
    assert!(basic.body.starts_with("GET / HTTP/1.1") && basic.body.contains("Basic bWU6"), "{}", basic.body);
    for path in [format!("{base}/"), format!("{base}?x")] {
        assert_eq!(ask(&world, &format!("GET {path}"), "")?.status, 404);
    }
    Ok(())
}

#[test]
fn bodies_are_passed_on_as_they_come() -> Result<(), Failure> {
    const SIZE: usize = 100 << 20;
    let mut world = World::new()?;
    let (id, _agent) = world.real()?;
    // Sends back what it gets, at once.
    let port = server(|mut client| {
        let length: usize = head(&client)
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "))
            .and_then(|length| length.parse().ok())
            .unwrap_or(0);
        let _ = write!(client, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n");
        let Ok(from) = client.try_clone() else { return };
        let _ = std::io::copy(&mut from.take(length as u64), &mut client);
    })?;
    let before = world.peak_kib()?;
    let mut stream = UnixStream::connect(world.socket())?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(
        stream,
        "POST /v1/sandboxes/{id}/proxy/{port}/x HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {SIZE}\r\n\r\n"
    )?;
    let mut writer = stream.try_clone()?;
    let writing = thread::spawn(move || {
        for _ in 0..SIZE >> 20 {
            if writer.write_all(&vec![7; 1 << 20]).is_err() {
                return;
            }
        }
    });
    thread::sleep(Duration::from_secs(1));
    let mut read = 0;
    let mut buffer = vec![0; 1 << 20];
    loop {
        match stream.read(&mut buffer)? {
            0 => break,
            length => read += length,
        }
    }
    writing.join().map_err(|_| "the writer failed")?;
    assert!(read > SIZE, "{read}");
    let grown = world.peak_kib()? - before;
    assert!(grown < 32 << 10, "the daemon has grown by {grown} KiB");
    Ok(())
}

#[test]
fn web_sockets_pass() -> Result<(), Failure> {
    let mut world = World::new()?;
    let (id, _agent) = world.real()?;
    let port = server(|client| {
        let Ok(mut socket) = tungstenite::accept(client) else { return };
        while let Ok(message) = socket.read() {
            if (message.is_text() || message.is_binary()) && socket.send(message).is_err() {
                return;
            }
        }
    })?;
    let stream = UnixStream::connect(world.socket())?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let address = format!("ws://localhost/v1/sandboxes/{id}/proxy/{port}/socket");
    let (mut socket, answer) =
        tungstenite::client(address, stream).map_err(|error| format!("no WebSocket: {error}"))?;
    assert_eq!(answer.status(), 101);
    for message in [Message::text("HTTP/1.1 400 no"), Message::binary(vec![1; 300_000])] {
        socket.send(message.clone())?;
        assert_eq!(socket.read()?, message);
    }
    socket.close(None)?;
    while socket.read().is_ok() {}
    Ok(())
}

#[test]
fn what_is_not_there_or_not_for_others_is_refused() -> Result<(), Failure> {
    let mut world = World::new()?;
    let (id, _agent) = world.real()?;
    let free = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let silent = server(drop)?;
    let garbage = server(|mut client| {
        head(&client);
        let _ = client.write_all(b"SSH-2.0-OpenSSH_9.2\r\n");
    })?;
    let base = format!("/v1/sandboxes/{id}/proxy");
    for (path, code) in [
        (format!("{base}/{free}/"), ErrorCode::PortClosed),
        (format!("{base}/{silent}/"), ErrorCode::GuestFailed),
        (format!("{base}/{garbage}/"), ErrorCode::GuestFailed),
        (format!("{base}/49983/forkd/identity"), ErrorCode::Forbidden),
        (format!("{base}/49983/%66orkd/close"), ErrorCode::Forbidden),
        (format!("{base}/49999//forkd/x"), ErrorCode::Forbidden),
        (format!("{base}/49983/init"), ErrorCode::Forbidden),
        (format!("{base}/0/"), ErrorCode::Malformed),
        (format!("{base}/65536/"), ErrorCode::Malformed),
        (format!("{base}/http/"), ErrorCode::Malformed),
        ("/v1/sandboxes/none/proxy/80/".into(), ErrorCode::NotFound),
    ] {
        for method in ["GET", "POST", "OPTIONS"] {
            ask(&world, &format!("{method} {path}"), "")?
                .error(code)
                .map_err(|error| format!("{method} {path}: {error}"))?;
        }
    }
    // The agent's own services are ports like others.
    assert_eq!(ask(&world, &format!("GET {base}/49983/health"), "")?.status, 204);
    assert_eq!(ask(&world, &format!("GET {base}/49999/health"), "")?.status, 200);
    world.ask(&format!("POST /v1/sandboxes/{id}/pause"))?;
    ask(&world, &format!("GET {base}/80/"), "")?.error(ErrorCode::WrongState)?;
    Ok(())
}
