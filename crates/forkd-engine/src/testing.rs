//! An agent that gives one answer, behind a VM's socket.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;

use crate::agent::Agent;
use crate::guest::Guest;

/// An agent that reads one request until its end and answers. The task returns what it read, after the vsock greeting.
pub(crate) fn answering(status: &str, body: Vec<u8>) -> (tempfile::TempDir, Agent, JoinHandle<String>) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("vsock");
    let listener = UnixListener::bind(&path).unwrap();
    let head = format!("HTTP/1.1 {status}\r\nconnection: close\r\n\r\n");
    let task = tokio::spawn(async move {
        let (mut client, request) = accept(&listener).await;
        client.write_all(head.as_bytes()).await.unwrap();
        client.write_all(&body).await.unwrap();
        request
    });
    (directory, Agent::new(Guest::new(path)), task)
}

/// The next connection to a guest's port, and the request on it.
pub(crate) async fn accept(listener: &UnixListener) -> (UnixStream, String) {
    let (mut client, _) = listener.accept().await.unwrap();
    let mut greeting = [0; 14];
    client.read_exact(&mut greeting).await.unwrap();
    assert!(greeting.starts_with(b"CONNECT 499"), "{greeting:?}");
    client.write_all(b"OK 1\n").await.unwrap();
    let mut request = Vec::new();
    while !is_whole(&request) {
        let mut chunk = [0; 4096];
        let read = client.read(&mut chunk).await.unwrap();
        request.extend_from_slice(&chunk[..read]);
        if read == 0 {
            break;
        }
    }
    (client, String::from_utf8_lossy(&request).into_owned())
}

/// Whether a request has all of its body: as long as its header says, or the last chunk.
fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    match length.and_then(|length| length.parse::<usize>().ok()) {
        Some(length) => body.len() >= length,
        None => head.starts_with("GET") || body.ends_with("0\r\n\r\n"),
    }
}
