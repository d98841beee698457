//! Code and programs that run: streamed, interrupted, found again and fed by others than who started them.

use std::io::{BufRead, BufReader, Write};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use forkd_api::code::{CodeContext, EvalEvent, Evaluated, Interrupted};
use forkd_api::error::ErrorCode;
use forkd_api::exec::{ExecEvent, Process, StartedProcess};
use forkd_api::file::FileList;
use forkd_tests::binaries;
use forkd_tests::engine::process::Failure;
use serde_json::{Value, json};

use crate::client::Lines;
use crate::interact::Seat;
use crate::world::World;

const NDJSON: &str = "accept: application/x-ndjson\r\n";
const ENDLESS: &str = "import time\nprint('here', flush=True)\nwhile True: time.sleep(0.05)";
const DEAF: &str = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('deaf', flush=True)\ntime.sleep(300)";

fn next<T: serde::de::DeserializeOwned>(lines: &mut Lines) -> Result<T, Failure> {
    Ok(serde_json::from_value(lines.next()?.ok_or("the stream has ended")?)?)
}

#[test]
fn code_is_heard_as_it_runs_and_not_lost_at_a_timeout() -> Result<(), Failure> {
    let mut world = World::new()?;
    let (id, _agent) = world.real()?;
    let eval = format!("POST /v1/sandboxes/{id}/eval");
    let code =
        "import sys, time\nprint('one', flush=True)\ntime.sleep(1)\nprint('two', file=sys.stderr)\n6 * 7";
    let begun = Instant::now();
    let mut lines = world.lines_of(NDJSON, &eval, &json!({ "code": code }))?;
    assert_eq!(next::<EvalEvent>(&mut lines)?, EvalEvent::Stdout("one\n".into()));
    assert!(begun.elapsed() < Duration::from_millis(900), "it came with the end");
    assert_eq!(next::<EvalEvent>(&mut lines)?, EvalEvent::Stderr("two\n".into()));
    let EvalEvent::Result(shown) = next(&mut lines)? else { return Err("no result".into()) };
    assert_eq!((shown.main, &shown.data["text/plain"][..]), (true, "42"));
    let ended = |timed_out| EvalEvent::Ended { timed_out, truncated: false };
    assert_eq!(next::<EvalEvent>(&mut lines)?, ended(false));
    assert!(lines.next()?.is_none());

    // So is a picture, which comes before the end of its code.
    let drawn =
        "class Dot:\n  def _repr_png_(self): return b'dot'\ndisplay(Dot())\nimport time; time.sleep(2)";
    let begun = Instant::now();
    let mut lines = world.lines_of(NDJSON, &eval, &json!({ "code": drawn }))?;
    let EvalEvent::Result(shown) = next(&mut lines)? else { return Err("no picture".into()) };
    assert!(begun.elapsed() < Duration::from_millis(1900), "it came with the end");
    assert_eq!((shown.main, &shown.data["image/png"][..]), (false, "ZG90"));
    assert_eq!(next::<EvalEvent>(&mut lines)?, ended(false));

    let mut lines = world.lines_of(NDJSON, &eval, &json!({ "code": "kept = 1\n1 / 0" }))?;
    assert!(matches!(next(&mut lines)?, EvalEvent::Raised(error) if error.name == "ZeroDivisionError"));
    assert_eq!(next::<EvalEvent>(&mut lines)?, ended(false));

    let over: Evaluated = world.tell(&eval, json!({ "code": ENDLESS, "timeout_secs": 1 }))?.parsed(200)?;
    assert_eq!((over.timed_out, over.stdout.as_str(), &over.error), (true, "here\n", &None));
    let mut lines = world.lines_of(NDJSON, &eval, &json!({ "code": ENDLESS, "timeout_secs": 1 }))?;
    assert_eq!(next::<EvalEvent>(&mut lines)?, EvalEvent::Stdout("here\n".into()));
    assert_eq!(next::<EvalEvent>(&mut lines)?, ended(true));

    // A reader that goes away ends its code, whose state stays.
    let mut lines = world.lines_of(NDJSON, &eval, &json!({ "code": ENDLESS }))?;
    next::<EvalEvent>(&mut lines)?;
    drop(lines);
    let kept: Evaluated = world.tell(&eval, json!({ "code": "kept" }))?.parsed(200)?;
    assert_eq!(kept.result.as_deref(), Some("1"));
    world.refuses(ErrorCode::NotFound, &eval, json!({ "code": "1", "context": "none" })).map(drop)
}

