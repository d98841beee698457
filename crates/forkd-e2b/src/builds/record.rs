//! What is known of the builds of templates. It is kept in memory: what a build has made is a snapshot, and stays.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use forkd_engine::project::Project;
use forkd_image::Progress;
use forkd_store::Tag;
use serde::Serialize;

use crate::App;
use forkd_daemon::audit;

/// Builds that are remembered when they are done.
const MOST: usize = 256;
/// Builds that are remembered in all.
const MOST_OPEN: usize = 4096;
/// Lines of a build that are remembered, and of one answer.
const MOST_LINES: usize = 10_000;
pub(super) const PAGE: usize = 100;
const MAX_LINE: usize = 16 << 10;

#[derive(Debug, Default)]
pub(crate) struct Builds(Mutex<Memory>);

#[derive(Debug, Default)]
struct Memory {
    builds: HashMap<String, Build>,
    /// The oldest first.
    order: VecDeque<String>,
}

/// One.
#[derive(Debug, Clone)]
pub(super) struct Build {
    pub template: Tag,
    /// Its other names.
    pub also: Vec<Tag>,
    /// What it makes, unless there is one of the same contents.
    pub snapshot: Tag,
    pub project: Project,
    pub vcpus: Option<u8>,
    pub memory_mib: Option<u64>,
    pub status: Status,
    pub lines: Vec<LogEntry>,
    /// Why it failed.
    pub reason: Option<String>,
}

impl Build {
    pub fn names(&self) -> impl Iterator<Item = &Tag> {
        std::iter::once(&self.template).chain(&self.also)
    }

    fn is_done(&self) -> bool {
        matches!(self.status, Status::Ready | Status::Error)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Status {
    Waiting,
    Building,
    Ready,
    Error,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct LogEntry {
    timestamp: String,
    level: &'static str,
    pub message: String,
}

impl Memory {
    /// Makes room for another one.
    fn forget(&mut self) {
        while self.order.len() >= MOST {
            let done = |id: &String| self.builds.get(id).is_none_or(Build::is_done);
            let oldest = match self.order.iter().position(done) {
                Some(index) => index,
                None if self.order.len() >= MOST_OPEN => 0,
                None => return,
            };
            if let Some(id) = self.order.remove(oldest) {
                self.builds.remove(&id);
            }
        }
    }
}

impl Builds {
    fn lock(&self) -> MutexGuard<'_, Memory> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, id: &str, build: Build) {
        let mut memory = self.lock();
        memory.forget();
        memory.order.push_back(id.to_owned());
        memory.builds.insert(id.to_owned(), build);
    }

    /// The build of this id, if it is one of this template's.
    pub(super) fn get(&self, template: &str, id: &str) -> Option<Build> {
        self.lock().builds.get(id).filter(|build| build.template.as_str() == template).cloned()
    }

    /// Whether it was waiting. It is building from now on.
    pub(super) fn begin(&self, id: &str) -> bool {
        let mut memory = self.lock();
        let build = memory.builds.get_mut(id).filter(|build| build.status == Status::Waiting);
        build.map(|build| build.status = Status::Building).is_some()
    }

    pub(super) fn end(&self, id: &str, result: Result<(), String>) {
        if let Some(build) = self.lock().builds.get_mut(id) {
            build.status = if result.is_ok() { Status::Ready } else { Status::Error };
            build.reason = result.err();
        }
    }

    fn say(&self, id: &str, level: &'static str, line: &str) {
        let mut memory = self.lock();
        if let Some(build) = memory.builds.get_mut(id).filter(|build| build.lines.len() < MOST_LINES) {
            let end = line.floor_char_boundary(MAX_LINE);
            let message = line[..end].to_owned();
            build.lines.push(LogEntry { timestamp: audit::timestamp(), level, message });
        }
    }
}

/// What a build says goes to its record.
pub(super) struct Saying {
    pub app: App,
    pub id: String,
}

impl Saying {
    pub fn say(&self, level: &'static str, line: &str) {
        self.app.e2b.builds.say(&self.id, level, line);
    }
}

impl Progress for Saying {
    fn step(&self, what: &str) {
        self.say("info", what);
    }

    fn detail(&self, _: &str) {}

    fn output(&self, line: &str) {
        self.say("info", line);
    }

    fn warn(&self, what: &str) {
        self.say("warn", what);
    }

    fn is_cancelled(&self) -> bool {
        self.app.is_stopping()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build() -> Build {
        Build {
            template: "t".parse().unwrap(),
            also: Vec::new(),
            snapshot: "t-1".parse().unwrap(),
            project: Project::default(),
            vcpus: None,
            memory_mib: None,
            status: Status::Waiting,
            lines: Vec::new(),
            reason: None,
        }
    }

    #[test]
    fn builds_begin_once_and_old_ones_are_forgotten() {
        let builds = Builds::default();
        for number in 0..=MOST_OPEN {
            builds.add(&number.to_string(), build());
        }
        assert!(builds.get("t", "0").is_none() && builds.get("x", "1").is_none());
        assert!(builds.begin("1") && !builds.begin("1") && !builds.begin("0"));
        builds.say("1", "info", &"ü".repeat(MAX_LINE));
        builds.end("1", Err("why".into()));
        let build = builds.get("t", "1").unwrap();
        assert_eq!((build.status, build.reason.as_deref()), (Status::Error, Some("why")));
        assert!(build.lines[0].message.len() <= MAX_LINE);
        // Those that are not done stay.
        builds.add("new", build.clone());
        assert!(builds.get("t", "1").is_none() && builds.get("t", "2").is_some());
    }
}
