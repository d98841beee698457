//! What the walls around VM processes need, beyond what sandboxes cannot run without.

use landlock::{ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetError};

use super::Problem;

/// Every VM process gets a user id of its own from root only.
pub(super) fn check_user() -> Result<String, Problem> {
    let user = rustix::process::geteuid();
    if user.is_root() {
        return Ok("root: every sandbox can have a user id, a cgroup and a network of its own".into());
    }
    Err(Problem::warning(
        format!("user {}: all VM processes have this user id, and none has a network", user.as_raw()),
        "run the daemon as root; VM processes give up all that this means before they read anything",
    ))
}

pub(super) fn check_landlock() -> Result<String, Problem> {
    match ruleset() {
        Ok(()) => Ok("VM processes are kept from all paths by Landlock, too".into()),
        Err(_) => Err(Problem::warning(
            "this kernel has no Landlock, or it is switched off",
            "add landlock to the kernel argument lsm=, from Linux 5.13 on; the other walls stand without it",
        )),
    }
}

/// Asks for the oldest of it. Nothing is restricted by a set of rules that nobody enters.
fn ruleset() -> Result<(), RulesetError> {
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    ruleset.handle_access(AccessFs::from_all(ABI::V1))?.create().map(drop)
}
