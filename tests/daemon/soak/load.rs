//! A client that asks for one thing after another, until the daemon is gone.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use forkd_api::sandbox::CreatedSandboxes;
use forkd_tests::engine::process::Failure;
use forkd_tests::engine::ticking::Words;
use forkd_tests::engine::tiny::PATIENCE;
use serde_json::{Value, json};

use super::model::{Creation, Doubt, Model, Sandbox};
use super::random::Random;
use crate::client::{self, Answer};

/// Above these, more is removed than made.
const MANY_SANDBOXES: usize = 10;
const MANY_SNAPSHOTS: usize = 8;

pub struct Load<'a> {
    pub socket: &'a Path,
    pub model: &'a Mutex<Model>,
    pub killed: &'a AtomicBool,
    pub random: Random,
    /// Sandboxes of one request.
    pub most: u64,
}

/// What came of a request.
enum Reply {
    Done(Answer),
    /// Refused, and nothing has happened.
    Refused,
    /// The daemon was killed.
    Nothing,
}

/// Whether the daemon still answers.
type Continue = bool;

impl Load<'_> {
    pub fn run(mut self) -> Result<(), Failure> {
        while self.one()? {}
        Ok(())
    }

    fn one(&mut self) -> Result<Continue, Failure> {
        let (sandboxes, snapshots) = {
            let model = self.model();
            (model.sandboxes.len(), model.snapshots.len())
        };
        match self.random.below(12) {
            0..=1 if sandboxes < MANY_SANDBOXES => self.create(),
            2 if sandboxes < MANY_SANDBOXES && snapshots < MANY_SNAPSHOTS => self.copy(),
            3..=4 if snapshots < MANY_SNAPSHOTS => self.branch(),
            5..=6 => self.roll_back(),
            7 => self.pause_or_resume(),
            8 => self.keep(),
            9 if snapshots > MANY_SNAPSHOTS / 2 => self.remove_snapshot(),
            10 if sandboxes > MANY_SANDBOXES / 2 => self.remove(),
            0..=4 => self.remove(),
            _ => self.keep(),
        }
    }

    fn model(&self) -> MutexGuard<'_, Model> {
        self.model.lock().expect("no client panics with it")
    }

    /// Sends a request. An unexpected answer is a failure of the test.
    fn send(&self, request: &str, body: Option<Value>) -> Result<Reply, Failure> {
        match client::send(self.socket, request, "", body.as_ref()) {
            // The end of an answer that the daemon did not live to write is missing.
            Ok(answer) if self.killed.load(Ordering::SeqCst) && answer.is_cut() => Ok(Reply::Nothing),
            Ok(answer) if answer.status < 300 => Ok(Reply::Done(answer)),
            Ok(answer) if [404, 409].contains(&answer.status) => Ok(Reply::Refused),
            Ok(answer) => Err(format!("{request} gets {answer:?}").into()),
            Err(_) if self.killed.load(Ordering::SeqCst) => Ok(Reply::Nothing),
            Err(error) => Err(format!("{request}: {error}").into()),
        }
    }

    /// Takes a sandbox that nobody has.
    fn take(&mut self, like: impl Fn(&Sandbox) -> bool) -> Option<(String, Sandbox)> {
        let idle = self.model().idle(like);
        let id = self.random.choose(idle)?;
        let mut model = self.model();
        // Somebody may have been quicker.
        let sandbox = model.sandboxes.get_mut(&id).filter(|sandbox| !sandbox.busy)?;
        sandbox.busy = true;
        Some((id, sandbox.clone()))
    }

    fn give_back(&self, id: String, mut sandbox: Sandbox) {
        sandbox.busy = false;
        self.model().sandboxes.insert(id, sandbox);
    }

    pub fn create(&mut self) -> Result<Continue, Failure> {
        let snapshots: Vec<_> =
            self.model().snapshots.iter().map(|(tag, keeps)| (tag.clone(), *keeps)).collect();
        let Some((tag, keeps)) = self.random.choose(snapshots) else { return Ok(true) };
        let count = 1 + self.random.below(self.most);
        self.fork(json!({ "snapshot_tag": tag }), usize::try_from(count)?, keeps).map(|reply| reply.is_some())
    }

    /// Forks, and says whether the daemon has answered, and made them.
    fn fork(&mut self, mut body: Value, count: usize, keeps: u64) -> Result<Option<bool>, Failure> {
        let operation = self.model().number().to_string();
        body["n"] = json!(count);
        body["metadata"] = json!({ "operation": operation });
        match self.send("POST /v1/sandboxes", Some(body))? {
            Reply::Refused => Ok(Some(false)),
            Reply::Nothing => {
                self.model().creations.insert(operation, Creation { count, keeps });
                Ok(None)
            }
            Reply::Done(answer) => {
                let created: CreatedSandboxes = answer.parsed(201)?;
                if created.sandboxes.len() != count || !created.failures.is_empty() {
                    return Err(format!("{count} were asked for: {created:?}").into());
                }
                for sandbox in created.sandboxes {
                    let pid = sandbox.pid.ok_or("no pid")?;
                    self.model().sandboxes.insert(sandbox.id, Sandbox::new(pid, keeps));
                }
                Ok(Some(true))
            }
        }
    }

    /// Branches a sandbox, which goes on.
    pub fn branch(&mut self) -> Result<Continue, Failure> {
        let Some((id, mut sandbox)) = self.take(|_| true) else { return Ok(true) };
        let tag = format!("b{}", self.model().number());
        let body = json!({ "tag": tag, "wait": self.random.below(2) == 0 });
        let reply = self.send(&format!("POST /v1/sandboxes/{id}/branch"), Some(body))?;
        let continues = match reply {
            Reply::Done(_) => {
                self.model().snapshots.insert(tag.clone(), sandbox.keeps);
                sandbox.branches.push(tag);
                true
            }
            Reply::Refused => return Err(format!("{id} cannot be branched").into()),
            Reply::Nothing => {
                self.model().branches.insert(tag.clone(), sandbox.keeps);
                sandbox.doubt = Some(Doubt::Branched(tag));
                false
            }
        };
        self.give_back(id, sandbox);
        Ok(continues)
    }

    /// Forks straight from a sandbox.
    fn copy(&mut self) -> Result<Continue, Failure> {
        let Some((id, mut sandbox)) = self.take(|_| true) else { return Ok(true) };
        let count = usize::try_from(1 + self.random.below(3))?;
        let reply = self.fork(json!({ "from_sandbox": id }), count, sandbox.keeps)?;
        let continues = match reply {
            // The branch that they were made of has gone.
            Some(true) => true,
            Some(false) => return Err(format!("{id} cannot be copied").into()),
            None => {
                sandbox.doubt = Some(Doubt::Branched(format!("{id}-")));
                false
            }
        };
        self.give_back(id, sandbox);
        Ok(continues)
    }

    pub fn roll_back(&mut self) -> Result<Continue, Failure> {
        let Some((id, mut sandbox)) = self.take(|sandbox| !sandbox.branches.is_empty()) else {
            return Ok(true);
        };
        let tag = self.random.choose(sandbox.branches.clone()).ok_or("no branch")?;
        // It may have been removed.
        let keeps = self.model().snapshots.get(&tag).copied();
        let reply = self.send(&format!("POST /v1/sandboxes/{id}/rollback"), Some(json!({ "tag": tag })))?;
        let continues = match (reply, keeps) {
            (Reply::Done(answer), Some(keeps)) => {
                let shown: forkd_api::sandbox::Sandbox = answer.parsed(200)?;
                sandbox.pid = shown.pid.ok_or("no pid")?;
                sandbox.keeps = keeps;
                sandbox.back_to(&tag);
                true
            }
            (Reply::Done(_), None) => {
                return Err(format!("{id} went back to {tag}, which was removed").into());
            }
            (Reply::Refused, _) => true,
            (Reply::Nothing, _) => {
                sandbox.doubt = Some(Doubt::RolledBack(tag, keeps));
                false
            }
        };
        self.give_back(id, sandbox);
        Ok(continues)
    }

    fn pause_or_resume(&mut self) -> Result<Continue, Failure> {
        let Some((id, mut sandbox)) = self.take(|_| true) else { return Ok(true) };
        let verb = if sandbox.paused { "resume" } else { "pause" };
        let continues = match self.send(&format!("POST /v1/sandboxes/{id}/{verb}"), None)? {
            Reply::Done(_) => {
                sandbox.paused = !sandbox.paused;
                true
            }
            Reply::Refused => return Err(format!("{id} cannot {verb}").into()),
            Reply::Nothing => {
                sandbox.doubt = Some(Doubt::Changed);
                false
            }
        };
        self.give_back(id, sandbox);
        Ok(continues)
    }

    /// Gives a guest something to keep, without the daemon.
    pub fn keep(&mut self) -> Result<Continue, Failure> {
        let Some((id, mut sandbox)) = self.take(|sandbox| !sandbox.paused) else {
            // There is nothing to do: others are at it.
            std::thread::sleep(std::time::Duration::from_millis(10));
            return Ok(!self.killed.load(Ordering::SeqCst));
        };
        sandbox.keeps = self.model().number();
        Words::of(sandbox.pid, PATIENCE)?.keep(sandbox.keeps, PATIENCE)?;
        self.give_back(id, sandbox);
        Ok(!self.killed.load(Ordering::SeqCst))
    }

    pub fn remove(&mut self) -> Result<Continue, Failure> {
        let Some((id, mut sandbox)) = self.take(|_| true) else { return Ok(true) };
        match self.send(&format!("DELETE /v1/sandboxes/{id}"), None)? {
            Reply::Done(_) => {
                self.model().sandboxes.remove(&id);
                Ok(true)
            }
            Reply::Refused => Err(format!("{id} cannot be removed").into()),
            Reply::Nothing => {
                sandbox.doubt = Some(Doubt::Removed);
                self.give_back(id, sandbox);
                Ok(false)
            }
        }
    }

    pub fn remove_snapshot(&mut self) -> Result<Continue, Failure> {
        let others: Vec<_> = self.model().snapshots.keys().filter(|tag| *tag != "base").cloned().collect();
        let Some(tag) = self.random.choose(others) else { return Ok(true) };
        match self.send(&format!("DELETE /v1/snapshots/{tag}"), None)? {
            Reply::Done(_) => {
                self.model().snapshots.remove(&tag);
                Ok(true)
            }
            Reply::Refused => Ok(true),
            Reply::Nothing => {
                self.model().removals.push(tag);
                Ok(false)
            }
        }
    }
}
