//! User ids of VM processes: who shares one, and which are free.
//!
//! ```text
//!   snapshot on disk ──load──▶ zygote, 1, trusted ──fork──▶ VM, 2      each child has an id of its own
//!                                                └──fork──▶ VM, 3 ──branch──▶ zygote, 3 ──fork──▶ VM, 3
//!   image ──boot, freeze──▶ zygote, 4 ──fork──▶ VM, 4                  a guest ran before: all of its line share one
//! ```
//!
//! An id is free again when the last process that has it is gone. One that became free is not taken soon: so what its last
//! process still does affects no other sandbox.

use std::collections::BTreeMap;
use std::num::ParseIntError;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::thread::{CapabilitySet, capabilities};
use serde::{Deserialize, Serialize};

use crate::process::page_table::user_of;

/// The ids that may be given away. No other program of the host uses them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UidRange {
    pub first: u32,
    pub count: u32,
}

impl Default for UidRange {
    /// Above what distributions give to people, services and containers. `forkd-vmm` itself takes the one before if it is
    /// told none: guests of builds.
    fn default() -> UidRange {
        UidRange { first: 2_000_000_001, count: 65_535 }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UidRangeError {
    #[error("expected FIRST:COUNT, such as 2000000001:65535")]
    Form,
    #[error(transparent)]
    Number(#[from] ParseIntError),
    #[error("expected ids from 1000 to 4294967294")]
    Bounds,
}

impl FromStr for UidRange {
    type Err = UidRangeError;

    fn from_str(text: &str) -> Result<UidRange, UidRangeError> {
        /// What is below is the host's own.
        const LEAST: u32 = 1000;
        let (first, count) = text.split_once(':').ok_or(UidRangeError::Form)?;
        let range = UidRange { first: first.parse()?, count: count.parse()? };
        // The last number of all means no id.
        match range.first.checked_add(range.count) {
            Some(end) if range.first >= LEAST && range.count > 0 && end < u32::MAX => Ok(range),
            _ => Err(UidRangeError::Bounds),
        }
    }
}

/// What is written down of a process' id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserRecord {
    pub uid: u32,
    /// Whether no guest has run in the process: its children have ids of their own.
    pub trusted: bool,
}

/// All ids are in use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("all {0} user ids of VM processes are in use")]
pub struct NoneLeft(u32);

/// The id of a process. Clones are the same one.
#[derive(Debug, Clone)]
pub struct User {
    uid: Arc<u32>,
    pub trusted: bool,
}

/// All ids.
#[derive(Debug)]
pub struct Users {
    /// `None` for a daemon that may not give any away: each process has its own then.
    range: Option<UidRange>,
    given: Mutex<Given>,
}

#[derive(Debug, Default)]
struct Given {
    /// How many were looked at: the next one is tried first.
    next: u32,
    to: BTreeMap<u32, Weak<u32>>,
    /// Those of processes that do not answer: they are not held here, and must not be given away.
    kept: Vec<User>,
}

impl Users {
    pub fn new(range: UidRange) -> Users {
        let needed = CapabilitySet::SETUID | CapabilitySet::SETGID;
        let able = capabilities(None).is_ok_and(|sets| sets.effective.contains(needed));
        Users { range: able.then_some(range), given: Mutex::default() }
    }

    /// A free id.
    pub fn new_user(&self, trusted: bool) -> Result<Option<User>, NoneLeft> {
        let Some(range) = self.range else { return Ok(None) };
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..range.count {
            let uid = range.first + given.next % range.count;
            given.next = given.next.wrapping_add(1) % range.count;
            if given.to.get(&uid).is_none_or(|held| held.strong_count() == 0) {
                let held = Arc::new(uid);
                given.to.insert(uid, Arc::downgrade(&held));
                return Ok(Some(User { uid: held, trusted }));
            }
        }
        Err(NoneLeft(range.count))
    }

    /// The id of a process that was found again.
    pub fn found(&self, record: UserRecord) -> User {
        let UserRecord { uid, trusted } = record;
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        let held = given.to.get(&uid).and_then(Weak::upgrade).unwrap_or_else(|| Arc::new(uid));
        given.to.insert(uid, Arc::downgrade(&held));
        if let Some(range) = self.range {
            given.next = given.next.max(uid.saturating_sub(range.first).saturating_add(1) % range.count);
        }
        User { uid: held, trusted }
    }

    /// The same for a process that does not answer.
    pub fn keep(&self, record: UserRecord) {
        let user = self.found(record);
        self.given.lock().unwrap_or_else(PoisonError::into_inner).kept.push(user);
    }

    /// The ids of all processes of this host that are in the range: whose they are may be in a record that cannot be read.
    pub fn keep_running(&self) {
        let Some(range) = self.range else { return };
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let is_in_range = |uid: &u32| uid.checked_sub(range.first).is_some_and(|at| at < range.count);
        for uid in pids.filter_map(user_of).filter(is_in_range) {
            self.keep(UserRecord { uid, trusted: false });
        }
    }

    /// The id of a child, if processes have any.
    pub fn of_child(&self, zygote: Option<&User>) -> Result<Option<User>, NoneLeft> {
        match zygote {
            Some(user) if user.trusted => self.new_user(false),
            other => Ok(other.cloned()),
        }
    }
}

impl User {
    pub fn uid(&self) -> u32 {
        *self.uid
    }

    pub fn record(&self) -> UserRecord {
        UserRecord { uid: *self.uid, trusted: self.trusted }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users(count: u32) -> Users {
        Users { range: Some(UidRange { first: 5000, count }), given: Mutex::default() }
    }

    #[test]
    fn an_id_is_free_when_nobody_has_it_and_not_taken_at_once() {
        let users = users(3);
        let take = || users.new_user(false).unwrap().unwrap();
        let (one, two) = (take(), take());
        assert_eq!([one.uid(), two.uid()], [5000, 5001]);
        let again = one.clone();
        drop(one);
        let three = take();
        assert_eq!(three.uid(), 5002);
        assert_eq!(users.new_user(false).unwrap_err(), NoneLeft(3));
        drop(again);
        assert_eq!(take().uid(), 5000);
    }

    #[test]
    fn a_line_shares_its_id_and_children_of_a_trusted_zygote_do_not() {
        let users = users(10);
        let loaded = users.new_user(true).unwrap();
        let child = |of: &Option<User>| users.of_child(of.as_ref()).unwrap();
        let (one, two) = (child(&loaded), child(&loaded));
        let uid = |user: &Option<User>| user.as_ref().unwrap().uid();
        assert_ne!(uid(&one), uid(&two));
        assert_eq!(uid(&one), uid(&child(&one)));
        assert!(!one.unwrap().trusted);
    }

    #[test]
    fn what_is_found_again_is_in_use() {
        let users = users(3);
        let found = users.found(UserRecord { uid: 5001, trusted: false });
        let same = users.found(UserRecord { uid: 5001, trusted: false });
        let taken = [(); 2].map(|()| users.new_user(false).unwrap().unwrap());
        assert!(taken.iter().all(|user| user.uid() != 5001));
        drop(found);
        assert!(users.new_user(false).is_err());
        drop(same);
        assert_eq!(users.new_user(false).unwrap().unwrap().uid(), 5001);
    }

    #[test]
    fn a_range_is_nobody_else_s() {
        assert_eq!("5000:10".parse(), Ok(UidRange { first: 5000, count: 10 }));
        for bad in ["", "5000", "5000:", ":1", "0:10", "999:1", "5000:0", "4294967290:10", "5000:-1"] {
            assert!(bad.parse::<UidRange>().is_err(), "{bad}");
        }
        assert!(Users { range: None, given: Mutex::default() }.new_user(true).unwrap().is_none());
    }
}
