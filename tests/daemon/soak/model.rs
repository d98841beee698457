//! What must be there, as far as it was acknowledged, and what may be there besides.

use std::collections::BTreeMap;

/// Every number that a guest is given to keep is given once.
const FIRST_NUMBER: u64 = 1000;

#[derive(Debug, Default)]
pub struct Model {
    pub sandboxes: BTreeMap<String, Sandbox>,
    /// By tag, what their guests keep.
    pub snapshots: BTreeMap<String, u64>,
    /// What was asked for without an answer.
    pub creations: BTreeMap<String, Creation>,
    pub branches: BTreeMap<String, u64>,
    pub removals: Vec<String>,
    last_number: u64,
}

#[derive(Debug, Clone)]
pub struct Sandbox {
    pub pid: i32,
    pub keeps: u64,
    pub paused: bool,
    pub branches: Vec<String>,
    /// Whether a client has it.
    pub busy: bool,
    pub doubt: Option<Doubt>,
}

/// What may have become of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Doubt {
    Removed,
    Changed,
    Branched(String),
    /// To this branch, which keeps this, if it was still there.
    RolledBack(String, Option<u64>),
}

/// Sandboxes that may have been made, all or none.
#[derive(Debug, Clone)]
pub struct Creation {
    pub count: usize,
    pub keeps: u64,
}

impl Model {
    pub fn with_snapshot(tag: &str, keeps: u64) -> Model {
        let snapshots = [(tag.to_owned(), keeps)].into();
        Model { snapshots, last_number: FIRST_NUMBER, ..Model::default() }
    }

    pub fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// The ids of sandboxes that no client has, and that are in no doubt.
    pub fn idle(&self, like: impl Fn(&Sandbox) -> bool) -> Vec<String> {
        let idle = self.sandboxes.iter().filter(|(_, it)| !it.busy && it.doubt.is_none() && like(it));
        idle.map(|(id, _)| id.clone()).collect()
    }
}

impl Sandbox {
    pub fn new(pid: i32, keeps: u64) -> Sandbox {
        Sandbox { pid, keeps, paused: false, branches: Vec::new(), busy: false, doubt: None }
    }

    /// What is its own after it went back to a branch.
    pub fn back_to(&mut self, tag: &str) {
        let kept = self.branches.iter().position(|branch| branch == tag).map_or(0, |place| place + 1);
        self.branches.truncate(kept);
        self.paused = false;
    }
}