#[test]
fn contexts_are_made_interrupted_restarted_and_removed() -> Result<(), Failure> {
    let mut world = World::new()?;
    let (id, _agent) = world.real()?;
    let at = |below: &str| format!("/v1/sandboxes/{id}/contexts{below}");
    let eval = format!("POST /v1/sandboxes/{id}/eval");
    let made: CodeContext = world
        .tell(&format!("POST {}", at("")), json!({ "language": "python", "cwd": "/tmp" }))?
        .parsed(201)?;
    assert_eq!((made.language.as_str(), made.cwd.as_str(), made.busy), ("python", "/tmp", false));
    let context = made.id;
    let result = |code: &str| -> Result<Evaluated, Failure> {
        world.tell(&eval, json!({ "code": code, "context": context }))?.parsed(200)
    };
    result("state = 1")?;
    let busy = || -> Result<bool, Failure> {
        let contexts: Vec<CodeContext> = world.ask(&format!("GET {}", at("")))?.parsed(200)?;
        Ok(contexts.iter().find(|one| one.id == context).ok_or("not listed")?.busy)
    };
    let interrupt = |grace_secs: u64| -> Result<bool, Failure> {
        let path = format!("POST {}", at(&format!("/{context}/interrupt")));
        Ok(world.tell(&path, json!({ "grace_secs": grace_secs }))?.parsed::<Interrupted>(200)?.restarted)
    };
    assert!(!busy()? && !interrupt(1)?);
    let endless = json!({ "code": ENDLESS, "context": context });
    let mut lines = world.lines_of(NDJSON, &eval, &endless)?;
    next::<EvalEvent>(&mut lines)?;
    assert!(busy()?);
    assert!(!interrupt(20)?, "an interrupt was enough");
    assert!(matches!(next(&mut lines)?, EvalEvent::Raised(error) if error.name == "KeyboardInterrupt"));
    assert_eq!(result("state")?.result.as_deref(), Some("1"));

    let mut lines = world.lines_of(NDJSON, &eval, &json!({ "code": DEAF, "context": context }))?;
    next::<EvalEvent>(&mut lines)?;
    assert!(interrupt(1)?, "it does not hear interrupts");
    assert!(matches!(next(&mut lines)?, EvalEvent::Raised(error) if error.name == "ContextEnded"));
    assert_eq!(result("state")?.error.ok_or("the variables are there")?.name, "NameError");
    result("state = 2")?;
    assert_eq!(world.ask(&format!("POST {}", at(&format!("/{context}/restart"))))?.status, 204);
    assert!(result("state")?.error.is_some());

    // Removed twice: the second says what the first said.
    let remove = format!("DELETE {}", at(&format!("/{context}")));
    assert_eq!((world.ask(&remove)?.status, world.ask(&remove)?.status), (204, 204));
    for (request, body) in [
        (format!("POST {}", at(&format!("/{context}/restart"))), json!({})),
        (format!("POST {}", at(&format!("/{context}/interrupt"))), json!({})),
        (format!("DELETE {}", at("/none")), json!({})),
    ] {
        world.refuses(ErrorCode::NotFound, &request, body)?;
    }
    world.refuses(ErrorCode::Malformed, &format!("POST {}", at("")), json!({ "cwd": "" })).map(drop)
}

