//! User ids and capabilities.
//!
//! The order matters: the bounding set can only be emptied with capabilities, a change of the user id takes them
//! away unless told otherwise, and it makes a process dumpable or not as the host likes, so that comes last.

use std::io;

use rustix::process::{DumpableBehavior, getegid, geteuid, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, Gid, Uid, capabilities, capability_is_in_bounding_set,
    clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities,
    set_keep_capabilities, set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

use crate::{DEFAULT_UID, JailError, failed};

/// What a loaded zygote keeps, so that each of its children can have an id of its own.
const KEPT: CapabilitySet = CapabilitySet::SETUID.union(CapabilitySet::SETGID);
/// What it takes to build all walls.
const NEEDED: CapabilitySet =
    KEPT.union(CapabilitySet::SYS_ADMIN).union(CapabilitySet::SETPCAP).union(CapabilitySet::SYS_CHROOT);
/// Capabilities have numbers below this one.
const CAPABILITIES: u32 = 64;

/// Who has started the process.
#[derive(Debug)]
pub enum Standing {
    Root {
        uid: u32,
    },
    /// A user who cannot give away user ids.
    Unprivileged {
        uid: u32,
        gid: u32,
    },
}

impl Standing {
    pub fn find(uid: Option<u32>) -> Result<Standing, JailError> {
        let refused = |reason: &'static str| Err(failed("user ids")(io::Error::other(reason)));
        let able = capabilities(None).map_err(failed("capabilities"))?.effective.contains(NEEDED);
        match (able, uid) {
            (true, Some(0)) => refused("0 is root's"),
            (true, uid) => Ok(Standing::Root { uid: uid.unwrap_or(DEFAULT_UID) }),
            (false, Some(_)) => refused("only root can give a process another id"),
            (false, None) if geteuid().is_root() => refused("root without its capabilities"),
            (false, None) => Ok(Standing::Unprivileged { uid: geteuid().as_raw(), gid: getegid().as_raw() }),
        }
    }
}

/// Gives up all that is not [`KEPT`], for ever.
pub fn give_up(standing: &Standing) -> Result<(), JailError> {
    for number in 0..CAPABILITIES {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        // An error: the kernel has no such capability.
        if capability_is_in_bounding_set(capability).unwrap_or(false) {
            remove_capability_from_bounding_set(capability).map_err(failed("the bounding set"))?;
        }
    }
    let kept = match standing {
        Standing::Root { uid } => {
            set_thread_groups(&[]).map_err(failed("groups"))?;
            set_keep_capabilities(true).map_err(failed("capabilities"))?;
            set_ids(*uid)?;
            set_keep_capabilities(false).map_err(failed("capabilities"))?;
            KEPT
        }
        Standing::Unprivileged { .. } => CapabilitySet::empty(),
    };
    clear_ambient_capability_set().map_err(failed("capabilities"))?;
    keep_only(kept)?;
    set_no_new_privs(true).map_err(failed("no_new_privs"))?;
    hide()
}

/// In a child of a loaded zygote: becomes another user, who has the same capabilities until [`drop_all`]. All its threads are made
/// by this one.
pub fn become_user(uid: u32) -> Result<(), JailError> {
    if uid == 0 {
        return Err(failed("user ids")(io::Error::other("0 is root's")));
    }
    set_ids(uid)
}

/// Gives up the capabilities that a loaded zygote has: before the first instruction of a guest.
pub fn drop_all() -> Result<(), JailError> {
    keep_only(CapabilitySet::empty())?;
    hide()
}

fn set_ids(id: u32) -> Result<(), JailError> {
    let (uid, gid) = (Uid::from_raw(id), Gid::from_raw(id));
    set_thread_res_gid(gid, gid, gid).map_err(failed("the group id"))?;
    set_thread_res_uid(uid, uid, uid).map_err(failed("the user id"))
}

fn keep_only(kept: CapabilitySet) -> Result<(), JailError> {
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).map_err(failed("capabilities"))
}

/// Only root may inspect the process, even among processes with the same user id.
fn hide() -> Result<(), JailError> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(failed("not to be dumpable"))
}
