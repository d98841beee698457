//! The filter of system calls, made from the [table](crate::table).
//!
//! Filters add up: a call must pass all that its thread and the threads and processes before it have put up. The first is that of
//! [`Role::Trusted`], which allows all that any thread ever needs; [`Role::Control`] only takes away from it; every other thread
//! adds a list of its own. A call that does not pass raises SIGSYS, whose handler says which it was and ends the process. No
//! filter lets a thread change that handler.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::sync::OnceLock;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};

use crate::table::{CALLS, Role, When};
use crate::{JailError, failed};

/// The filters, made once: those that are forked have them too.
static FILTERS: OnceLock<Filters> = OnceLock::new();

enum Filters {
    /// Only a test may do without.
    Absent,
    Of(BTreeMap<Role, BpfProgram>),
}

thread_local! {
    /// What this thread is. Initialised by a constant: a signal handler looks at it.
    static ROLE: Cell<Option<Role>> = const { Cell::new(None) };
}

/// What the calling thread is, if it has a filter.
pub fn role() -> Option<Role> {
    ROLE.get()
}

/// Makes all filters.
pub fn prepare(filtered: bool) -> Result<(), JailError> {
    let filters = match filtered {
        true => Filters::Of(all().map_err(|error| failed("filters")(io::Error::other(error)))?),
        false => Filters::Absent,
    };
    FILTERS
        .set(filters)
        .map_err(|_| failed("filters")(io::Error::other("the process is in its jail already")))
}

fn all() -> Result<BTreeMap<Role, BpfProgram>, BackendError> {
    Role::ALL.into_iter().map(|role| Ok((role, program(role)?))).collect()
}

/// Puts up the filter of a role around the calling thread, and all that it makes from now on.
pub fn enforce(role: Role) -> Result<(), JailError> {
    let error = |error: seccompiler::Error| failed("the filter of system calls")(io::Error::other(error));
    match FILTERS.get() {
        Some(Filters::Of(filters)) => {
            let program = filters.get(&role).map(Vec::as_slice).unwrap_or_default();
            apply_filter(program).map_err(error)?;
        }
        Some(Filters::Absent) => {}
        None => {
            return Err(failed("the filter of system calls")(io::Error::other("the process is in no jail")));
        }
    }
    ROLE.set(Some(role));
    Ok(())
}

fn program(role: Role) -> Result<BpfProgram, BackendError> {
    let (trap, allow) = (SeccompAction::Trap, SeccompAction::Allow);
    let filter = match role {
        // All that comes before it is the list of what is allowed; this takes away the rest.
        Role::Control => {
            let away = CALLS.iter().filter(|call| !call.is_for(Role::Control));
            let away = away.map(|call| (call.number, Vec::new())).collect();
            SeccompFilter::new(away, allow, trap, TargetArch::x86_64)?
        }
        Role::Trusted | Role::Vcpu | Role::Devices | Role::Persist => {
            SeccompFilter::new(allowed(role)?, trap, allow, TargetArch::x86_64)?
        }
    };
    filter.try_into()
}

/// The rules of the calls that a role may make. A call without rules is allowed whatever its arguments are.
fn allowed(role: Role) -> Result<BTreeMap<i64, Vec<SeccompRule>>, BackendError> {
    let mut rules = BTreeMap::new();
    for call in CALLS.iter().filter(|call| call.is_for(role)) {
        let rules: &mut Vec<SeccompRule> = rules.entry(call.number).or_default();
        if let When::Argument { index, values } = call.when {
            for value in values.iter().filter(|value| value.is_for(role)) {
                let equal =
                    SeccompCondition::new(index, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value.number)?;
                rules.push(SeccompRule::new(vec![equal])?);
            }
        }
    }
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_role_has_a_filter() {
        for (role, program) in all().unwrap() {
            assert!((10..2000).contains(&program.len()), "{role:?}: {}", program.len());
        }
    }
}
