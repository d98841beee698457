//! Errors that the OpenAPI document promises. Those that every operation can have are provoked here, for every operation that
//! there is; of the others, each code is in some test.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;

use forkd_api::error::{ErrorBody, ErrorCode};
use forkd_tests::check;
use forkd_tests::engine::process::Failure;
use serde_json::Value;

use crate::world::World;

/// Codes that no request can get, or only by breaking the daemon or a guest for good.
const ELSEWHERE: [(ErrorCode, &str); 4] = [
    (ErrorCode::Internal, "handlers that panic are in the daemon's own tests"),
    (
        ErrorCode::PermissionDenied,
        "the tests' agent is root; which error it is, is tested beside the table of errors",
    ),
    (ErrorCode::GuestDiskFull, "the tests' agent has this host's disk; the same"),
    (ErrorCode::PortClosed, "comes with the proxy to the ports of guests"),
];

/// An operation of the document.
struct Operation {
    request: String,
    promises: Vec<u16>,
    takes_json: bool,
    has_parameters: bool,
}

fn operations(world: &World) -> Result<Vec<Operation>, Failure> {
    let document: Value = world.ask("GET /openapi.json")?.parsed(200)?;
    let mut operations = Vec::new();
    for (path, item) in document["paths"].as_object().ok_or("no paths")? {
        for (method, operation) in item.as_object().ok_or("no methods")? {
            let promises = operation["responses"].as_object().ok_or("no responses")?.keys();
            operations.push(Operation {
                request: format!("{} {path}", method.to_ascii_uppercase()),
                promises: promises.filter_map(|status| status.parse().ok()).collect(),
                takes_json: operation["requestBody"]["content"]["application/json"].is_object(),
                has_parameters: path.contains('{'),
            });
        }
    }
    check!(operations.len() > 20, "{} operations", operations.len());
    Ok(operations)
}

/// A path with something in the place of its parameters.
fn filled(request: &str, with: &str) -> String {
    let pieces = request.split('{').enumerate();
    pieces
        .map(|(number, piece)| match number {
            0 => piece.to_owned(),
            _ => format!("{with}{}", piece.split_once('}').map_or("", |(_, rest)| rest)),
        })
        .collect()
}

/// The status and the error of a request of which only the head is sent, and so much of a body.
fn ask(
    mut stream: impl Read + Write,
    request: &str,
    headers: &str,
    body: &str,
) -> Result<(u16, ErrorCode), Failure> {
    let request = format!("{request} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n{body}");
    let mut text = String::new();
    // A daemon that has heard enough may close before it has read all.
    let _ = stream.write_all(request.as_bytes());
    let _ = stream.read_to_string(&mut text);
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
    let body = text.split_once("\r\n\r\n").map(|(_, body)| serde_json::from_str::<ErrorBody>(body));
    match (status, body) {
        (Some(status), Some(Ok(body))) => Ok((status, body.code)),
        _ => Err(format!("no error: {text}").into()),
    }
}

fn refused(operation: &Operation, answer: (u16, ErrorCode), code: ErrorCode) -> Result<(), Failure> {
    let request = &operation.request;
    check!(answer == (code.status(), code), "{request} is answered with {answer:?}, not {code:?}");
    check!(operation.promises.contains(&code.status()), "{request} does not say that it can be {code:?}");
    Ok(())
}

#[test]
fn every_operation_refuses_what_makes_no_sense() -> Result<(), Failure> {
    let world = World::new()?;
    let connect = || UnixStream::connect(world.socket());
    for operation in operations(&world)? {
        let request = filled(&operation.request.replace("{pid}", "7"), "none");
        if operation.has_parameters {
            let answer = ask(connect()?, &filled(&operation.request, "%ff"), "content-length: 0\r\n", "")?;
            refused(&operation, answer, ErrorCode::Malformed)?;
        }
        if !operation.takes_json {
            continue;
        }
        let json = "content-type: application/json\r\n";
        for (headers, body, code) in [
            (format!("{json}content-length: 1\r\n"), "{", ErrorCode::Malformed),
            (
                "content-type: text/plain\r\ncontent-length: 2\r\n".into(),
                "{}",
                ErrorCode::UnsupportedMediaType,
            ),
            (format!("{json}content-length: 4000000\r\n"), "{", ErrorCode::TooLarge),
        ] {
            refused(&operation, ask(connect()?, &request, &headers, body)?, code)?;
        }
    }
    Ok(())
}

#[test]
fn every_operation_asks_who_is_there() -> Result<(), Failure> {
    let world = World::with(&["--listen", "127.0.0.1:0"])?;
    let reader = world.token("reader", "read")?;
    let address = world.address()?;
    let (mut asked, mut forbidden) = (0, 0);
    for operation in operations(&world)? {
        let request = filled(&operation.request, "none");
        let connect = || TcpStream::connect(&address);
        let public = ["GET /healthz", "GET /openapi.json", "GET /v1/ca"].contains(&request.as_str());
        if public {
            check!(!operation.promises.contains(&401), "{request} needs no token");
            continue;
        }
        refused(
            &operation,
            ask(connect()?, &request, "content-length: 0\r\n", "")?,
            ErrorCode::Unauthorized,
        )?;
        asked += 1;
        if operation.promises.contains(&403) && !request.starts_with("GET") {
            let token = format!("authorization: Bearer {reader}\r\ncontent-length: 0\r\n");
            refused(&operation, ask(connect()?, &request, &token, "")?, ErrorCode::Forbidden)?;
            forbidden += 1;
        }
    }
    check!(asked > 15 && forbidden > 5, "{asked} operations ask, {forbidden} forbid");
    Ok(())
}

/// A code that nobody expects anywhere is one that nobody has seen.
#[test]
fn every_code_is_expected_by_some_test() -> Result<(), Failure> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut text = String::new();
    for directory in [manifest.join("daemon"), manifest.join("../crates/forkd-daemon/tests/serve")] {
        for entry in fs::read_dir(directory)?.flatten() {
            if entry.path().is_file() && !entry.path().ends_with("documented.rs") {
                text.push_str(&fs::read_to_string(entry.path())?);
            }
        }
    }
    let world = World::new()?;
    let document: Value = world.ask("GET /openapi.json")?.parsed(200)?;
    let codes: Vec<ErrorCode> =
        serde_json::from_value(document["components"]["schemas"]["ErrorCode"]["enum"].clone())?;
    check!(codes.len() > 20, "{codes:?}");
    let seen = |code: &ErrorCode| text.contains(&format!("ErrorCode::{code:?}"));
    let excused = |code: &ErrorCode| ELSEWHERE.iter().any(|(other, why)| other == code && !why.is_empty());
    let unseen: Vec<_> = codes.iter().filter(|code| !seen(code) && !excused(code)).collect();
    check!(unseen.is_empty(), "no test expects {unseen:?}");
    Ok(())
}
