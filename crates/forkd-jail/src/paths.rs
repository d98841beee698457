//! Landlock, where the kernel has it: a second wall behind the empty root. A descriptor of a directory that was left
//! open, or a root that is not as empty as it should be, opens nothing.

use std::io;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, Scope,
};

use crate::{JailError, failed};

/// The newest that is known here; an older kernel does what it can.
const NEWEST: ABI = ABI::V6;

pub fn forbid() -> Result<(), JailError> {
    nothing_allowed().map_err(|error| failed("Landlock")(io::Error::other(error)))
}

/// Everything that Landlock knows of is handled, and no rule allows any of it.
fn nothing_allowed() -> Result<(), RulesetError> {
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::BestEffort);
    let ruleset = ruleset.handle_access(AccessFs::from_all(NEWEST))?;
    let ruleset = ruleset.handle_access(AccessNet::from_all(NEWEST))?;
    let ruleset = ruleset.scope(Scope::from_all(NEWEST))?;
    ruleset.create()?.no_new_privs(false).restrict_self()?;
    Ok(())
}
