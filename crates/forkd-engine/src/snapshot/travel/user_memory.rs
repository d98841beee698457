//! Whether a snapshot that is to leave this host has memory of a sandbox with users.
//!
//! A branch has it, and so has whatever was derived from one, compacted, or came from another host: the fact is in the record of each
//! snapshot, and in its sealed manifest. Where it was not recorded, everything that was not booted counts.

use std::fmt;

use forkd_store::{MAX_CHAIN, Tag};

use crate::engine::{Engine, Shared};
use crate::ids::SandboxId;
use crate::record::ZygoteRecord;
use crate::snapshot::SnapshotHandle;

/// Where the memory of a sandbox in a snapshot comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UserMemory {
    /// The snapshot `of`, which is the snapshot itself or one that it is based on, was taken of a sandbox.
    Branch { tag: Tag, of: Tag, sandbox: SandboxId },
    /// It was recorded when the snapshot was made or arrived.
    Recorded { tag: Tag },
    /// The snapshot `of` was made by a version that did not record it.
    Unknown { tag: Tag, of: Tag },
}

impl fmt::Display for UserMemory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UserMemory::Branch { tag, of, sandbox } if tag == of => {
                write!(
                    formatter,
                    "snapshot {tag} was made of sandbox {sandbox} and contains the memory of its users"
                )
            }
            UserMemory::Branch { tag, of, sandbox } => write!(
                formatter,
                "snapshot {tag} is based on {of}, a snapshot of sandbox {sandbox}, and contains the memory of its users"
            ),
            UserMemory::Recorded { tag } => write!(
                formatter,
                "snapshot {tag} is based on a snapshot of a sandbox and contains the memory of its users"
            ),
            UserMemory::Unknown { tag, of } => write!(
                formatter,
                "snapshot {tag} may contain the memory of a sandbox's users: {of} was made by a version of forkd that did not record it"
            ),
        }
    }
}

impl Engine {
    /// Why a snapshot has, or may have, memory of a sandbox with users. `None` if it does not.
    pub fn user_memory(&self, snapshot: &SnapshotHandle) -> Option<UserMemory> {
        find(&ancestry(&self.shared, snapshot))
    }
}

/// The records of a snapshot and of all that it is based on.
fn ancestry(shared: &Shared, snapshot: &SnapshotHandle) -> Vec<ZygoteRecord> {
    let mut chain = vec![snapshot.view().record];
    while chain.len() < MAX_CHAIN
        && let Some(parent) = chain.last().and_then(|record| shared.snapshots.get(record.parent.as_ref()?))
    {
        chain.push(parent.view().record);
    }
    chain
}

fn find(chain: &[ZygoteRecord]) -> Option<UserMemory> {
    let tag = chain.first()?.tag.clone();
    let found: Vec<&ZygoteRecord> = chain.iter().filter(|record| record.has_user_memory()).collect();
    // The sandbox is the best explanation there is.
    let branch = found.iter().find_map(|record| Some((record.tag.clone(), record.branched_from.clone()?)));
    if let Some((of, sandbox)) = branch {
        return Some(UserMemory::Branch { tag, of, sandbox });
    }
    if found.iter().any(|record| record.user_memory == Some(true)) {
        return Some(UserMemory::Recorded { tag });
    }
    found.first().map(|record| UserMemory::Unknown { tag, of: record.tag.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(
        tag: &str,
        branched_from: Option<&str>,
        user_memory: Option<bool>,
        generation: u64,
    ) -> ZygoteRecord {
        let text = serde_json::json!({
            "tag": tag, "parent": null, "branched_from": branched_from, "created_unix_ms": 1, "pause_us": null,
            "shape": {"vcpus": 1, "memory_bytes": 1 << 26, "image": null, "devices": {
                "console": true, "console_input": false, "disk": null, "disk_layers": 0, "net": null,
                "vsock": null, "entropy": false, "mailbox": false}},
            "layers": [], "generation": generation, "user_memory": user_memory, "promised": true,
        });
        serde_json::from_value(text).unwrap()
    }

    #[test]
    fn the_whole_chain_is_asked_and_the_reason_is_named() {
        let booted = || record("base", None, None, 1);
        let clean = || record("numpy", None, Some(false), 2);
        let branch = || record("thought", Some("i4c"), Some(true), 2);
        let told = |chain: &[ZygoteRecord]| find(chain).map(|found| found.to_string());
        assert_eq!(told(&[booted()]), None);
        assert_eq!(told(&[clean(), booted()]), None);
        let of = "snapshot thought was made of sandbox i4c and contains the memory of its users";
        assert_eq!(told(&[branch(), booted()]).unwrap(), of);
        // Also if a snapshot above it says otherwise.
        for said in [Some(true), Some(false), None] {
            let derived = record("derived", None, said, 3);
            let told = told(&[derived, branch(), booted()]).unwrap();
            assert!(told.contains("derived is based on thought, a snapshot of sandbox i4c"), "{told}");
        }
        // Compacted, or on another host.
        let told_of = told(&[record("pulled", None, Some(true), 3), clean()]).unwrap();
        assert!(told_of.contains("pulled is based on a snapshot of a sandbox"), "{told_of}");
        let told_of = told(&[clean(), record("old", None, None, 2), booted()]).unwrap();
        assert!(told_of.contains("old was made by a version of forkd that did not record it"), "{told_of}");
    }
}