#[test]
fn programs_are_found_heard_fed_and_signalled_by_others() -> Result<(), Failure> {
    let mut world = World::new()?;
    let (id, _agent) = world.real()?;
    let at = |below: &str| format!("/v1/sandboxes/{id}/processes{below}");
    let start = |body: Value| -> Result<u32, Failure> {
        Ok(world.tell(&format!("POST {}", at("")), body)?.parsed::<StartedProcess>(201)?.pid)
    };
    let list = || -> Result<Vec<Process>, Failure> { world.ask(&format!("GET {}", at("")))?.parsed(200) };
    let script = "trap 'echo asked; exit 5' TERM; while read line; do echo \"got $line\"; done; echo end; exec 2>&-; while :; do sleep 0.05; done";
    let pid = start(json!({ "args": ["bash", "-c", script], "stdin": true, "cwd": "/" }))?;
    let listed = list()?;
    let process = listed.iter().find(|process| process.pid == pid).ok_or("not listed")?;
    assert_eq!((&process.args[2][..], process.cwd.as_deref(), process.tty), (script, Some("/"), false));

    // Two listen, one of them at a WebSocket, and a third writes.
    let mut lines = world.lines_of(NDJSON, &format!("GET {}", at(&format!("/{pid}"))), &Value::Null)?;
    assert_eq!(next::<ExecEvent>(&mut lines)?, ExecEvent::Started { pid });
    let mut seat = Seat::attach(&world, &id, pid)?;
    let write = |query: &str, bytes: &[u8]| {
        world.upload("", &format!("POST {}{query}", at(&format!("/{pid}/stdin"))), bytes)
    };
    assert_eq!(write("", b"one\n")?.status, 204);
    assert_eq!(next::<ExecEvent>(&mut lines)?, ExecEvent::Stdout("got one\n".into()));
    seat.until("got one\n")?;
    seat.write(b"two\n")?;
    assert_eq!(next::<ExecEvent>(&mut lines)?, ExecEvent::Stdout("got two\n".into()));
    seat.until("got two\n")?;
    // Whoever came to it leaves it as it is.
    drop(seat);
    assert_eq!(write("?close=true", b"three\n")?.status, 204);
    // What is written at once may be read at once.
    let mut last = String::new();
    while last.len() < "got three\nend\n".len() {
        match next::<ExecEvent>(&mut lines)? {
            ExecEvent::Stdout(data) => last.push_str(std::str::from_utf8(&data.0)?),
            event => return Err(format!("{event:?} after {last:?}").into()),
        }
    }
    assert_eq!(last, "got three\nend\n");
    let signal = format!("POST {}", at(&format!("/{pid}/signal")));
    assert_eq!(world.tell(&signal, json!({ "signal": "SIGTERM" }))?.status, 204);
    assert_eq!(next::<ExecEvent>(&mut lines)?, ExecEvent::Stdout("asked\n".into()));
    assert_eq!(next::<ExecEvent>(&mut lines)?, ExecEvent::Exited { exit_code: 5, timed_out: false });
    assert!(list()?.iter().all(|process| process.pid != pid));
    world.refuses(ErrorCode::NotFound, &signal, json!({ "signal": "SIGTERM" }))?;
    // Its end can still be heard.
    let mut lines = world.lines_of(NDJSON, &format!("GET {}", at(&format!("/{pid}"))), &Value::Null)?;
    assert_eq!(next::<ExecEvent>(&mut lines)?, ExecEvent::Started { pid });
    assert_eq!(next::<ExecEvent>(&mut lines)?, ExecEvent::Exited { exit_code: 5, timed_out: false });

    // A program that does not read is signalled all the same, while somebody writes to it.
    let pid = start(json!({ "args": ["sleep", "300"], "stdin": true }))?;
    let path = at(&format!("/{pid}/stdin"));
    let socket = world.socket();
    let writing = std::thread::spawn(move || -> Result<(), String> {
        let mut stream =
            std::os::unix::net::UnixStream::connect(socket).map_err(|error| error.to_string())?;
        let bytes = vec![b'x'; 1 << 20];
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            bytes.len()
        )
        .and_then(|()| stream.write_all(&bytes))
        .map_err(|error| error.to_string())
    });
    std::thread::sleep(Duration::from_millis(300));
    let signal = format!("POST {}", at(&format!("/{pid}/signal")));
    assert_eq!(world.tell(&signal, json!({ "signal": "SIGKILL" }))?.status, 204);
    world.until("the program ended", |_| Ok(list()?.iter().all(|process| process.pid != pid)))?;
    writing.join().map_err(|_| "the writer panicked")??;

    let limited = start(json!({ "args": ["sleep", "300"], "timeout_secs": 1 }))?;
    world.until("its time is over", |_| Ok(list()?.iter().all(|process| process.pid != limited)))?;
    let connect = format!("GET {}", at("/999999"));
    world.refuses(ErrorCode::NotFound, &connect, json!({}))?;
    let reads_nothing = start(json!({ "args": ["sleep", "300"] }))?;
    let path = format!("POST {}", at(&format!("/{reads_nothing}/stdin")));
    assert_eq!(world.upload("", &path, b"x")?.status, 400);
    world.refuses(ErrorCode::Malformed, &format!("POST {}", at("")), json!({ "args": [] })).map(drop)
}

