//! A sandbox that is branched ten times while everything in it is busy: its streams lose nothing, and what its branches are
//! forked to continues from where it was, with another identity.

mod child;
mod clients;

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use forkd_tests::daemon::Daemon;
use forkd_tests::watch::report;
use forkd_tests::{TestResult, binaries, check};

use crate::life::snapshot;
use child::{Draws, sample};
use clients::{PortClient, Terminal};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const BRANCHES: usize = 10;
const FORKS: u32 = 2;
/// The branch that the sandbox goes back to in the end.
const BACK_TO: usize = 6;
const PATIENCE: Duration = Duration::from_secs(120);
const PORT: u16 = 7000;

const GUEST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/api/busy/guest.py");

const PREPARE: &str = "
import json, random, sys, time, numpy, forkd_guest
sys.path.insert(0, '/srv')
import guest
step, total, draws, arrays = 0, 0, [], []
forkd_guest.on_fork(lambda: guest.show('fork', forkd_guest.identity['id']))";

const PYTHON: &str = "
while guest.on():
    step += 1
    total += step
    draws.append(random.random())
    arrays.append(float(numpy.random.random()))
    guest.show('python', step)
    time.sleep(0.5)
result = {'step': step, 'total': total, 'files': guest.verify(), 'random': draws, 'numpy': arrays}
guest.show('python.json', json.dumps(result))
step";

/// It never returns to the event loop.
const JAVASCRIPT: &str = "
var fs = require('fs'), crypto = require('crypto'), numbers = [], bytes = [];
var pause = new Int32Array(new SharedArrayBuffer(4));
function show(name, value) {
    fs.writeFileSync(`/run/${name}.new`, `${value}\\n`);
    fs.renameSync(`/run/${name}.new`, `/run/${name}`);
}
while (!fs.existsSync('/run/stop')) {
    numbers.push(Math.random());
    bytes.push(crypto.randomBytes(8).toString('hex'));
    show('node', numbers.length);
    Atomics.wait(pause, 0, 0, 500);
}
show('node.json', JSON.stringify({ math: numbers, crypto: bytes }));
numbers.length";

pub fn a_busy_sandbox_is_branched() -> TestResult {
    let daemon = Daemon::start_listening()?;
    snapshot(&daemon)?;
    let ids = daemon.fork("warm", 1)?;
    let id = ids[0].as_str();
    daemon.run(&["cp", GUEST, &format!("{id}:/srv/")])?;
    daemon.run(&["eval", id, PREPARE])?;
    // Before anything else wants the CPU: Node.js takes long to start in an emulator.
    daemon.run(&["eval", id, "1", "--language", "javascript"])?;

    // One after the other: a machine's port takes one new connection at a time.
    let output = tempfile::NamedTempFile::new()?;
    let eval = |words: &[&str]| {
        Running::start(daemon.command(&[&["eval", id], words].concat()).stdout(Stdio::piped()))
    };
    let python = eval(&[PYTHON])?;
    let node = eval(&[JAVASCRIPT, "--language", "javascript"])?;
    let program = |name: &str, stdout: Stdio| {
        let words = ["exec", id, "--", "python3", "/srv/guest.py", name];
        Running::start(daemon.command(&words).stdout(stdout))
    };
    let _writer = program("write", Stdio::null())?;
    let stream = program("stream", output.reopen()?.into())?;
    let _server = program("serve", Stdio::null())?;
    let mut terminal = Terminal::open(&daemon, id)?;
    terminal.type_line("before")?;
    eventually("everything runs", || {
        let printed = std::fs::metadata(output.path())?.len() > 0;
        let listens = daemon.run(&["exec", id, "--", "grep", ":1B58 ", "/proc/net/tcp"]).is_ok();
        Ok(printed && listens && sample(&daemon, id).is_ok_and(|sample| sample.files > 0))
    })?;
    let mut client = PortClient::connect(&daemon, id, PORT)?;

    report("busy: everything runs");
    let mut before = Vec::new();
    for number in 0..BRANCHES {
        before.push(sample(&daemon, id)?);
        daemon.run(&["branch", id, "--tag", &tag(number)])?;
        terminal.type_line(&format!("typed {number}"))?;
        client.send_line()?;
    }

    report("busy: branched");
    // All that time the sandbox and its clients have noticed nothing.
    terminal.type_line("after")?;
    client.send_line()?;
    let mut draws = Draws::default();
    draws.add(&daemon, &[id], None)?;
    check!(python.printed()?.parse::<usize>()? > 0 && node.printed()?.parse::<usize>()? > 0, "steps");
    stream.printed()?;
    let printed = std::fs::read_to_string(output.path())?;
    check_stream(&printed.lines().collect::<Vec<_>>())?;
    client.finish()?;
    terminal.type_line("at last")?;

    report("busy: the source has ended");
    for (number, before) in before.iter().enumerate() {
        let forks = daemon.fork(&tag(number), FORKS)?;
        let forks: Vec<&str> = forks.iter().map(String::as_str).collect();
        draws.add(&daemon, &forks, Some(before)).map_err(|error| format!("{}: {error}", tag(number)))?;
        daemon.run(&[&["kill"], &forks[..]].concat())?;
    }

    report("busy: forked");
    daemon.run(&["rollback", id, &tag(BACK_TO)])?;
    draws.add(&daemon, &[id], before.get(BACK_TO))?;
    draws.check()
}

fn tag(number: usize) -> String {
    format!("busy-{number}")
}

/// A command that runs meanwhile. It ends with this value.
struct Running(Option<Child>);

impl Running {
    fn start(command: &mut Command) -> Result<Running, Failure> {
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        Ok(Running(Some(command.spawn()?)))
    }

    /// Waits for a success, and returns what it printed.
    fn printed(mut self) -> Result<String, Failure> {
        let output = self.0.take().ok_or("it was waited for")?.wait_with_output()?;
        check!(output.status.success(), "{}", binaries::transcript(&output));
        Ok(String::from_utf8(output.stdout)?.trim_end().to_owned())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // It may have ended meanwhile.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn eventually(what: &str, mut holds: impl FnMut() -> Result<bool, Failure>) -> TestResult {
    let begun = Instant::now();
    while !holds()? {
        check!(begun.elapsed() < PATIENCE, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}

/// Lines from 1 to the number that the last one says.
fn check_stream(lines: &[&str]) -> TestResult {
    let (last, lines) = lines.split_last().ok_or("no lines")?;
    let count = last.strip_prefix("end ").ok_or_else(|| format!("it broke off: {last:?}"))?.parse()?;
    check_numbered(lines, "line", count)
}

fn check_numbered(lines: &[&str], word: &str, count: usize) -> TestResult {
    let expected: Vec<_> = (1..=count).map(|number| format!("{word} {number}")).collect();
    let wrong = lines.iter().zip(&expected).find(|(line, expected)| line != expected);
    check!(lines.len() == count && wrong.is_none(), "{} of {count} lines, {wrong:?}", lines.len());
    Ok(())
}
