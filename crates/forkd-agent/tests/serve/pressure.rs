//! Much of everything: unread output, many processes, a full disk. The agent stays small and answers.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::Agent;
use crate::client::stdout;

/// A debug build rests at about 6 MiB; a slow reader may cost a few hundred KiB.
const MUCH: u64 = 24 << 10;
/// Of a debug build, after much work.
const AT_REST: u64 = 14 << 10;

fn shell(script: &str) -> Value {
    json!({"process": {"cmd": "sh", "args": ["-c", script]}, "stdin": false})
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn output_that_is_read_slowly_waits_in_the_process() {
    let agent = Agent::start();
    let mut stream = agent.client.stream("process.Process/Start", &shell("yes | head -c 50000000"));
    stream.pid();
    std::thread::sleep(Duration::from_secs(1));
    assert!(agent.resident() < MUCH, "{} KiB", agent.resident());
    assert_eq!(agent.client.get("/health").status, 204);
    let (events, end) = stream.all();
    assert_eq!(end, json!({}));
    assert!(stdout(&events) == "y\n".repeat(25_000_000), "a byte is lost or wrong");
    assert!(agent.resident() < MUCH, "{} KiB", agent.resident());
}

#[test]
fn output_without_a_reader_is_dropped() {
    let agent = Agent::start();
    let directory = tempfile::tempdir().unwrap();
    let mark = directory.path().join("mark");
    let script = format!("head -c 1000000000 /dev/zero; echo done > {}", mark.display());
    let mut stream = agent.client.stream("process.Process/Start", &shell(&script));
    stream.pid();
    drop(stream);
    wait_for("the process waits for a client that is gone", || mark.exists());
    assert!(agent.resident() < MUCH, "{} KiB", agent.resident());
}

#[test]
fn a_thousand_processes_at_once() {
    let agent = Agent::start();
    let mut streams = Vec::new();
    for _ in 0..1000 {
        let start = json!({"process": {"cmd": "cat"}, "stdin": true});
        let mut stream = agent.client.stream("process.Process/Start", &start);
        let pid = stream.pid();
        streams.push((pid, stream));
    }
    let (_, list) = agent.client.unary("process.Process/List", &json!({}));
    assert_eq!(list["processes"].as_array().map(Vec::len), Some(1000));
    for (pid, stream) in &mut streams {
        let input = json!({"process": {"pid": pid}, "input": {"stdin": "aGkK"}});
        assert_eq!(agent.client.unary("process.Process/SendInput", &input).0, 200);
        agent.client.unary("process.Process/CloseStdin", &json!({"process": {"pid": pid}}));
        let (events, _) = stream.all();
        assert_eq!(events[0]["data"]["stdout"], "aGkK");
        assert_eq!(events[1]["end"]["exitCode"], 0);
    }
    assert_eq!(agent.client.unary("process.Process/List", &json!({})).1, json!({"processes": []}));
    drop(streams);
    wait_for("the memory of a thousand streams is kept", || agent.resident() < AT_REST);
}

#[test]
fn a_message_that_is_too_large_is_refused() {
    let agent = Agent::start();
    let message = json!({"process": {"pid": 1}, "input": {"stdin": "A".repeat(17 << 20)}});
    assert_eq!(agent.client.unary("process.Process/SendInput", &message).0, 429);
    assert!(agent.resident() < 2 * MUCH, "{} KiB", agent.resident());
}

#[test]
fn a_full_disk_is_said_and_the_space_comes_back() {
    // A small tmpfs, where the one who runs the tests may mount one.
    let agent = Agent::start();
    let directory = tempfile::tempdir().unwrap();
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"])
        .arg(directory.path())
        .status()
        .is_ok_and(|status| status.success());
    if !mounted {
        return;
    }
    let path = directory.path().join("large");
    let target = format!("/files?path={}", path.display());
    let refused = agent.client.call("POST", &target, "application/octet-stream", &vec![7; 4 << 20]);
    let left = path.exists();
    let small = agent.client.call("POST", &target, "application/octet-stream", b"small");
    let _ = std::process::Command::new("umount").arg(directory.path()).status();
    assert_eq!((refused.status, &refused.json()["code"]), (507, &json!(507)));
    assert!(!left, "what did not fit is still there");
    assert_eq!(small.status, 200);
}
