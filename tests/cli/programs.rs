//! Programs and code in sandboxes, as far as the command line is concerned.

use std::io::Write;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use forkd_tests::engine::process::Failure;
use forkd_tests::engine::tiny::PATIENCE;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use snapbox::{assert_data_eq, str};

use crate::outcome::outcome;
use crate::stand_in::{Act, ID, StandIn, image, snapshot, usual};
use crate::world::Home;

fn with_stdin(home: &Home, arguments: &[&str], stdin: &[u8]) -> Result<Output, Failure> {
    let mut command = home.command(arguments);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    child.stdin.take().ok_or("no stdin")?.write_all(stdin)?;
    Ok(child.wait_with_output()?)
}

#[test]
fn output_comes_as_it_is_and_the_status_is_the_programs() -> Result<(), Failure> {
    let home = Home::new()?;
    let program = [Act::Stdout(b"a\xff\0b"), Act::Stderr(b"oh\n"), Act::Stdout(b"c"), Act::Exit(42)];
    let daemon = StandIn::start(home.path(), &program, usual)?;
    let output = home.output(&[
        "exec",
        ID,
        "-e",
        "A=b",
        "-w",
        "/tmp",
        "-u",
        "me",
        "--timeout",
        "2m",
        "--",
        "sh",
        "-c",
        "x y",
    ])?;
    assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"a\xff\0bc"[..], &b"oh\n"[..]));
    assert_eq!(output.status.code(), Some(42));
    let start: Value = serde_json::from_str(&daemon.asked()[1])?;
    let expected = json!({
        "args": ["sh", "-c", "x y"], "env": { "A": "b" }, "cwd": "/tmp", "user": "me", "timeout_secs": 120,
    });
    assert_eq!(start, expected);
    Ok(())
}

