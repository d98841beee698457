//! Interactive programs.

use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use forkd_api::error::ErrorCode;
use forkd_api::exec::ExecEvent;
use forkd_tests::engine::process::Failure;
use forkd_tests::engine::tiny::PATIENCE;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::{self, Message, WebSocket};

use crate::guest::ENVD;
use crate::world::World;

/// A client of an interactive program.
pub struct Seat {
    socket: WebSocket<UnixStream>,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    /// Bytes of stdin that the daemon has reported as taken.
    taken: u64,
}

impl Seat {
    fn take(world: &World, id: &str) -> Result<Seat, Failure> {
        Seat::open(world, &format!("/v1/sandboxes/{id}/exec"))
    }

    /// With a program that runs already.
    pub fn attach(world: &World, id: &str, pid: u32) -> Result<Seat, Failure> {
        let mut seat = Seat::open(world, &format!("/v1/sandboxes/{id}/processes/{pid}"))?;
        match seat.next()? {
            Some(ExecEvent::Started { pid: told }) if told == pid => Ok(seat),
            other => Err(format!("not attached: {other:?}").into()),
        }
    }

    fn open(world: &World, path: &str) -> Result<Seat, Failure> {
        let stream = UnixStream::connect(world.socket())?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let (socket, _) = tungstenite::client(format!("ws://localhost{path}"), stream)
            .map_err(|error| format!("no WebSocket: {error}"))?;
        Ok(Seat { socket, stdout: Vec::new(), stderr: Vec::new(), taken: 0 })
    }

    /// With a program that has said that it runs.
    fn start(world: &World, id: &str, start: Value) -> Result<Seat, Failure> {
        let mut seat = Seat::take(world, id)?;
        seat.text(&start)?;
        match seat.next()? {
            Some(ExecEvent::Started { pid }) if pid > 0 => Ok(seat),
            other => Err(format!("not started: {other:?}").into()),
        }
    }

    fn text(&mut self, message: &Value) -> Result<(), Failure> {
        Ok(self.socket.send(Message::text(message.to_string()))?)
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        Ok(self.socket.send(Message::binary(bytes.to_vec()))?)
    }

    /// What the daemon says next. Output is kept, taken stdin is counted, and both are `None`.
    fn next(&mut self) -> Result<Option<ExecEvent>, Failure> {
        match self.socket.read()? {
            Message::Text(text) => match serde_json::from_str(&text)? {
                ExecEvent::StdinTaken { bytes } => self.taken += bytes,
                event => return Ok(Some(event)),
            },
            Message::Binary(bytes) => match bytes.split_first() {
                Some((1, rest)) => self.stdout.extend_from_slice(rest),
                Some((2, rest)) => self.stderr.extend_from_slice(rest),
                other => return Err(format!("{other:?}").into()),
            },
            Message::Ping(_) | Message::Pong(_) => {}
            other => return Err(format!("{other:?}").into()),
        }
        Ok(None)
    }

    fn until_last(&mut self) -> Result<ExecEvent, Failure> {
        loop {
            if let Some(event) = self.next()? {
                return Ok(event);
            }
        }
    }

    /// Reads until this was printed, and forgets what was before.
    pub fn until(&mut self, text: &str) -> Result<(), Failure> {
        loop {
            let said = String::from_utf8_lossy(&self.stdout).into_owned();
            if let Some(at) = said.find(text) {
                self.stdout = said.as_bytes()[at + text.len()..].to_vec();
                return Ok(());
            }
            if let Some(event) = self.next()? {
                return Err(format!("expected {text:?}: {event:?} {said:?}").into());
            }
        }
    }
}

fn exited(exit_code: i32) -> ExecEvent {
    ExecEvent::Exited { exit_code, timed_out: false }
}

