//! Requests to a Firecracker process over its API socket: one request, one answer, HTTP/1.1.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use serde_json::Value;

use crate::engine::process::Failure;

/// No answer is longer.
const LONGEST_ANSWER: usize = 64 << 10;

/// Sends a request that changes something, and waits until it is carried out.
pub(super) fn request(
    stream: &mut UnixStream,
    method: &str,
    target: &str,
    body: &Value,
) -> Result<(), Failure> {
    let body = body.to_string();
    let length = body.len();
    let request = format!(
        "{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes())?;
    let answer = Answer::read(stream)?;
    match answer.status {
        200..300 => Ok(()),
        status => Err(format!("refused with {status}, {}", answer.body.trim()).into()),
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: u16,
    body: String,
}

impl Answer {
    /// Reads exactly one answer: the connection stays open after it.
    fn read(stream: &mut impl Read) -> Result<Answer, Failure> {
        let mut bytes: Vec<u8> = Vec::new();
        let mut looked_at = 0;
        let head_end = loop {
            if let Some(at) = bytes[looked_at..].windows(4).position(|window| window == b"\r\n\r\n") {
                break looked_at + at;
            }
            looked_at = bytes.len().saturating_sub(3);
            more(stream, &mut bytes)?;
        };
        let head = std::str::from_utf8(&bytes[..head_end])?;
        let (status, length) = parse_head(head)?;
        let body_begin = head_end + 4;
        let body_end = body_begin
            .checked_add(length)
            .filter(|end| *end <= LONGEST_ANSWER)
            .ok_or_else(|| format!("an answer of {length} bytes is too long"))?;
        while bytes.len() < body_end {
            more(stream, &mut bytes)?;
        }
        let body = String::from_utf8_lossy(&bytes[body_begin..body_end]).into_owned();
        Ok(Answer { status, body })
    }
}

/// Reads what is there, at least a byte.
fn more(stream: &mut impl Read, bytes: &mut Vec<u8>) -> Result<(), Failure> {
    let mut chunk = [0; 4096];
    let read = stream.read(&mut chunk)?;
    if read == 0 {
        return Err("the connection ended before the answer did".into());
    }
    if bytes.len() + read > LONGEST_ANSWER {
        return Err(format!("an answer is longer than {LONGEST_ANSWER} bytes").into());
    }
    bytes.extend_from_slice(&chunk[..read]);
    Ok(())
}

/// The status, and the length of the body.
fn parse_head(head: &str) -> Result<(u16, usize), Failure> {
    let mut lines = head.split("\r\n");
    let first = lines.next().unwrap_or_default();
    let status = first
        .strip_prefix("HTTP/1.1 ")
        .and_then(|rest| rest.split(' ').next()?.parse().ok())
        .ok_or_else(|| format!("not an answer in HTTP/1.1: {first:?}"))?;
    let mut length = 0;
    for line in lines {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().map_err(|_| format!("a body of {:?} bytes", value.trim()))?;
        }
    }
    Ok((status, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives one byte at a time.
    struct Slow<'a>(&'a [u8]);

    impl Read for Slow<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let mut one = &self.0[..self.0.len().min(1)];
            let read = one.read(buffer)?;
            self.0 = &self.0[read..];
            Ok(read)
        }
    }

    fn read(bytes: &[u8]) -> Result<Answer, String> {
        let whole = Answer::read(&mut { bytes }).map_err(|error| error.to_string());
        let slow = Answer::read(&mut Slow(bytes)).map_err(|error| error.to_string());
        assert_eq!(whole, slow);
        whole
    }

    #[test]
    fn answers_are_read() {
        let done =
            read(b"HTTP/1.1 204 \r\nServer: Firecracker API\r\nConnection: keep-alive\r\n\r\n").unwrap();
        assert_eq!((done.status, done.body.as_str()), (204, ""));
        let refused = read(b"HTTP/1.1 400 \r\ncontent-length: 4\r\n\r\nno\r\n").unwrap();
        assert_eq!((refused.status, refused.body.as_str()), (400, "no\r\n"));
    }

    #[test]
    fn bad_answers_are_errors() {
        for (bytes, says) in [
            (&b""[..], "ended before"),
            (b"HTTP/1.1 204 \r\n", "ended before"),
            (b"HTTP/1.1 200 \r\nContent-Length: 5\r\n\r\nfour", "ended before"),
            (b"220 mail\r\n\r\n", "not an answer"),
            (b"HTTP/1.1 many\r\n\r\n", "not an answer"),
            (b"HTTP/1.1 200 \r\nContent-Length: -1\r\n\r\n", "a body of"),
            (b"HTTP/1.1 200 \r\nContent-Length: 65536\r\n\r\n", "too long"),
            (b"HTTP/1.1 200 \r\nContent-Length: 18446744073709551615\r\n\r\n", "too long"),
            (&[b'x'; LONGEST_ANSWER + 1], "longer than"),
        ] {
            let error = read(bytes).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn a_refusal_is_an_error_with_its_reason() {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"HTTP/1.1 400 \r\nContent-Length: 24\r\n\r\n{\"fault_message\":\"full\"}").unwrap();
        let body = serde_json::json!({ "state": "Paused" });
        let error = request(&mut ours, "PATCH", "/vm", &body).unwrap_err().to_string();
        assert_eq!(error, r#"refused with 400, {"fault_message":"full"}"#);
        drop(ours);
        let mut sent = String::new();
        theirs.read_to_string(&mut sent).unwrap();
        assert!(sent.starts_with("PATCH /vm HTTP/1.1\r\n"), "{sent}");
        assert!(sent.ends_with("Content-Length: 18\r\n\r\n{\"state\":\"Paused\"}"), "{sent}");
    }
}
