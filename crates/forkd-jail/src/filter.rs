//! The filter of system calls, made from the [table](crate::table).
//!
//! Filters add up: a call must pass all that its thread and the threads and processes before it have put up. The first is that of
//! [`Role::Trusted`], which allows all that any thread ever needs and nothing else; every other takes away from it what its role
//! does not need. That is the shorter list, and each child waits while the kernel translates it. A call that does not pass raises
//! SIGSYS, whose handler says which it was and ends the process. No filter lets a thread change that handler.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::num::TryFromIntError;
use std::sync::OnceLock;

use seccompiler::{BpfProgram, apply_filter};

use crate::program::{self, ByArgument, Verdict};
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

fn all() -> Result<BTreeMap<Role, BpfProgram>, TryFromIntError> {
    Role::ALL.into_iter().map(|role| Ok((role, program_of(role)?))).collect()
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

/// The first filter lists what is allowed, every other what its role does not need of that.
fn program_of(role: Role) -> Result<BpfProgram, TryFromIntError> {
    let others = match role {
        Role::Trusted => Verdict::Trap,
        Role::Control | Role::Vcpu | Role::Devices | Role::Persist => Verdict::Allow,
    };
    let (mut by_argument, mut listed) = (Vec::new(), Vec::new());
    for call in CALLS {
        match call.when {
            When::Argument { index, values } if call.is_for(role) => {
                let kept = values.iter().filter(|value| value.is_for(role)).map(|value| value.number);
                let kept: Vec<u64> = kept.collect();
                if others == Verdict::Trap || kept.len() < values.len() {
                    by_argument.push(ByArgument { number: call.number, index, values: kept });
                }
            }
            When::Argument { .. } | When::Always => {
                if call.is_for(role) == (others == Verdict::Trap) {
                    listed.push(call.number);
                }
            }
        }
    }
    program::build(&by_argument, &listed, others)
}

#[cfg(test)]
mod tests {
    use libc::{SECCOMP_RET_ALLOW, SECCOMP_RET_TRAP};

    use super::*;
    use crate::table::Call;

    const X86_64: u32 = 0xc000_003e;

    /// Whether a thread with this role comes through with a call: through the first filter, and through its own.
    fn comes_through(role: Role, number: u32, arguments: [u64; 6]) -> bool {
        [Role::Trusted, role].into_iter().all(|role| {
            match program::run(&program_of(role).unwrap(), number, X86_64, arguments) {
                SECCOMP_RET_ALLOW => true,
                SECCOMP_RET_TRAP => false,
                other => panic!("{role:?}: {number} returns {other:#x}"),
            }
        })
    }

    #[test]
    fn filters_do_what_the_table_says() {
        for role in Role::ALL {
            for number in (0..600).chain([1 << 30, u32::MAX]) {
                let call: Option<&Call> = CALLS.iter().find(|call| call.number == i64::from(number));
                match call.map(|call| (call.is_for(role), &call.when)) {
                    None | Some((false, _)) => {
                        assert!(!comes_through(role, number, [0; 6]), "{role:?} {number}")
                    }
                    Some((true, When::Always)) => {
                        assert!(comes_through(role, number, [7; 6]), "{role:?} {number}")
                    }
                    Some((true, When::Argument { index, values })) => {
                        let with = |value| {
                            let mut arguments = [0xffff; 6];
                            arguments[usize::from(*index)] = value;
                            comes_through(role, number, arguments)
                        };
                        for value in *values {
                            assert_eq!(with(value.number), value.is_for(role), "{role:?} {number} {value:?}");
                        }
                        assert!(!with(0xdead), "{role:?} {number}");
                    }
                }
            }
        }
    }

    #[test]
    fn filters_are_short() {
        let length = |role| program_of(role).unwrap().len();
        assert!(length(Role::Trusted) < 200, "{}", length(Role::Trusted));
        for role in [Role::Control, Role::Vcpu, Role::Devices, Role::Persist] {
            assert!((7..60).contains(&length(role)), "{role:?}: {}", length(role));
        }
    }
}
