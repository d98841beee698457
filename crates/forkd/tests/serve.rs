//! `forkd serve` and `forkd token` as whole commands: exit status, stdout, stderr.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

fn forkd(home: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forkd"));
    command.args(arguments).env_clear().env("FORKD_HOME", home);
    // Not every host that tests run on has cgroup v2.
    command.env("FORKD_CGROUP", "none").env("FORKD_NETWORK", "none");
    command
}

/// Exit status, stdout, stderr.
fn run(home: &Path, arguments: &[&str]) -> (i32, String, String) {
    let output = forkd(home, arguments).output().expect("forkd starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code().expect("a status"), text(output.stdout), text(output.stderr))
}

/// A daemon that runs; it is killed with this value, if it still does.
struct Daemon {
    process: Child,
    stderr: BufReader<ChildStderr>,
    address: String,
}

impl Daemon {
    fn start(home: &Path, arguments: &[&str]) -> Daemon {
        let all = [&["serve", "--listen", "127.0.0.1:0"], arguments].concat();
        let mut process = forkd(home, &all).stderr(Stdio::piped()).spawn().expect("forkd starts");
        let stderr = BufReader::new(process.stderr.take().expect("a pipe"));
        let mut daemon = Daemon { process, stderr, address: String::new() };
        let line = daemon.wait_for("address=");
        let rest = line.split("address=").nth(1).expect("an address");
        daemon.address = rest.split_whitespace().next().expect("an address").to_owned();
        daemon
    }

    /// Reads the log up to a line with this in it.
    fn wait_for(&mut self, text: &str) -> String {
        loop {
            let mut line = String::new();
            let read = self.stderr.read_line(&mut line).expect("a log");
            assert!(read > 0, "the daemon has ended and not said {text}");
            if line.contains(text) {
                return line;
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("the daemon is there");
    }

    /// The status line of a request over TCP.
    fn get(&self, path: &str, header: &str) -> String {
        let stream = TcpStream::connect(&self.address).expect("the daemon listens");
        status(stream, path, header)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn status(mut stream: impl Read + Write, path: &str, header: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{header}\r\n");
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer.lines().next().unwrap_or("").to_owned()
}

#[test]
fn tokens_are_made_listed_and_removed() {
    let home = tempfile::tempdir().expect("a directory");
    let home = home.path();
    let (code, secret, note) = run(home, &["token", "create", "ci", "--scope", "read"]);
    assert_eq!((code, note.as_str()), (0, "Keep this; it will not be shown again.\n"));
    assert!(secret.starts_with("e2b_") && secret.len() == 45, "{secret}");

    let (code, json, note) = run(home, &["token", "create", "boss", "--scope", "admin", "--json"]);
    assert_eq!((code, note.as_str()), (0, ""));
    let created: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((&created["name"], &created["scope"]), (&"boss".into(), &"admin".into()));
    assert_eq!(created["token"].as_str().map(str::len), Some(44));

    let (code, json, _) = run(home, &["token", "ls", "--json"]);
    let listed: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((code, &listed[0]["name"], &listed[1]["scope"]), (0, &"boss".into(), &"read".into()));
    let (_, table, _) = run(home, &["token", "ls"]);
    assert!(
        table.lines().nth(1).is_some_and(|line| line.starts_with("boss ") && line.contains(" never ")),
        "{table}"
    );

    let taken = run(home, &["token", "create", "ci"]);
    let expected = "forkd: there is a token named ci already; remove it first (forkd token rm ci)\n";
    assert_eq!(taken, (1, String::new(), expected.into()));
    assert_eq!(run(home, &["token", "rm", "ci"]), (0, String::new(), "Token ci is removed.\n".into()));
    let gone = run(home, &["token", "rm", "ci"]);
    assert_eq!(gone, (1, String::new(), "forkd: there is no token named ci (forkd token ls)\n".into()));
    let (_, _, note) = run(home, &["token", "rm", "boss"]);
    assert!(note.contains("This was the last token"), "{note}");
    assert_eq!(run(home, &["token", "create", "a b"]).0, 1);
    assert_eq!(run(home, &["token", "create", "x", "--scope", "root"]).0, 2);
    let everything =
        format!("{table}{json}{}", fs::read_to_string(home.join("tokens.json")).expect("a file"));
    assert!(!everything.contains(&secret.trim()[4..]));
}

#[test]
fn what_cannot_be_served_is_refused_with_a_next_step() {
    let directory = tempfile::tempdir().expect("a directory");
    let home = directory.path();
    let (code, _, error) = run(home, &["serve", "--listen", "0.0.0.0:0"]);
    assert_eq!(code, 1);
    assert!(
        error.contains("no token exists to protect it") && error.contains("forkd token create"),
        "{error}"
    );
    for wrong in [&["--listen", "8889"][..], &["--tls-cert", "x"], &["--no-such"]] {
        assert_eq!(run(home, &[&["serve"], wrong].concat()).0, 2, "{wrong:?}");
    }
    let (code, _, error) = run(home, &["serve", "--log", "loud=very"]);
    assert_eq!((code, error.contains("invalid log filter")), (1, true), "{error}");
    let missing = ["serve", "--listen", "127.0.0.1:0", "--tls-cert", "/no/cert", "--tls-key", "/no/key"];
    let (code, _, error) = run(home, &missing);
    assert_eq!((code, error.contains("cannot read /no/cert: No such file")), (1, true), "{error}");
    let (code, _, error) = run(home, &["serve", "--socket-group", "no-such-group"]);
    assert_eq!((code, error.contains("no group no-such-group on this host")), (1, true), "{error}");
    fs::write(home.join("tokens.json"), "{").expect("a file");
    let (code, _, error) = run(home, &["serve", "--listen", "127.0.0.1:0"]);
    assert_eq!((code, error.contains("tokens.json is damaged")), (1, true), "{error}");
}

#[test]
fn a_daemon_lives_is_told_things_and_ends() {
    let directory = tempfile::tempdir().expect("a directory");
    let home = directory.path();
    let log = home.join("audit.log");
    let mut daemon = Daemon::start(home, &["--audit-log", &log.to_string_lossy()]);
    let socket = home.join("forkd.sock");
    let connect = || UnixStream::connect(&socket).expect("the daemon listens");
    assert_eq!(status(connect(), "/healthz", ""), "HTTP/1.1 200 OK");
    assert_eq!(daemon.get("/version", ""), "HTTP/1.1 200 OK");

    // A second one does not take its place.
    let (code, _, error) = run(home, &["serve", "--listen", "none"]);
    assert_eq!((code, error.contains("give this one another directory (--root)")), (1, true), "{error}");
    let root = home.join("other").to_string_lossy().into_owned();
    let (code, _, error) = run(home, &["serve", "--listen", "none", "--root", &root]);
    assert_eq!((code, error.contains("a daemon listens on")), (1, true), "{error}");
    assert_eq!(status(connect(), "/healthz", ""), "HTTP/1.1 200 OK");

    // Tokens count from the moment they are made to the moment they are removed.
    let (_, secret, _) = run(home, &["token", "create", "ci", "--scope", "read"]);
    let header = format!("authorization: Bearer {}\r\n", secret.trim());
    assert_eq!(daemon.get("/version", ""), "HTTP/1.1 401 Unauthorized");
    assert_eq!(daemon.get("/version", &header), "HTTP/1.1 200 OK");
    run(home, &["token", "create", "other"]);
    run(home, &["token", "rm", "ci"]);
    assert_eq!(daemon.get("/version", &header), "HTTP/1.1 401 Unauthorized");
    // The last one leaves the daemon closed.
    run(home, &["token", "rm", "other"]);
    assert_eq!(daemon.get("/version", ""), "HTTP/1.1 401 Unauthorized");

    fs::rename(&log, home.join("audit.log.1")).expect("moved");
    daemon.signal(Signal::HUP);
    daemon.wait_for("reopened the audit log");
    assert_eq!(status(connect(), "/version", ""), "HTTP/1.1 200 OK");
    daemon.signal(Signal::TERM);
    daemon.wait_for("stopped");
    assert_eq!(daemon.process.wait().expect("an end").code(), Some(0));
    assert!(!socket.exists());
    assert_eq!(fs::read_to_string(&log).expect("a log").lines().count(), 1);
    let old = fs::read_to_string(home.join("audit.log.1")).expect("a log");
    assert_eq!(old.lines().count(), 7);
    assert!(old.contains("token:ci") && !old.contains(&secret.trim()[4..]));
}

#[test]
fn one_that_was_killed_leaves_nothing_in_the_way() {
    let directory = tempfile::tempdir().expect("a directory");
    let home = directory.path();
    let socket = home.join("forkd.sock");
    for _ in 0..3 {
        let mut daemon = Daemon::start(home, &[]);
        daemon.signal(Signal::KILL);
        daemon.process.wait().expect("an end");
        assert!(socket.exists());
    }
    let mut daemon = Daemon::start(home, &[]);
    assert_eq!(status(UnixStream::connect(&socket).expect("a socket"), "/healthz", ""), "HTTP/1.1 200 OK");
    daemon.signal(Signal::INT);
    daemon.wait_for("stopped");
}

/// Programs begin with a limit of descriptors that a hundred sandboxes would pass.
#[test]
fn a_daemon_has_as_many_descriptors_as_it_may() {
    let home = tempfile::tempdir().expect("a directory");
    let few = ["-c", "ulimit -Sn 256; exec \"$0\" serve --listen none", env!("CARGO_BIN_EXE_forkd")];
    let mut daemon = Command::new("sh")
        .args(few)
        .envs([("FORKD_HOME", home.path().as_os_str()), ("FORKD_CGROUP", "none".as_ref())])
        .stderr(Stdio::piped())
        .spawn()
        .expect("forkd starts");
    let mut log = BufReader::new(daemon.stderr.take().expect("a pipe")).lines();
    assert!(log.any(|line| line.is_ok_and(|line| line.contains("listening"))));
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", daemon.id())).expect("limits");
    daemon.kill().expect("it lives");
    daemon.wait().expect("it has ended");
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).expect("a line");
    let numbers: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert!(numbers.len() == 2 && numbers[0] == numbers[1] && numbers[0] > 256, "{line}");
}
