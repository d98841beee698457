//! What the walls around VM processes need, beyond what sandboxes cannot run without.

use landlock::{ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetError};

use super::Problem;

/// Every VM process gets a user id of its own from root only.
pub(super) fn check_user() -> Result<String, Problem> {
    let user = rustix::process::geteuid();
    if user.is_root() {
        return Ok("root: every sandbox can have its own user id, cgroup and network".into());
    }
    Err(Problem::warning(
        format!("user {}: all VM processes have this user id and no network", user.as_raw()),
        "run the daemon as root; VM processes drop root before reading input",
    ))
}

pub(super) fn check_landlock() -> Result<String, Problem> {
    match ruleset() {
        Ok(()) => Ok("Landlock denies VM processes all file access".into()),
        Err(_) => Err(Problem::warning(
            "this kernel has no Landlock, or it is disabled",
            "add landlock to the kernel argument lsm=, from Linux 5.13 on; other isolation still applies",
        )),
    }
}

/// Asks for the oldest version. A set of rules that is not entered restricts nothing.
fn ruleset() -> Result<(), RulesetError> {
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    ruleset.handle_access(AccessFs::from_all(ABI::V1))?.create().map(drop)
}
