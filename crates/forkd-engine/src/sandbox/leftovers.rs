//! Remains of a sandbox that was removed: files, a network, a cgroup. No request waits until they are cleared.
//!
//! A daemon that ends before leaves it to the next one, which finds that the process is gone.

use std::fs;
use std::sync::Arc;

use tokio::sync::{Mutex, watch};

use crate::blocking::in_place;
use crate::engine::{Engine, Shared};
use crate::limits::quota::of_sandbox;
use crate::process::users::User;
use crate::record::SandboxRecord;
use crate::sandbox::promise::Promise;

/// What is being cleared.
#[derive(Debug, Default)]
pub(crate) struct Clearing {
    turn: Mutex<()>,
    /// Of so many sandboxes something is left.
    left: watch::Sender<usize>,
}

pub(super) struct Leftovers {
    pub record: SandboxRecord,
    pub promise: Option<Arc<Promise>>,
    /// Files that it has left count against it.
    pub _user: Option<User>,
}

impl Leftovers {
    /// Clears it when it has its turn: one at a time, so that those who run and those who come up hardly notice.
    pub fn clear_later(self, shared: &Arc<Shared>) {
        let shared = Arc::clone(shared);
        shared.clearing.left.send_modify(|left| *left += 1);
        // Others may be removed with it. Their networks are made ready for the next ones when that is over.
        let hold = shared.networks.hold();
        tokio::spawn(async move {
            let turn = shared.clearing.turn.lock().await;
            self.clear(&shared).await;
            drop((turn, hold));
            shared.clearing.left.send_modify(|left| *left -= 1);
        });
    }

    async fn clear(self, shared: &Shared) {
        let Leftovers { record, promise, _user } = self;
        shared.clear_files(&record);
        shared.leave(of_sandbox(&record)).await;
        if let Some(promise) = promise {
            promise.leave();
        }
    }
}

impl Shared {
    /// Removes the files of a sandbox whose process has ended or is about to, and gives its network back. What cannot be removed now is
    /// removed by the next sweep.
    pub(super) fn clear_files(&self, record: &SandboxRecord) {
        in_place(|| {
            let directory = self.paths.sandbox(&record.id);
            let _ = fs::remove_dir_all(&directory);
            self.networks.give_back(&record.id, &directory);
            for disk in &record.disks {
                let tops = [&disk.files].into_iter().chain(&disk.instead).map(|files| &files.top);
                tops.for_each(|top| self.remove_layer(top));
            }
        });
    }
}

impl Engine {
    /// Waits until nothing is left of the sandboxes that have been removed.
    pub async fn cleared(&self) {
        // The sender is here.
        let _ = self.shared.clearing.left.subscribe().wait_for(|left| *left == 0).await;
    }
}
