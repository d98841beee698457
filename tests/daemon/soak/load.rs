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

/// Whether the daemon has answered.
enum Told {
    Done(Answer),
    /// Refused, and nothing has happened.
    Refused,
    /// It is gone.
    Nothing,
}

/// Whether there is somebody to go on asking.
type GoOn = bool;

impl Load<'_> {
    pub fn run(mut self) -> Result<(), Failure> {
        while self.one()? {}
        Ok(())
    }

    fn one(&mut self) -> Result<GoOn, Failure> {
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

    /// Asks. Answers that nobody should get are failures of the test.
    fn tell(&self, request: &str, body: Option<Value>) -> Result<Told, Failure> {
        match client::send(self.socket, request, "", body.as_ref()) {
            // The end of an answer that the daemon did not live to write is missing.
            Ok(answer) if self.killed.load(Ordering::SeqCst) && answer.is_cut() => Ok(Told::Nothing),
            Ok(answer) if answer.status < 300 => Ok(Told::Done(answer)),
            Ok(answer) if [404, 409].contains(&answer.status) => Ok(Told::Refused),
            Ok(answer) => Err(format!("{request} gets {answer:?}").into()),
            Err(_) if self.killed.load(Ordering::SeqCst) => Ok(Told::Nothing),
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

    pub fn create(&mut self) -> Result<GoOn, Failure> {
        let snapshots: Vec<_> =
            self.model().snapshots.iter().map(|(tag, keeps)| (tag.clone(), *keeps)).collect();
        let Some((tag, keeps)) = self.random.choose(snapshots) else { return Ok(true) };
        let count = 1 + self.random.below(self.most);
        self.fork(json!({ "snapshot_tag": tag }), usize::try_from(count)?, keeps).map(|told| told.is_some())
    }

    /// Forks, and says whether the daemon has answered, and made them.
    fn fork(&mut self, mut body: Value, count: usize, keeps: u64) -> Result<Option<bool>, Failure> {
        let operation = self.model().number().to_string();
        body["n"] = json!(count);
        body["metadata"] = json!({ "operation": operation });
        match self.tell("POST /v1/sandboxes", Some(body))? {
            Told::Refused => Ok(Some(false)),
            Told::Nothing => {
                self.model().creations.insert(operation, Creation { count, keeps });
                Ok(None)
            }
            Told::Done(answer) => {
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
    pub fn branch(&mut self) -> Result<GoOn, Failure> {
        let Some((id, mut sandbox)) = self.take(|_| true) else { return Ok(true) };
        let tag = format!("b{}", self.model().number());
        let body = json!({ "tag": tag, "wait": self.random.below(2) == 0 });
        let told = self.tell(&format!("POST /v1/sandboxes/{id}/branch"), Some(body))?;
        let go_on = match told {
            Told::Done(_) => {
                self.model().snapshots.insert(tag.clone(), sandbox.keeps);
                sandbox.branches.push(tag);
                true
            }
            Told::Refused => return Err(format!("{id} cannot be branched").into()),
            Told::Nothing => {
                self.model().branches.insert(tag.clone(), sandbox.keeps);
                sandbox.doubt = Some(Doubt::Branched(tag));
                false
            }
        };
        self.give_back(id, sandbox);
        Ok(go_on)
    }

    /// Forks straight from a sandbox.
    fn copy(&mut self) -> Result<GoOn, Failure> {
        let Some((id, mut sandbox)) = self.take(|_| true) else { return Ok(true) };
        let count = usize::try_from(1 + self.random.below(3))?;
        let told = self.fork(json!({ "from_sandbox": id }), count, sandbox.keeps)?;
        let go_on = match told {
            // The branch that they were made of has gone.
            Some(true) => true,
            Some(false) => return Err(format!("{id} cannot be copied").into()),
            None => {
                sandbox.doubt = Some(Doubt::Branched(format!("{id}-")));
                false
            }
        };
        self.give_back(id, sandbox);
        Ok(go_on)
    }

    pub fn roll_back(&mut self) -> Result<GoOn, Failure> {
        let Some((id, mut sandbox)) = self.take(|sandbox| !sandbox.branches.is_empty()) else {
            return Ok(true);
        };
        let tag = self.random.choose(sandbox.branches.clone()).ok_or("no branch")?;
        // It may have been removed.
        let keeps = self.model().snapshots.get(&tag).copied();
        let told = self.tell(&format!("POST /v1/sandboxes/{id}/rollback"), Some(json!({ "tag": tag })))?;
        let go_on = match (told, keeps) {
            (Told::Done(answer), Some(keeps)) => {
                let shown: forkd_api::sandbox::Sandbox = answer.parsed(200)?;
                sandbox.pid = shown.pid.ok_or("no pid")?;
                sandbox.keeps = keeps;
                sandbox.back_to(&tag);
                true
            }
            (Told::Done(_), None) => return Err(format!("{id} went back to {tag}, which was removed").into()),
            (Told::Refused, _) => true,
            (Told::Nothing, _) => {
                sandbox.doubt = Some(Doubt::RolledBack(tag, keeps));
                false
            }
        };
        self.give_back(id, sandbox);
        Ok(go_on)
    }

    fn pause_or_resume(&mut self) -> Result<GoOn, Failure> {
        let Some((id, mut sandbox)) = self.take(|_| true) else { return Ok(true) };
        let verb = if sandbox.paused { "resume" } else { "pause" };
        let go_on = match self.tell(&format!("POST /v1/sandboxes/{id}/{verb}"), None)? {
            Told::Done(_) => {
                sandbox.paused = !sandbox.paused;
                true
            }
            Told::Refused => return Err(format!("{id} cannot {verb}").into()),
            Told::Nothing => {
                sandbox.doubt = Some(Doubt::Changed);
                false
            }
        };
        self.give_back(id, sandbox);
        Ok(go_on)
    }

    /// Gives a guest something to keep, without the daemon.
    pub fn keep(&mut self) -> Result<GoOn, Failure> {
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

    pub fn remove(&mut self) -> Result<GoOn, Failure> {
        let Some((id, mut sandbox)) = self.take(|_| true) else { return Ok(true) };
        match self.tell(&format!("DELETE /v1/sandboxes/{id}"), None)? {
            Told::Done(_) => {
                self.model().sandboxes.remove(&id);
                Ok(true)
            }
            Told::Refused => Err(format!("{id} cannot be removed").into()),
            Told::Nothing => {
                sandbox.doubt = Some(Doubt::Removed);
                self.give_back(id, sandbox);
                Ok(false)
            }
        }
    }

    pub fn remove_snapshot(&mut self) -> Result<GoOn, Failure> {
        let others: Vec<_> = self.model().snapshots.keys().filter(|tag| *tag != "base").cloned().collect();
        let Some(tag) = self.random.choose(others) else { return Ok(true) };
        match self.tell(&format!("DELETE /v1/snapshots/{tag}"), None)? {
            Told::Done(_) => {
                self.model().snapshots.remove(&tag);
                Ok(true)
            }
            Told::Refused => Ok(true),
            Told::Nothing => {
                self.model().removals.push(tag);
                Ok(false)
            }
        }
    }
}
