//! A filter as the kernel's program.
//!
//! ```text
//!   another architecture?             ──▶ the process ends
//!   a call that an argument decides?  ──▶ allowed with one of its values, else trapped
//!   one of the calls that are listed? ──▶ allowed or trapped
//!   all others                        ──▶ trapped or allowed
//! ```
//!
//! One instruction for each call and value. The kernel translates the program again for each thread of each child, which waits for
//! it; seccompiler makes five of one.

use std::num::TryFromIntError;

use libc::{SECCOMP_RET_ALLOW, SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_TRAP};
use seccompiler::{BpfProgram, sock_filter};

const X86_64: u32 = 0xc000_003e;
/// BPF_LD, BPF_W, BPF_ABS: loads a word of `struct seccomp_data`.
const LOAD: u16 = 0x20;
/// BPF_JMP, BPF_JEQ, BPF_K: compares it.
const COMPARE: u16 = 0x15;
/// BPF_RET, BPF_K
const RETURN: u16 = 0x06;

/// Words of `struct seccomp_data`. Of an argument it is the lower one, as all that are looked at are 32 bits wide in the kernel.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

/// What becomes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Allow,
    Trap,
}

/// A call that an argument decides: with one of these values it is allowed.
#[derive(Debug)]
pub struct ByArgument {
    pub number: i64,
    pub index: u8,
    pub values: Vec<u64>,
}

/// Of all calls that are neither listed nor decided by an argument, the verdict is `others`; of those that are listed it is the
/// other one. Fails if a number is invalid, or if there are more calls than a jump can leave behind.
pub fn build(
    by_argument: &[ByArgument],
    listed: &[i64],
    others: Verdict,
) -> Result<BpfProgram, TryFromIntError> {
    let mut program =
        vec![load(ARCHITECTURE), compare(X86_64, 1, 0), end(SECCOMP_RET_KILL_PROCESS), load(NUMBER)];
    let decided: usize = by_argument.iter().map(|call| 2 + call.values.len()).sum();
    let last = program.len() + decided + listed.len();
    // The last two: what becomes of all others, and of those that are listed.
    let (allow, trap) = match others {
        Verdict::Allow => (last, last + 1),
        Verdict::Trap => (last + 1, last),
    };
    for ByArgument { number, index, values } in by_argument {
        program.push(compare(u32::try_from(*number)?, 0, u8::try_from(values.len() + 1)?));
        program.push(load(ARGUMENTS + 8 * u32::from(*index)));
        for (left, value) in (0..values.len()).rev().zip(values) {
            let next = program.len() + 1;
            let differs = if left == 0 { u8::try_from(trap - next)? } else { 0 };
            program.push(compare(u32::try_from(*value)?, u8::try_from(allow - next)?, differs));
        }
    }
    for number in listed {
        let next = program.len() + 1;
        program.push(compare(u32::try_from(*number)?, u8::try_from(last + 1 - next)?, 0));
    }
    let (first, second) = match others {
        Verdict::Allow => (SECCOMP_RET_ALLOW, SECCOMP_RET_TRAP),
        Verdict::Trap => (SECCOMP_RET_TRAP, SECCOMP_RET_ALLOW),
    };
    program.extend([end(first), end(second)]);
    Ok(program)
}

fn load(k: u32) -> sock_filter {
    sock_filter { code: LOAD, jt: 0, jf: 0, k }
}

/// Skips so many instructions if the word is equal, or if it is not.
fn compare(k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: COMPARE, jt, jf, k }
}

fn end(k: u32) -> sock_filter {
    sock_filter { code: RETURN, jt: 0, jf: 0, k }
}

/// What the kernel does with a program.
#[cfg(test)]
pub(crate) fn run(program: &[sock_filter], number: u32, architecture: u32, arguments: [u64; 6]) -> u32 {
    let mut data = [number.to_le_bytes(), architecture.to_le_bytes(), [0; 4], [0; 4]].concat();
    data.extend(arguments.iter().flat_map(|argument| argument.to_le_bytes()));
    let (mut at, mut word) = (0, 0);
    loop {
        let sock_filter { code, jt, jf, k } = program[at];
        at += 1;
        match code {
            LOAD => word = u32::from_le_bytes(data[k as usize..][..4].try_into().unwrap()),
            COMPARE => at += usize::from(if word == k { jt } else { jf }),
            RETURN => return k,
            other => panic!("instruction {other:#x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_gets_its_verdict() {
        for (others, of_others, of_listed) in [
            (Verdict::Trap, SECCOMP_RET_TRAP, SECCOMP_RET_ALLOW),
            (Verdict::Allow, SECCOMP_RET_ALLOW, SECCOMP_RET_TRAP),
        ] {
            let decided = [
                ByArgument { number: 16, index: 1, values: vec![0xae80, 5] },
                ByArgument { number: 9, index: 5, values: vec![3] },
            ];
            let program = build(&decided, &[0, 1, 7], others).unwrap();
            let call = |number, arguments| run(&program, number, X86_64, arguments);
            for number in [0, 1, 7] {
                assert_eq!(call(number, [9; 6]), of_listed);
            }
            for number in [2, 8, 17, 1 << 30, u32::MAX] {
                assert_eq!(call(number, [5; 6]), of_others);
            }
            assert_eq!(call(16, [0, 0xae80, 0, 0, 0, 0]), SECCOMP_RET_ALLOW);
            assert_eq!(call(16, [0, 5, 0, 0, 0, 0]), SECCOMP_RET_ALLOW);
            assert_eq!(call(16, [5, 6, 5, 5, 5, 5]), SECCOMP_RET_TRAP);
            assert_eq!(call(9, [0, 0, 0, 0, 0, 3]), SECCOMP_RET_ALLOW);
            assert_eq!(call(9, [3, 3, 3, 3, 3, 0]), SECCOMP_RET_TRAP);
            assert_eq!(run(&program, 0, 0x4000_0003, [0; 6]), SECCOMP_RET_KILL_PROCESS);
        }
    }

    #[test]
    fn a_list_that_is_too_long_is_refused() {
        let listed: Vec<i64> = (0..300).collect();
        assert!(build(&[], &listed[..200], Verdict::Allow).is_ok());
        assert!(build(&[], &listed, Verdict::Allow).is_err());
        assert!(build(&[], &[-1], Verdict::Allow).is_err());
    }
}
