//! The audit log: who did what, a line of JSON a request.
//!
//! ```json
//! {"time":"2026-01-02T03:04:05.678Z","who":"token:ci","project":"default","from":"10.0.0.7:51234","method":"POST",
//!  "path":"/v1/sandboxes/sb-1/exec","sandboxes":["sb-1"],"status":200,"latency_us":1234,"request_id":"…"}
//! ```
//!
//! `who` is `-` for a caller without a valid token, and there is no project then; `status` is missing when the caller went away before there was one, and
//! `latency_us` ends when the answer's head is ready. Queries, headers and bodies are never in it, and tokens
//! in paths and ids are removed.
//!
//! A thread of its own writes. When it cannot follow, requests wait for their place in its queue: a log that loses lines under
//! load is no audit log. But they wait for `PATIENCE` only, since a disk that hangs must not take the daemon away from its
//! sandboxes; from then on lines are lost, and the number of them is the next line that can be written.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use prometheus_client::metrics::counter::Counter;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};

use crate::auth::redact;

/// Lines that wait for the disk.
const QUEUE: usize = 1024;
/// How long a request waits for a place among them.
const PATIENCE: Duration = Duration::from_secs(2);
/// What is kept of a path.
const MAX_PATH: usize = 512;

/// The log could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open the audit log {}", path.display())]
pub struct AuditError {
    path: PathBuf,
    source: io::Error,
}

/// A request, as the log has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Line {
    pub time: String,
    pub who: String,
    /// Whose sandboxes and snapshots it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    pub from: String,
    pub method: String,
    pub path: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sandboxes: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    pub latency_us: u64,
    pub request_id: String,
}

/// On an answer: the sandboxes that it was about, where the path does not name them.
#[derive(Debug, Clone)]
pub struct Sandboxes(pub Vec<String>);

/// Now, as the log has it.
pub fn timestamp() -> String {
    humantime::format_rfc3339_millis(SystemTime::now()).to_string()
}

/// A path without its query, without secrets, and not endless.
pub fn short(path: &str) -> String {
    let mut path = redact(path);
    if path.len() > MAX_PATH {
        path.truncate(path.floor_char_boundary(MAX_PATH));
        path.push('…');
    }
    path
}

/// The sandbox that a path names.
pub fn sandbox_in(path: &str) -> Option<String> {
    let rest = [forkd_api::PREFIX, "/v2", ""]
        .into_iter()
        .find_map(|version| path.strip_prefix(version)?.strip_prefix("/sandboxes/"));
    let id = rest?.split('/').next()?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    ((1..=64).contains(&id.len()) && id.bytes().all(plain)).then(|| redact(id))
}

enum Order {
    Line(Box<Line>),
    Reopen(oneshot::Sender<Result<(), AuditError>>),
    Flush(oneshot::Sender<()>),
}

/// Where lines go. Without a file, nowhere.
#[derive(Debug)]
pub struct Audit {
    /// The thread at its other end goes when this does.
    queue: Option<mpsc::Sender<Order>>,
    lost: Arc<AtomicU64>,
    all_lost: Counter,
}

impl Audit {
    /// Opens the file, which is made if it is not there, for its owner to read.
    pub fn open(path: Option<&Path>) -> Result<Audit, AuditError> {
        let lost = Arc::new(AtomicU64::new(0));
        let all_lost = Counter::default();
        let Some(path) = path else { return Ok(Audit { queue: None, lost, all_lost }) };
        let mut log = Log {
            path: path.to_owned(),
            file: open(path)?,
            lost: Arc::clone(&lost),
            all_lost: all_lost.clone(),
            failing: false,
        };
        let (queue, mut orders) = mpsc::channel(QUEUE);
        let thread = thread::Builder::new().name("audit".into()).spawn(move || {
            while let Some(order) = orders.blocking_recv() {
                log.carry_out(order);
            }
        });
        thread.map_err(|source| AuditError { path: path.to_owned(), source })?;
        Ok(Audit { queue: Some(queue), lost, all_lost })
    }

    /// Leaves a line.
    pub async fn record(&self, line: Line) {
        let Some(queue) = &self.queue else { return };
        let sent = queue.send_timeout(Order::Line(Box::new(line)), PATIENCE).await;
        if sent.is_err() {
            self.lose();
        }
    }

    /// Leaves a line if there is a place for it at once: for requests whose caller has disconnected.
    pub fn record_now(&self, line: Line) {
        let Some(queue) = &self.queue else { return };
        if queue.try_send(Order::Line(Box::new(line))).is_err() {
            self.lose();
        }
    }

    /// How many lines were lost since the start, for the metrics.
    pub fn lost(&self) -> Counter {
        self.all_lost.clone()
    }

    fn lose(&self) {
        self.all_lost.inc();
        if self.lost.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::error!("the audit log's queue is full: dropping lines");
        }
    }

    /// Opens the file by its name again, after it was moved. If that fails, the old file is still written.
    pub async fn reopen(&self) -> Result<(), AuditError> {
        let Some(queue) = &self.queue else { return Ok(()) };
        let (done, result) = oneshot::channel();
        if queue.send(Order::Reopen(done)).await.is_err() {
            return Ok(());
        }
        result.await.unwrap_or(Ok(()))
    }

    /// Waits until all that was left so far is written, or `PATIENCE` is over.
    pub async fn flush(&self) {
        let Some(queue) = &self.queue else { return };
        let (done, result) = oneshot::channel();
        let flush = async {
            if queue.send(Order::Flush(done)).await.is_ok() {
                let _ = result.await;
            }
        };
        let _ = tokio::time::timeout(PATIENCE, flush).await;
    }
}