fn until(what: &str, holds: impl Fn() -> bool) -> Result<(), Failure> {
    let begun = Instant::now();
    while !holds() {
        if begun.elapsed() > PATIENCE {
            return Err(format!("not in time: {what}").into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

#[test]
fn a_program_reads_and_writes_as_it_goes() -> Result<(), Failure> {
    let mut world = World::new()?;
    let (id, _agent) = world.real()?;
    let script = "read a; read b; echo $a$b; echo wrong >&2; cat; exit 3";
    let mut seat = Seat::start(&world, &id, json!({ "args": ["sh", "-c", script], "stdin": "one\n" }))?;
    seat.write(b"two\n")?;
    seat.until("onetwo\n")?;
    seat.write(&[0, 255, 10])?;
    seat.text(&json!("close_stdin"))?;
    assert_eq!(seat.until_last()?, exited(3));
    assert_eq!((&seat.stdout[..], &seat.stderr[..]), (&[0, 255, 10][..], &b"wrong\n"[..]));
    // The daemon closes when all is said.
    assert!(matches!(seat.socket.read(), Ok(Message::Close(_)) | Err(_)));

    let mut seat = Seat::start(&world, &id, json!({ "args": ["sleep", "100"] }))?;
    seat.text(&json!({ "signal": "SIGINT" }))?;
    assert_eq!(seat.until_last()?, exited(130));
    let mut seat = Seat::start(&world, &id, json!({ "args": ["sleep", "100"], "timeout_secs": 1 }))?;
    assert_eq!(seat.until_last()?, ExecEvent::Exited { exit_code: 137, timed_out: true });
    Ok(())
}

#[test]
fn a_terminal_has_a_size_and_a_line_discipline() -> Result<(), Failure> {
    let mut world = World::new()?;
    let (id, _agent) = world.real()?;
    let tty = json!({ "cols": 80, "rows": 24 });
    let mut seat = Seat::start(&world, &id, json!({ "args": ["sh"], "tty": tty, "env": { "PS1": "$ " } }))?;
    seat.write(b"stty size; echo $TERM\n")?;
    seat.until("24 80\r\nxterm-256color\r\n")?;
    seat.text(&json!({ "resize": { "cols": 132, "rows": 50 } }))?;
    seat.write(b"stty size\n")?;
    seat.until("50 132\r\n")?;
    // Ctrl-C is a key.
    seat.write(b"sleep 1000\n")?;
    seat.until("sleep 1000\r\n")?;
    std::thread::sleep(Duration::from_millis(300));
    seat.write(b"\x03")?;
    seat.write(b"echo still $((1 + 1))\n")?;
    seat.until("still 2\r\n")?;
    seat.text(&json!("close_stdin"))?;
    assert!(matches!(seat.until_last()?, ExecEvent::Exited { .. }));
    assert!(seat.stderr.is_empty());
    Ok(())
}

#[test]
fn who_goes_away_hangs_up_a_terminal_and_ends_the_input_of_others() -> Result<(), Failure> {
    let mut world = World::new()?;
    let (id, _agent) = world.real()?;
    let directory = tempfile::tempdir()?;
    let file = |name: &str| directory.path().join(name);
    let read = |name: &str| fs::read_to_string(file(name)).unwrap_or_default();
    let hung_up = file("hung-up");
    let script = format!(
        "trap 'echo yes > {}; exit' HUP; echo ready; while :; do sleep 0.05; done",
        hung_up.display()
    );
    let tty = json!({ "cols": 80, "rows": 24 });
    let mut seat = Seat::start(&world, &id, json!({ "args": ["sh", "-c", script], "tty": tty }))?;
    seat.until("ready")?;
    drop(seat);
    until("the terminal is hung up", || read("hung-up") == "yes\n")?;

    let script =
        format!("cat > {}; sleep 0.3; echo on > {}", file("all").display(), file("went-on").display());
    let mut seat = Seat::start(&world, &id, json!({ "args": ["sh", "-c", script] }))?;
    seat.write(&vec![b'x'; 200_000])?;
    drop(seat);
    until("it goes on by itself", || read("went-on") == "on\n")?;
    assert_eq!(read("all").len(), 200_000);

    // Who was only attached leaves what it has sent, and the input open.
    let shared = file("shared");
    let length = || fs::metadata(&shared).map_or(0, |found| found.len());
    let script = format!("echo ready $$; sleep 0.5; cat > {}", shared.display());
    let mut seat = Seat::take(&world, &id)?;
    seat.text(&json!({ "args": ["sh", "-c", script] }))?;
    let Some(ExecEvent::Started { pid }) = seat.next()? else { return Err("not started".into()) };
    let mut other = Seat::attach(&world, &id, pid)?;
    other.write(&vec![b'x'; 200_000])?;
    drop(other);
    until("what it has sent is read", || length() == 200_000)?;
    seat.write(b"y")?;
    seat.text(&json!("close_stdin"))?;
    assert_eq!(seat.until_last()?, exited(0));
    assert_eq!(length(), 200_001);
    Ok(())
}

#[test]
fn much_goes_through_and_little_is_kept() -> Result<(), Failure> {
    const OUTPUT: usize = 200 << 20;
    const INPUT: usize = 20 << 20;
    let mut world = World::new()?;
    let (id, _agent) = world.real()?;
    let before = world.peak_kib()?;
    // Out, to somebody who is late.
    let wanted = json!({ "args": ["head", "-c", OUTPUT.to_string(), "/dev/zero"], "timeout_secs": 600 });
    let mut seat = Seat::start(&world, &id, wanted)?;
    std::thread::sleep(Duration::from_secs(2));
    let mut read = 0;
    let last = loop {
        let event = seat.next()?;
        read += std::mem::take(&mut seat.stdout).len();
        if let Some(event) = event {
            break event;
        }
    };
    assert_eq!((last, read), (exited(0), OUTPUT));
    // In, to a program that is late; and nobody listens before all is said.
    let wanted = json!({ "args": ["sh", "-c", "sleep 2; wc -c"], "timeout_secs": 600 });
    let mut seat = Seat::start(&world, &id, wanted)?;
    for _ in 0..INPUT / (256 << 10) {
        seat.write(&vec![b'y'; 256 << 10])?;
    }
    seat.text(&json!("close_stdin"))?;
    assert_eq!(seat.until_last()?, exited(0));
    assert_eq!(String::from_utf8(seat.stdout)?.trim(), INPUT.to_string());
    let grown = world.peak_kib()? - before;
    assert!(grown < 32 << 10, "the daemon has grown by {grown} KiB");
    Ok(())
}

#[test]
fn a_program_that_does_not_read_gets_signals_and_sizes() -> Result<(), Failure> {
    const WINDOW: usize = 1 << 20;
    let mut world = World::new()?;
    let (id, _agent) = world.real()?;
    let full = |seat: &mut Seat| -> Result<(), Failure> {
        seat.until("ready")?;
        (0..4).try_for_each(|_| seat.write(&vec![b'x'; WINDOW / 4]))
    };
    let wait = "echo ready; while :; do sleep 0.05; done";
    let script = format!("trap 'exit 3' INT; {wait}");
    let mut seat = Seat::start(&world, &id, json!({ "args": ["sh", "-c", script] }))?;
    full(&mut seat)?;
    seat.text(&json!({ "signal": "SIGINT" }))?;
    assert_eq!((seat.until_last()?, seat.taken), (exited(3), 0));

    let script = format!("stty raw -echo; trap 'stty size; exit 4' WINCH; {wait}");
    let tty = json!({ "cols": 80, "rows": 24 });
    let wanted = json!({ "args": ["sh", "-c", script], "tty": tty, "stdin_window": true });
    let mut seat = Seat::start(&world, &id, wanted)?;
    full(&mut seat)?;
    seat.text(&json!({ "resize": { "cols": 132, "rows": 50 } }))?;
    seat.until("50 132")?;
    assert_eq!(seat.until_last()?, exited(4));

    // What it takes is reported, and then there is room for as much again.
    let directory = tempfile::tempdir()?;
    let go = directory.path().join("go");
    let script = format!("echo ready; until [ -e {} ]; do sleep 0.05; done; exec wc -c", go.display());
    let mut seat = Seat::start(&world, &id, json!({ "args": ["sh", "-c", script], "stdin_window": true }))?;
    full(&mut seat)?;
    fs::write(&go, "")?;
    while seat.taken < WINDOW as u64 {
        assert_eq!(seat.next()?, None);
    }
    seat.write(b"y")?;
    seat.text(&json!("close_stdin"))?;
    assert_eq!(seat.until_last()?, exited(0));
    assert_eq!(String::from_utf8(seat.stdout)?.trim(), (WINDOW + 1).to_string());
    Ok(())
}

#[test]
fn nonsense_is_answered_and_ends_it() -> Result<(), Failure> {
    let mut world = World::new()?;
    let (id, _agent) = world.real()?;
    let refused = |seat: &mut Seat, code: ErrorCode| -> Result<(), Failure> {
        match seat.until_last()? {
            ExecEvent::Error(error) if error.code == code => Ok(()),
            other => Err(format!("expected {code:?}: {other:?}").into()),
        }
    };
    for start in
        [json!({ "args": [] }), json!({ "args": ["no-such-program"] }), json!({ "what": 1 }), json!(1)]
    {
        let mut seat = Seat::take(&world, &id)?;
        seat.text(&start)?;
        refused(&mut seat, ErrorCode::Malformed)?;
    }
    let mut seat = Seat::take(&world, &id)?;
    seat.write(b"early")?;
    refused(&mut seat, ErrorCode::Malformed)?;
    let mut seat = Seat::start(&world, &id, json!({ "args": ["cat"] }))?;
    seat.text(&json!({ "signal": "SIGSEGV" }))?;
    refused(&mut seat, ErrorCode::Malformed)?;
    // More than a message has.
    let mut seat = Seat::start(&world, &id, json!({ "args": ["cat"] }))?;
    let _ = seat.write(&vec![0; 300 << 10]);
    assert!(seat.until_last().is_err());

    let path = format!("GET /v1/sandboxes/{id}/exec");
    let plain = world.ask(&path)?.error(ErrorCode::Malformed)?;
    assert!(plain.error.contains("WebSocket"), "{plain:?}");
    world.ask("GET /v1/sandboxes/none/exec")?.error(ErrorCode::NotFound)?;
    world.ask(&format!("POST /v1/sandboxes/{id}/pause"))?;
    world.ask(&path)?.error(ErrorCode::WrongState)?;
    Ok(())
}

#[test]
fn a_program_whose_sandbox_ends_is_told_why() -> Result<(), Failure> {
    let mut world = World::new()?;
    let (id, _agent) = world.real()?;
    let pid = world.sandbox(&id)?.pid.and_then(rustix::process::Pid::from_raw).ok_or("no pid")?;
    let mut seat = Seat::start(&world, &id, json!({ "args": ["cat"] }))?;
    rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
    match seat.until_last()? {
        ExecEvent::Error(error) => {
            assert_eq!(error.code, ErrorCode::SandboxEnded);
            assert!(error.error.ends_with("its process was killed"), "{error:?}");
        }
        other => return Err(format!("{other:?}").into()),
    }
    Ok(())
}

#[test]
fn a_guest_that_answers_garbage_is_not_believed() -> Result<(), Failure> {
    const OK: &[u8] = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n";
    for answer in [
        b"garbage".to_vec(),
        b"".to_vec(),
        [OK, b"\0\xff\xff\xff\xff"].concat(),
        [OK, b"\0\0\0\0\x02{}"].concat(),
        [OK, b"\0\0\0\0\x1b{\"event\":{\"keepalive\":{}}}"].concat(),
        b"HTTP/1.1 500 Oops\r\ncontent-length: 100000000000\r\n\r\n".to_vec(),
    ] {
        let mut world = World::new()?;
        let shown = String::from_utf8_lossy(&answer).into_owned();
        let id = world.played(move |port, mut client| {
            assert_eq!(port, ENVD);
            let _ = client.write_all(&answer);
        })?;
        let mut seat = Seat::take(&world, &id)?;
        seat.text(&json!({ "args": ["sh"] }))?;
        let event = seat.until_last()?;
        let ExecEvent::Error(error) = event else { return Err(format!("{shown}: {event:?}").into()) };
        assert!(matches!(error.code, ErrorCode::GuestFailed | ErrorCode::Malformed), "{shown}: {error:?}");
    }
    Ok(())
}