#[test]
fn large_directories_come_in_pages() -> Result<(), Failure> {
    let mut world = World::new()?;
    let (id, _agent) = world.real()?;
    let directory = tempfile::tempdir()?;
    for number in 0..25 {
        std::fs::write(directory.path().join(format!("{number:02} & more")), "")?;
    }
    let path = directory.path().display().to_string();
    let mut seen = Vec::new();
    let mut after = String::new();
    loop {
        let query = format!("path={path}&limit=10{after}");
        let page: FileList = world.ask(&format!("GET /v1/sandboxes/{id}/files/list?{query}"))?.parsed(200)?;
        assert_eq!(page.truncated, page.next.is_some());
        seen.extend(page.files.into_iter().map(|file| file.name));
        let Some(next) = page.next else { break };
        after = format!("&after={}", next.replace(' ', "%20").replace('&', "%26"));
    }
    assert_eq!(seen, (0..25).map(|number| format!("{number:02} & more")).collect::<Vec<_>>());
    for wrong in ["limit=0", "limit=10001"] {
        let request = format!("GET /v1/sandboxes/{id}/files/list?path={path}&{wrong}");
        world.refuses(ErrorCode::Malformed, &request, json!({}))?;
    }
    Ok(())
}

#[test]
fn what_was_removed_may_be_removed_again() -> Result<(), Failure> {
    let world = World::new()?;
    let id = world.fork("base", 1)?.remove(0).id;
    world.tell(&format!("POST /v1/sandboxes/{id}/branch"), json!({ "tag": "t", "wait": true }))?;
    for thing in [format!("/v1/sandboxes/{id}"), "/v1/snapshots/t".into()] {
        let first = world.ask(&format!("DELETE {thing}"))?;
        let second = world.ask(&format!("DELETE {thing}"))?;
        assert_eq!((first.status, &first.body), (second.status, &second.body), "{thing}");
        assert!(first.status < 300, "{thing}");
        // It is gone all the same.
        world.refuses(ErrorCode::NotFound, &format!("GET {thing}"), json!({}))?;
    }
    world.refuses(ErrorCode::NotFound, "DELETE /v1/sandboxes/i0", json!({}))?;
    // A new one of the same name is removed, not remembered.
    let id = world.fork("base", 1)?.remove(0).id;
    world.tell(&format!("POST /v1/sandboxes/{id}/branch"), json!({ "tag": "t", "wait": true }))?;
    world.ask("DELETE /v1/snapshots/t")?;
    world.refuses(ErrorCode::NotFound, "GET /v1/snapshots/t", json!({})).map(drop)
}

#[test]
fn the_command_line_finds_what_runs() -> Result<(), Failure> {
    let mut world = World::new()?;
    let (id, _agent) = world.real()?;
    let context = world.forkd(&["context", "new", &id, "--language", "bash"])?;
    let context = context.trim();
    assert_eq!(world.forkd(&["eval", &id, "word=kept; echo $word", "--context", context])?, "kept");
    world.forkd(&["context", "restart", &id, context])?;
    assert_eq!(world.forkd(&["eval", &id, "echo ${word-gone}", "--context", context])?, "gone");
    let listed = world.forkd(&["context", "ls", &id])?;
    assert!(
        listed
            .lines()
            .any(|line| line.starts_with(context) && line.contains("bash  ") && line.contains("idle")),
        "{listed}"
    );
    world.forkd(&["context", "interrupt", &id, context])?;
    world.forkd(&["context", "rm", &id, context])?;
    assert!(!world.forkd(&["context", "ls", &id])?.contains(context));

    let script = "trap 'exit 3' USR1; while :; do sleep 0.05; done";
    let pid = world.forkd(&["process", "start", &id, "--", "bash", "-c", script])?;
    let pid = pid.trim();
    assert!(world.forkd(&["process", "ls", &id])?.contains(script));
    std::thread::sleep(Duration::from_millis(300));
    world.forkd(&["process", "signal", &id, pid, "sigusr1"])?;
    world.until("it ended", |world| Ok(!world.forkd(&["process", "ls", &id])?.contains(script)))?;
    let attached =
        binaries::forkd(world.home(), &["process", "attach", &id, "999999", "--no-stdin"]).output()?;
    assert_eq!(attached.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&attached.stderr).contains("999999"), "{attached:?}");
    Ok(())
}