fn open(path: &Path) -> Result<File, AuditError> {
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path);
    file.map_err(|source| AuditError { path: path.to_owned(), source })
}

struct Log {
    path: PathBuf,
    file: File,
    lost: Arc<AtomicU64>,
    all_lost: Counter,
    failing: bool,
}

#[derive(Serialize)]
struct Lost {
    time: String,
    lost_lines: u64,
}

impl Log {
    fn carry_out(&mut self, order: Order) {
        match order {
            Order::Line(line) => self.write(&line),
            Order::Reopen(done) => {
                let result = open(&self.path).map(|file| self.file = file);
                // Who asked may be gone.
                let _ = done.send(result);
            }
            // Each line is written when its turn has come.
            Order::Flush(done) => drop(done.send(())),
        }
    }

    fn write(&mut self, line: &Line) {
        let lost = self.lost.swap(0, Ordering::Relaxed);
        let mut text = Vec::new();
        if self.failing {
            // What was written last may be half a line.
            text.push(b'\n');
        }
        if lost > 0 {
            push(&mut text, &Lost { time: timestamp(), lost_lines: lost });
        }
        push(&mut text, line);
        // One write(2) a line, so that a file that others append to as well has whole lines.
        match self.file.write_all(&text) {
            Ok(()) => self.failing = false,
            Err(error) => {
                self.lost.fetch_add(lost + 1, Ordering::Relaxed);
                self.all_lost.inc();
                if !std::mem::replace(&mut self.failing, true) {
                    tracing::error!(path = %self.path.display(), %error, "cannot write the audit log");
                }
            }
        }
    }
}

fn push(text: &mut Vec<u8>, value: &impl Serialize) {
    // Strings and numbers are always JSON.
    if serde_json::to_writer(&mut *text, value).is_ok() {
        text.push(b'\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(path: &str) -> Line {
        Line {
            time: timestamp(),
            who: "unix:0".into(),
            project: None,
            from: "unix".into(),
            method: "GET".into(),
            path: path.into(),
            sandboxes: Vec::new(),
            status: Some(200),
            latency_us: 7,
            request_id: "id".into(),
        }
    }

    #[tokio::test]
    async fn lines_are_whole_and_in_order_and_the_file_can_be_moved() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        let audit = Audit::open(Some(&path)).unwrap();
        for number in 0..3000 {
            audit.record(line(&format!("/{number}\n\""))).await;
        }
        audit.reopen().await.unwrap();
        let moved = directory.path().join("audit.log.1");
        std::fs::rename(&path, &moved).unwrap();
        audit.record(line("/to the old one")).await;
        audit.reopen().await.unwrap();
        audit.record(line("/to the new one")).await;
        audit.flush().await;
        let paths = |path: &Path| -> Vec<String> {
            let text = std::fs::read_to_string(path).unwrap();
            let parse = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap();
            text.lines().map(|line| parse(line)["path"].as_str().unwrap().to_owned()).collect()
        };
        let old = paths(&moved);
        assert_eq!(
            (old.len(), old[2999].as_str(), old[3000].as_str()),
            (3001, "/2999\n\"", "/to the old one")
        );
        assert_eq!(paths(&path), ["/to the new one"]);
    }

    #[tokio::test]
    async fn what_was_lost_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        let audit = Audit::open(Some(&path)).unwrap();
        audit.lose();
        audit.lose();
        audit.record(line("/")).await;
        audit.flush().await;
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.lines().next().unwrap().ends_with("\"lost_lines\":2}"), "{text}");
        assert_eq!(text.lines().count(), 2);
    }

    #[test]
    fn a_full_disk_costs_lines_and_nothing_else() {
        let lost = Arc::new(AtomicU64::new(0));
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut log = Log {
            path: "/dev/full".into(),
            file: full,
            lost: Arc::clone(&lost),
            all_lost: Counter::default(),
            failing: false,
        };
        log.write(&line("/a"));
        log.write(&line("/b"));
        assert_eq!(lost.load(Ordering::Relaxed), 2);
        log.file = tempfile::tempfile().unwrap();
        log.write(&line("/c"));
        assert_eq!(lost.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn paths_are_bounded_and_name_their_sandbox() {
        assert_eq!(short("/x"), "/x");
        assert!(short(&"ü".repeat(1000)).len() < 600);
        assert_eq!(sandbox_in("/v1/sandboxes/sb-1/exec").as_deref(), Some("sb-1"));
        assert_eq!(sandbox_in("/v1/sandboxes/sb-1").as_deref(), Some("sb-1"));
        assert_eq!(sandbox_in("/sandboxes/sb1/pause").as_deref(), Some("sb1"), "E2B's");
        assert_eq!(sandbox_in("/v2/sandboxes/sb1/connect").as_deref(), Some("sb1"));
        for path in
            ["/v1/sandboxes", "/v1/sandboxes/", "/v1/snapshots/x", "/x/sandboxes/x", "/v1/sandboxes/%22"]
        {
            assert_eq!(sandbox_in(path), None, "{path}");
        }
    }
}
