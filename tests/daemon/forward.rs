//! Verbs that stay for a while: `forkd port-forward`, `forkd wait`, `forkd logs -f`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;

use forkd_api::error::ErrorCode;
use forkd_tests::binaries;
use forkd_tests::engine::process::Failure;
use forkd_tests::engine::tiny::{PATIENCE, run_directory};
use rustix::process::Signal;
use serde_json::Value;

use crate::proxy::{ask, server};
use crate::world::World;

/// A command that runs, and what it prints.
struct Running {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Running {
    fn start(world: &World, arguments: &[&str]) -> Result<Running, Failure> {
        let mut child =
            binaries::forkd(world.home(), arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let stdout = BufReader::new(child.stdout.take().ok_or("no stdout")?);
        Ok(Running { child, stdout })
    }

    fn line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    /// Its exit status, and what it has printed to stderr.
    fn end(mut self) -> Result<(Option<i32>, String), Failure> {
        let mut stderr = String::new();
        self.child.stderr.take().ok_or("no stderr")?.read_to_string(&mut stderr)?;
        Ok((self.child.wait()?.code(), stderr))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn local_ports_lead_to_ports_of_a_sandbox() -> Result<(), Failure> {
    let mut world = World::new()?;
    let (id, _agent) = world.real()?;
    // Reads until the client has said all, and answers then: only a direction that can be closed alone shows the end.
    let counts = server(|mut client| {
        let mut read = Vec::new();
        let _ = client.read_to_end(&mut read);
        let _ = write!(client, "{} bytes, {}", read.len(), read.iter().all(|byte| *byte == 7));
    })?;
    let greets = server(|mut client| drop(client.write_all(b"hello\n")))?;
    let closed = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let [first, second, third] = [counts, greets, closed].map(|port| format!(":{port}"));
    let mut forward = Running::start(&world, &["port-forward", &id, &first, &second, &third])?;
    let mut locals = Vec::new();
    for port in [counts, greets, closed] {
        let line = forward.line()?;
        let (local, remote) = line.split_once(" -> ").ok_or_else(|| format!("no port: {line:?}"))?;
        assert!(local.starts_with("127.0.0.1:") && remote == port.to_string(), "{line}");
        locals.push(local.to_owned());
    }
    let connect = |local: &String| -> Result<TcpStream, Failure> {
        let stream = TcpStream::connect(local)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(stream)
    };
    // Several at once, in any order, each with its own bytes.
    let mut streams = Vec::new();
    for megabytes in [0, 3, 1] {
        let mut stream = connect(&locals[0])?;
        stream.write_all(&vec![7; megabytes << 20])?;
        streams.push((megabytes, stream));
    }
    for (megabytes, mut stream) in streams.into_iter().rev() {
        let mut greeting = String::new();
        connect(&locals[1])?.read_to_string(&mut greeting)?;
        assert_eq!(greeting, "hello\n");
        stream.shutdown(Shutdown::Write)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        assert_eq!(answer, format!("{} bytes, true", megabytes << 20));
    }
    // A port that nothing listens on ends the connection and nothing else.
    assert_eq!(connect(&locals[2])?.read(&mut [0])?, 0);
    let mut greeting = String::new();
    connect(&locals[1])?.read_to_string(&mut greeting)?;
    assert_eq!(greeting, "hello\n");
    world.ask(&format!("DELETE /v1/sandboxes/{id}"))?;
    let (status, stderr) = forward.end()?;
    assert_eq!(status, Some(1), "{stderr}");
    let refused = format!("port {closed}: no process listens on port {closed}");
    assert!(stderr.contains(&refused), "{stderr}");
    assert!(stderr.contains(&format!("sandbox {id} ended: it was removed")), "{stderr}");
    Ok(())
}

#[test]
fn bytes_are_passed_on_only_where_that_is_asked_for_and_allowed() -> Result<(), Failure> {
    let mut world = World::new()?;
    let (id, _agent) = world.real()?;
    let port = server(drop)?;
    let base = format!("/v1/sandboxes/{id}/ports");
    let wants = |protocol: &str| format!("connection: upgrade\r\nupgrade: {protocol}\r\n");
    for (path, headers, code) in [
        (format!("{base}/{port}"), String::new(), ErrorCode::Malformed),
        (format!("{base}/{port}"), wants("websocket"), ErrorCode::Malformed),
        (format!("{base}/0"), wants("tcp"), ErrorCode::Malformed),
        (format!("{base}/65536"), wants("tcp"), ErrorCode::Malformed),
        (format!("{base}/49983"), wants("tcp"), ErrorCode::Forbidden),
        (format!("{base}/49999"), wants("tcp"), ErrorCode::Forbidden),
        ("/v1/sandboxes/none/ports/80".into(), wants("tcp"), ErrorCode::NotFound),
    ] {
        ask(&world, &format!("GET {path}"), &headers)?
            .error(code)
            .map_err(|error| format!("{path} {headers:?}: {error}"))?;
    }
    Ok(())
}

#[test]
fn an_end_is_waited_for_also_when_the_daemon_is_restarted() -> Result<(), Failure> {
    let mut world = World::new()?;
    let ids: Vec<String> = world.fork("base", 3)?.into_iter().map(|sandbox| sandbox.id).collect();
    assert_eq!(world.forkd(&["ttl", &ids[0]])?, "never");
    let mut wait = Running::start(&world, &["wait", &ids[0], &ids[1], &ids[1]])?;
    let mut all = Running::start(&world, &["wait", "--json", "--timeout", "100", &ids[2]])?;
    let late = Running::start(&world, &["wait", "--timeout", "1", &ids[2]])?;
    let (status, stderr) = late.end()?;
    assert_eq!(status, Some(1));
    assert!(stderr.contains("not all sandboxes ended within 1 s"), "{stderr}");
    world.ask(&format!("DELETE /v1/sandboxes/{}", ids[1]))?;
    assert_eq!(wait.line()?, format!("{}  removed", ids[1]));
    world.end(Signal::KILL)?;
    std::thread::sleep(Duration::from_secs(1));
    world.start(&[])?;
    let left = world.forkd(&["ttl", &ids[0], "1"])?;
    assert!(["1s", "now"].contains(&left.as_str()), "{left}");
    assert!(wait.line()?.starts_with(&format!("{}  ", ids[0])));
    assert_eq!(wait.end()?.0, Some(0));
    // One that has ended is not waited for.
    assert!(world.forkd(&["wait", &ids[0]])?.starts_with(&ids[0]));
    world.forkd(&["ttl", &ids[2], "1h"])?;
    assert_eq!(world.forkd(&["ttl", &ids[2], "never"])?, "never");
    world.forkd(&["rm", &ids[2]])?;
    let mut printed = String::new();
    all.stdout.read_to_string(&mut printed)?;
    assert_eq!(all.end()?.0, Some(0));
    let waited: Value = serde_json::from_str(&printed)?;
    assert_eq!(waited[0]["sandbox"], ids[2].as_str());
    Ok(())
}

#[test]
fn a_console_is_followed_until_its_sandbox_ends() -> Result<(), Failure> {
    let world = World::new()?;
    let id = world.fork("base", 1)?.remove(0).id;
    // The guest itself may be in the middle of a line.
    world.forkd(&["pause", &id])?;
    let log = run_directory(&world.root()).join("sandboxes").join(&id).join("console.log");
    std::fs::write(&log, "one\ntwo\n")?;
    let mut follow = Running::start(&world, &["logs", "-f", "--bytes", "4", &id])?;
    assert_eq!(follow.line()?, "two");
    let mut file = std::fs::OpenOptions::new().append(true).open(&log)?;
    for line in ["three", "four"] {
        file.write_all(format!("{line}\n").as_bytes())?;
        assert_eq!(follow.line()?, line);
    }
    file.write_all(b"last")?;
    world.forkd(&["ttl", &id, "1"])?;
    let mut rest = String::new();
    follow.stdout.read_to_string(&mut rest)?;
    assert_eq!(rest, "last");
    assert_eq!(follow.end()?, (Some(0), String::new()));
    assert_eq!(world.forkd(&["logs", "--bytes", "4", &id])?, "last");
    Ok(())
}
