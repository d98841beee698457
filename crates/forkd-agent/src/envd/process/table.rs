//! The processes of the sandbox that clients started: those that run, and the ends of those that did not long ago.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forkd_envd::Exit;
use forkd_envd::connect::ConnectError;
use forkd_envd::process::{ProcessConfig, Selector};

use super::input::ProcessInputs;
use super::subscribers::Subscribers;
use crate::children::Terminal;

/// How long the end of a process can still be asked for, and of how many.
const REMEMBERED: Duration = Duration::from_secs(60);
const MAX_REMEMBERED: usize = 1024;

/// One that a client started.
#[derive(Debug)]
pub struct Process {
    pub pid: u32,
    pub tag: Option<String>,
    pub config: ProcessConfig,
    pub inputs: ProcessInputs,
    pub terminal: Option<Terminal>,
    pub subscribers: Subscribers,
}

#[derive(Debug, Default)]
pub struct Processes(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    running: HashMap<u32, Arc<Process>>,
    ended: VecDeque<Ended>,
}

/// What stays of a process: nothing that costs a descriptor.
#[derive(Debug, Clone)]
pub struct Ended {
    pub pid: u32,
    pub exit: Exit,
    tag: Option<String>,
    when: Instant,
}

/// A process, or what stays of it.
#[derive(Debug)]
pub enum Recent {
    Running(Arc<Process>),
    Ended(Ended),
}

impl Processes {
    pub fn insert(&self, process: Arc<Process>) {
        let mut inner = self.lock();
        // A number that is used again belongs to the new process.
        inner.ended.retain(|ended| ended.pid != process.pid);
        inner.running.insert(process.pid, process);
    }

    /// Remembers the process for a while. There is no timer for that: what is too old goes when the next one ends or is sought.
    pub fn ended(&self, process: &Arc<Process>, exit: Exit) {
        let mut inner = self.lock();
        if inner.running.get(&process.pid).is_some_and(|running| Arc::ptr_eq(running, process)) {
            inner.running.remove(&process.pid);
        }
        let ended = Ended { pid: process.pid, exit, tag: process.tag.clone(), when: Instant::now() };
        inner.ended.push_back(ended);
        inner.forget();
    }

    /// A running process.
    pub fn running(&self, selector: &Selector) -> Result<Arc<Process>, ConnectError> {
        let inner = self.lock();
        let wanted = ProcessSelector::new(selector)?;
        let found = match wanted {
            ProcessSelector::Pid(pid) => inner.running.get(&pid),
            ProcessSelector::Tag(tag) => {
                inner.running.values().find(|process| process.tag.as_deref() == Some(tag))
            }
        };
        found.cloned().ok_or_else(|| wanted.missing())
    }

    /// A running process, or one that ended a moment ago.
    pub fn recent(&self, selector: &Selector) -> Result<Recent, ConnectError> {
        let missing = match self.running(selector) {
            Ok(process) => return Ok(Recent::Running(process)),
            Err(missing) => missing,
        };
        let wanted = ProcessSelector::new(selector)?;
        let mut inner = self.lock();
        inner.forget();
        let found = inner.ended.iter().rev().find(|ended| wanted.is(ended)).cloned();
        found.map(Recent::Ended).ok_or(missing)
    }

    /// All that run, by number.
    pub fn all(&self) -> Vec<Arc<Process>> {
        let mut all: Vec<_> = self.lock().running.values().cloned().collect();
        all.sort_by_key(|process| process.pid);
        all
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn forget(&mut self) {
        while self.ended.len() > MAX_REMEMBERED
            || self.ended.front().is_some_and(|ended| ended.when.elapsed() > REMEMBERED)
        {
            self.ended.pop_front();
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum ProcessSelector<'a> {
    Pid(u32),
    Tag(&'a str),
}

impl<'a> ProcessSelector<'a> {
    fn new(selector: &'a Selector) -> Result<Self, ConnectError> {
        match (selector.pid, selector.tag.as_deref()) {
            (Some(pid), _) => Ok(Self::Pid(pid.0)),
            (None, Some(tag)) => Ok(Self::Tag(tag)),
            (None, None) => {
                Err(ConnectError::invalid("the request names a process neither by pid nor by tag"))
            }
        }
    }

    fn is(self, ended: &Ended) -> bool {
        match self {
            Self::Pid(pid) => ended.pid == pid,
            Self::Tag(tag) => ended.tag.as_deref() == Some(tag),
        }
    }

    fn missing(self) -> ConnectError {
        ConnectError::not_found(match self {
            Self::Pid(pid) => format!("process with pid {pid} not found"),
            Self::Tag(tag) => format!("process with tag {tag} not found"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, tag: &str) -> Arc<Process> {
        Arc::new(Process {
            pid,
            tag: Some(tag.to_owned()),
            config: ProcessConfig::default(),
            inputs: ProcessInputs::new(None),
            terminal: None,
            subscribers: Subscribers::new(pid),
        })
    }

    #[test]
    fn the_ended_are_remembered_and_a_reused_number_is_the_new_process() {
        let processes = Processes::default();
        let (first, second) = (process(5, "first"), process(5, "second"));
        processes.insert(Arc::clone(&first));
        processes.ended(&first, Exit::Code(4));
        assert!(processes.running(&Selector::pid(5)).is_err());
        assert!(
            matches!(processes.recent(&Selector::pid(5)), Ok(Recent::Ended(ended)) if ended.exit == Exit::Code(4))
        );
        processes.insert(second);
        assert!(matches!(processes.recent(&Selector::pid(5)), Ok(Recent::Running(_))));
        let by_tag = Selector { pid: None, tag: Some("second".into()) };
        assert_eq!(processes.running(&by_tag).unwrap().pid, 5);
        assert!(processes.running(&Selector::default()).is_err());
    }

    #[test]
    fn only_so_many_ends_are_remembered() {
        let processes = Processes::default();
        for number in 1..=2000 {
            let process = process(number, "x");
            processes.insert(Arc::clone(&process));
            processes.ended(&process, Exit::Code(0));
        }
        assert!(processes.recent(&Selector::pid(1)).is_err());
        assert!(processes.recent(&Selector::pid(2000)).is_ok());
        assert_eq!(processes.lock().ended.len(), MAX_REMEMBERED);
    }
}