#[test]
fn stdin_is_read_to_its_end() -> Result<(), Failure> {
    let home = Home::new()?;
    let program = [Act::Until("close_stdin"), Act::Echo, Act::Exit(0)];
    let _daemon = StandIn::start(home.path(), &program, usual)?;
    let large = vec![b'x'; 1 << 20];
    let output = with_stdin(&home, &["exec", ID, "--", "cat"], &large)?;
    assert!(output.status.success() && output.stdout == large, "{}", outcome(&output, home.path()));
    // Nothing to read is the same as an end.
    assert_data_eq!(
        home.run(&["exec", ID, "--", "cat"])?,
        str![[r#"
exit: 0

"#]]
    );
    Ok(())
}

#[test]
fn a_terminal_is_given_when_asked_for() -> Result<(), Failure> {
    let home = Home::new()?;
    let daemon = StandIn::start(home.path(), &[Act::Exit(0)], usual)?;
    home.stdout(&["exec", ID, "-t", "--", "top"])?;
    let start: Value = serde_json::from_str(&daemon.asked()[1])?;
    assert_eq!(start["tty"], json!({ "cols": 80, "rows": 24 }));
    Ok(())
}

#[test]
fn a_detached_command_runs_on_and_its_number_is_printed() -> Result<(), Failure> {
    let home = Home::new()?;
    let _daemon = StandIn::start(home.path(), &[], |request, body| {
        let expected = json!({
            "args": ["make", "-j2"], "env": { "A": "b" }, "cwd": "/tmp", "user": "me", "timeout_secs": 120,
        });
        match request == format!("POST /v1/sandboxes/{ID}/processes") {
            true if *body == expected => Some((201, json!({ "pid": 7 }).to_string())),
            true => Some((400, json!({ "error": body.to_string(), "code": "malformed" }).to_string())),
            false => None,
        }
    })?;
    let options = ["-e", "A=b", "-w", "/tmp", "-u", "me", "--timeout", "2m"];
    let exec = |first: &[&str]| home.run(&[first, &options, &["--", "make", "-j2"]].concat());
    assert_data_eq!(
        exec(&["exec", "-d", ID])?,
        str![[r#"
exit: 0
--- stdout
7

"#]]
    );
    assert_data_eq!(
        exec(&["exec", "--detach", ID, "--json"])?,
        str![[r#"
exit: 0
--- stdout
{
  "pid": 7
}

"#]]
    );
    Ok(())
}

#[test]
fn programs_that_are_ended_or_lost_are_said_to_be() -> Result<(), Failure> {
    let home = Home::new()?;
    let daemon = StandIn::start(home.path(), &[Act::Exit(137)], usual)?;
    assert_data_eq!(
        home.run(&["exec", ID, "--timeout", "1", "--", "sleep", "9"])?,
        str![[r#"
exit: 137
--- stderr
forkd: the command was ended after 1 s (--timeout)

"#]]
    );
    drop(daemon);
    std::fs::remove_file(home.path().join("forkd.sock"))?;
    let _daemon = StandIn::start(home.path(), &[Act::Stdout(b"half"), Act::Break], usual)?;
    assert_data_eq!(
        home.run(&["exec", ID, "--", "x"])?,
        str![[r#"
exit: 1
--- stdout
half--- stderr
forkd: the daemon closed the connection before the end of the answer
hint: the daemon's log may have the reason

"#]]
    );
    Ok(())
}

#[test]
fn a_run_makes_a_sandbox_and_removes_it() -> Result<(), Failure> {
    let home = Home::new()?;
    let daemon = StandIn::start(home.path(), &[Act::Stdout(b"hello\n"), Act::Exit(3)], usual)?;
    assert_data_eq!(
        home.run(&["run", "base", "--", "echo", "hello"])?,
        str![[r#"
exit: 3
--- stdout
hello

"#]]
    );
    let asked = daemon.asked();
    let ends = [&asked[..3], &asked[4..]].concat();
    let sandbox = format!("/v1/sandboxes/{ID}");
    assert_eq!(
        ends,
        [
            "GET /v1/snapshots/base".to_owned(),
            "POST /v1/sandboxes".to_owned(),
            format!("WebSocket GET {sandbox}/exec"),
            format!("DELETE {sandbox}"),
        ]
    );
    assert_data_eq!(
        home.run(&["run", "base", "--keep", "--", "echo", "hello"])?,
        str![[r#"
exit: 3
--- stdout
hello
--- stderr
forkd: sandbox ID is kept; forkd kill ID removes it

"#]]
    );
    Ok(())
}

#[test]
fn a_run_of_an_image_makes_its_snapshot_once() -> Result<(), Failure> {
    let home = Home::new()?;
    let made = std::sync::Mutex::new(false);
    let _daemon = StandIn::start(home.path(), &[Act::Exit(0)], move |request, body| {
        let mut made = made.lock().expect("nobody panics with it");
        if request == "GET /v1/images/python%3A3.12" {
            return Some((200, image("sha256:12").to_string()));
        }
        if request != "POST /v1/snapshots" {
            return usual(request, body);
        }
        // Without a tag: the daemon makes it once.
        assert!(body.get("tag").is_none() && body["image"] == "python:3.12", "{body}");
        assert!(body["memory_mib"] == 1024 && body["wait"] == false, "{body}");
        let last = json!({ "snapshot": snapshot("run-python-3.12-0") });
        let steps = "{\"step\":\"boot\"}\n{\"output\":\"x\"}\n{\"step\":\"freeze\"}\n";
        let steps = if std::mem::replace(&mut *made, true) { "" } else { steps };
        Some((200, format!("{steps}{last}\n")))
    })?;
    assert_data_eq!(
        home.run(&["run", "python:3.12", "--memory", "1G", "--", "true"])?,
        str![[r#"
exit: 0
--- stderr
forkd: snapshot python:3.12: boot
forkd: snapshot python:3.12: freeze

"#]]
    );
    assert_data_eq!(
        home.run(&["run", "python:3.12", "--memory", "1G", "--", "true"])?,
        str![[r#"
exit: 0

"#]]
    );
    Ok(())
}

#[test]
fn a_run_of_an_image_that_is_not_there_pulls_it_if_told_so() -> Result<(), Failure> {
    let home = Home::new()?;
    let _daemon = StandIn::start(home.path(), &[Act::Exit(0)], |request, body| match request {
        "POST /v1/images/pull" if body["reference"] == "python:3.12" => {
            let last = json!({ "image": image("sha256:12") });
            Some((
                200,
                format!(
                    "{{\"step\":\"pull\"}}\n{{\"detail\":\"1 of 2\"}}\n{{\"warning\":\"old\"}}\n{last}\n"
                ),
            ))
        }
        "POST /v1/snapshots" if body["image"] == "sha256:12" => {
            Some((200, format!("{}\n", json!({ "snapshot": snapshot("made") }))))
        }
        _ => usual(request, body),
    })?;
    assert_data_eq!(
        home.run(&["run", "python:3.12", "--", "true"])?,
        str![[r#"
exit: 1
--- stderr
forkd: no snapshot or image is named python:3.12
hint: forkd run --pull gets an image from a registry; forkd image pull, build and import make others

"#]]
    );
    assert_data_eq!(
        home.run(&["run", "--pull", "python:3.12", "--", "true"])?,
        str![[r#"
exit: 0
--- stderr
forkd: pull
forkd: warning: old

"#]]
    );
    Ok(())
}

#[test]
fn a_snapshot_is_made_as_it_is_described() -> Result<(), Failure> {
    let home = Home::new()?;
    let _daemon = StandIn::start(home.path(), &[], |request, body| {
        let expected = json!({
            "tag": "python-3.12", "image": "python:3.12", "vcpus": 2, "disk_mib": 8192,
            "cpu": "x86-64-v2", "env": { "A": "b=c" },
            "start": ["sh", "-c", "a b"], "ready": { "port": 80, "timeout_secs": 120 },
            "warm_up": [{ "language": "python", "code": "import numpy" }], "wait": true,
            "host_certs": false, "e2b": false, "network": true,
        });
        match request {
            "POST /v1/snapshots" if *body == expected => Some((200, "{\"step\":\"boot\"}\n{\"error\":{\"error\":\"it did not boot\",\"code\":\"guest_failed\",\"hint\":\"look at it\"}}\n".into())),
            _ => Some((400, json!({ "error": body.to_string(), "code": "malformed" }).to_string())),
        }
    })?;
    let arguments = [
        "snapshot",
        "python:3.12",
        "--vcpus",
        "2",
        "--disk",
        "8G",
        "--cpu",
        "x86-64-v2",
        "--env",
        "A=b=c",
        "--start",
        "sh -c 'a b'",
        "--ready-port",
        "80",
        "--ready-timeout",
        "2m",
        "--warm-up",
        "python=import numpy",
    ];
    assert_data_eq!(
        home.run(&arguments)?,
        str![[r#"
exit: 1
--- stderr
forkd: snapshot python-3.12: boot
forkd: it did not boot
hint: look at it

"#]]
    );
    Ok(())
}

#[test]
fn ctrl_c_reaches_the_program_and_the_sandbox_is_removed() -> Result<(), Failure> {
    let home = Home::new()?;
    for (program, times, status) in [
        // One that ends when it is interrupted, and one that does not.
        (&[Act::Stdout(b"up\n"), Act::Until("SIGINT"), Act::Exit(130)][..], 1, 130),
        (
            &[Act::Stdout(b"up\n"), Act::Until("SIGINT"), Act::Stdout(b"no\n"), Act::Until("never")][..],
            2,
            130,
        ),
    ] {
        let daemon = StandIn::start(home.path(), program, usual)?;
        let command = &mut home.command(&["run", "base", "--", "sleep", "60"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        for count in 1..=times {
            wait_for(&daemon, "{\"args\"", 1)?;
            if count == 2 {
                wait_for(&daemon, "SIGINT", 1)?;
            }
            // The program's start is known to it a moment after the daemon.
            std::thread::sleep(Duration::from_millis(100));
            kill_process(Pid::from_child(&child), Signal::INT)?;
        }
        let ended = child.wait()?;
        assert_eq!(ended.code(), Some(status));
        wait_for(&daemon, "DELETE", 1)?;
        drop(daemon);
        std::fs::remove_file(home.path().join("forkd.sock"))?;
    }
    Ok(())
}

pub fn wait_for(daemon: &StandIn, what: &str, times: usize) -> Result<(), Failure> {
    let begun = Instant::now();
    while daemon.asked().iter().filter(|asked| asked.contains(what)).count() < times {
        if begun.elapsed() > PATIENCE {
            return Err(format!("not in time: {what}: {:?}", daemon.asked()).into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

#[test]
fn ctrl_c_while_forking_leaves_nothing() -> Result<(), Failure> {
    let home = Home::new()?;
    let daemon = StandIn::start(home.path(), &[], |request, body| {
        if request.starts_with("POST /v1/sandboxes") {
            std::thread::sleep(Duration::from_millis(500));
        }
        usual(request, body)
    })?;
    let child = home.command(&["fork", "base"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    wait_for(&daemon, "POST /v1/sandboxes", 1)?;
    kill_process(Pid::from_child(&child), Signal::INT)?;
    assert_data_eq!(
        outcome(&child.wait_with_output()?, home.path()),
        str![[r#"
exit: 130
--- stderr
forkd: interrupted

"#]]
    );
    wait_for(&daemon, "DELETE", 1)?;
    Ok(())
}

#[test]
fn whoever_stops_reading_ends_it_quietly() -> Result<(), Failure> {
    let home = Home::new()?;
    // One piece of output: the stand-in would not get rid of a second one, and would not read on.
    let program = [Act::Stdout(b"1\n"), Act::Until("SIGHUP"), Act::Exit(0)];
    let daemon = StandIn::start(home.path(), &program, usual)?;
    let mut child =
        home.command(&["exec", ID, "--", "yes"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    drop(child.stdout.take());
    assert_data_eq!(
        outcome(&child.wait_with_output()?, home.path()),
        str![[r#"
exit: 141

"#]]
    );
    wait_for(&daemon, "SIGHUP", 1)?;
    Ok(())
}

/// A JSON value a line.
fn lines(values: &[Value]) -> String {
    values.iter().map(|value| format!("{value}\n")).collect()
}

#[test]
fn code_prints_then_has_a_value_or_fails() -> Result<(), Failure> {
    let home = Home::new()?;
    let _daemon = StandIn::start(home.path(), &[], |request, body| {
        let answer = match (request.ends_with("/eval"), body["code"].as_str()?) {
            (true, "good") => lines(&[
                json!({ "stdout": "out\n" }),
                json!({ "stderr": "err\n" }),
                json!({ "result": { "data": { "image/png": "aGk=" }, "main": false } }),
                json!({ "result": { "data": { "text/plain": "2" }, "main": true } }),
                json!({ "ended": { "timed_out": false, "truncated": true } }),
            ]),
            (true, "bad") => lines(&[
                json!({ "raised": { "name": "ValueError", "value": "no", "traceback": "Traceback:\nValueError: no\n" } }),
                json!({ "ended": { "timed_out": false, "truncated": false } }),
            ]),
            (true, "slow") => lines(&[
                json!({ "stdout": "out\n" }),
                json!({ "ended": { "timed_out": true, "truncated": false } }),
            ]),
            (true, "lost") => lines(&[
                json!({ "stdout": "out\n" }),
                json!({ "error": { "error": "the sandbox has ended", "code": "wrong_state" } }),
            ]),
            (true, "whole") => json!({
                "result": null, "results": [], "stdout": "", "stderr": "", "truncated": false,
                "error": { "name": "ValueError", "value": "no", "traceback": "Traceback:\nValueError: no\n" },
            })
            .to_string(),
            _ => return None,
        };
        Some((200, answer))
    })?;
    assert_data_eq!(
        home.run(&["eval", ID, "good"])?,
        str![[r#"
exit: 0
--- stdout
out
2
--- stderr
err
forkd: displayed image/png; --json has it
forkd: warning: display output omitted: too large

"#]]
    );
    assert_data_eq!(
        home.run(&["eval", ID, "slow", "--timeout", "7"])?,
        str![[r#"
exit: 1
--- stdout
out
--- stderr
forkd: the code was interrupted after 7 s (--timeout)

"#]]
    );
    assert_data_eq!(
        home.run(&["eval", ID, "lost"])?,
        str![[r#"
exit: 1
--- stdout
out
--- stderr
forkd: the sandbox has ended

"#]]
    );
    assert_data_eq!(
        home.run(&["eval", ID, "bad"])?,
        str![[r#"
exit: 1
--- stderr
Traceback:
ValueError: no

"#]]
    );
    assert_data_eq!(
        home.run(&["eval", ID, "whole", "--json"])?,
        str![[r#"
exit: 1
--- stdout
{
  "result": null,
  "results": [],
  "stdout": "",
  "stderr": "",
  "error": {
    "name": "ValueError",
    "value": "no",
    "traceback": "Traceback:/nValueError: no/n"
  },
  "timed_out": false,
  "truncated": false
}

"#]]
    );
    assert_data_eq!(
        outcome(&with_stdin(&home, &["eval", ID, "-"], b"bad")?, home.path()),
        str![[r#"
exit: 1
--- stderr
Traceback:
ValueError: no

"#]]
    );
    Ok(())
}

#[test]
fn whatever_else_answers_is_not_believed() -> Result<(), Failure> {
    let home = Home::new()?;
    let _daemon = StandIn::start(home.path(), &[], |request, _| match request {
        "GET /v1/sandboxes?limit=1000" => Some((200, "<html>".into())),
        "GET /v1/snapshots" => Some((502, "<html>".into())),
        // Colours, and a cursor that moves.
        _ => Some((
            404,
            json!({ "error": "\u{1b}[2Jboo\r\n", "code": "not_found", "hint": "\u{7}" }).to_string(),
        )),
    })?;
    assert_data_eq!(
        home.run(&["ls"])?,
        str![[r#"
exit: 1
--- stderr
forkd: the server at unix://HOME/forkd.sock is not forkd's daemon: invalid answer (expected value at line 1 column 1)
hint: --address or FORKD_ADDRESS names another

"#]]
    );
    assert_data_eq!(
        home.run(&["snapshot", "ls"])?,
        str![[r#"
exit: 1
--- stderr
forkd: the server at unix://HOME/forkd.sock is not forkd's daemon: it answered with status 502
hint: --address or FORKD_ADDRESS names another

"#]]
    );
    assert_data_eq!(
        home.run(&["logs", ID])?,
        str![[r#"
exit: 1
--- stderr
forkd: �[2Jboo�

hint: �

"#]]
    );
    Ok(())
}