/// What a command does with something on its stdin, and then the end of it.
fn with_stdin(world: &World, arguments: &[&str], stdin: &[u8]) -> Result<Output, Failure> {
    let mut command = binaries::forkd(world.home(), arguments);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    child.stdin.take().ok_or("no stdin")?.write_all(stdin)?;
    Ok(child.wait_with_output()?)
}

#[test]
fn the_command_line_writes_to_programs_and_attaches_to_them() -> Result<(), Failure> {
    let mut world = World::new()?;
    let (id, _agent) = world.real()?;
    let start =
        |script: &str| world.forkd(&["process", "start", "--interactive", &id, "--", "sh", "-c", script]);
    let pid = start("while read word; do echo got $word; done; exit 4")?;
    let mut attached = binaries::forkd(world.home(), &["process", "attach", &id, &pid, "--no-stdin"]);
    let mut attached = attached.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let output = BufReader::new(attached.stdout.take().ok_or("no stdout")?);
    let (sender, lines) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in output.lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    // Nobody knows when it is attached: what the program prints before is not heard.
    world.until("the program is heard", |world| {
        let written = with_stdin(world, &["process", "write", &id, &pid], b"it\n")?;
        assert!(written.status.success(), "{written:?}");
        Ok(lines.recv_timeout(Duration::from_millis(200)).is_ok_and(|line| line == "got it"))
    })?;
    let closed = with_stdin(&world, &["process", "write", &id, &pid, "--close"], b"")?;
    assert!(closed.status.success(), "{closed:?}");
    assert_eq!(attached.wait()?.code(), Some(4));

    // Whoever attaches with a stdin is what the program reads, to its end.
    let pid = start("cat; exit 5")?;
    let ended = with_stdin(&world, &["process", "attach", &id, &pid], b"hello\n")?;
    assert_eq!((ended.status.code(), &ended.stdout[..]), (Some(5), &b"hello\n"[..]), "{ended:?}");
    let refused = with_stdin(&world, &["process", "write", &id, "999999"], b"x")?;
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    Ok(())
}

#[test]
fn the_command_line_restarts_a_context_that_ignores_an_interrupt() -> Result<(), Failure> {
    let mut world = World::new()?;
    let (id, _agent) = world.real()?;
    let context = world.forkd(&["context", "new", &id])?;
    let deaf = || -> Result<Lines, Failure> {
        let body = json!({ "code": DEAF, "context": context });
        let mut lines = world.lines_of(NDJSON, &format!("POST /v1/sandboxes/{id}/eval"), &body)?;
        next::<EvalEvent>(&mut lines)?;
        Ok(lines)
    };
    let interrupt = ["context", "interrupt", &id, &context, "--grace", "1"];
    let mut lines = deaf()?;
    let said = binaries::forkd(world.home(), &interrupt).output()?;
    let stderr = String::from_utf8_lossy(&said.stderr);
    assert!(said.status.success() && said.stdout.is_empty(), "{said:?}");
    assert!(stderr.contains(&format!("within 1 s; context {context} has a new interpreter")), "{stderr}");
    assert!(matches!(next(&mut lines)?, EvalEvent::Raised(error) if error.name == "ContextEnded"));
    let mut lines = deaf()?;
    let said: Value = serde_json::from_str(&world.forkd(&[&interrupt[..], &["--json"]].concat())?)?;
    assert_eq!(said, json!({ "restarted": true }));
    assert!(matches!(next(&mut lines)?, EvalEvent::Raised(_)));
    Ok(())
}
