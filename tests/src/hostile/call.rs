//! System calls as an attacker makes them: without anything in between.

#![expect(unsafe_code, reason = "it is what an attacker does")]

use std::ffi::CStr;

/// Makes a call; an error is a negative number.
pub fn call<const N: usize>(number: i64, arguments: [Word; N]) -> i64 {
    let mut words = [0; 6];
    for (word, argument) in words.iter_mut().zip(arguments) {
        *word = argument.0;
    }
    let [a, b, c, d, e, f] = words;
    // SAFETY: none of the attempts has the kernel write to memory of this process but to a buffer that is given with its length.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    match result {
        -1 => -i64::from(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)),
        result => result,
    }
}

/// Forks and ends the child.
pub fn fork<const N: usize>(number: i64, arguments: [Word; N]) -> i64 {
    match call(number, arguments) {
        // SAFETY: the child of a fork, which ends without running anything else.
        0 => unsafe { libc::_exit(0) },
        pid => pid,
    }
}

/// Forks a child that does nothing until it is killed.
pub fn fork_to_stay() -> i64 {
    match call(libc::SYS_fork, []) {
        0 => loop {
            call(libc::SYS_pause, []);
        },
        pid => pid,
    }
}

/// An argument.
#[derive(Debug, Clone, Copy)]
pub struct Word(i64);

impl Word {
    pub const fn new(number: i64) -> Word {
        Word(number)
    }

    pub const fn bits(self) -> u64 {
        self.0.cast_unsigned()
    }
}

impl From<i32> for Word {
    fn from(number: i32) -> Word {
        Word(number.into())
    }
}

impl From<i64> for Word {
    fn from(number: i64) -> Word {
        Word(number)
    }
}

impl From<&CStr> for Word {
    fn from(text: &CStr) -> Word {
        Word(text.as_ptr().addr().cast_signed() as i64)
    }
}

impl From<&[u8]> for Word {
    fn from(bytes: &[u8]) -> Word {
        Word(bytes.as_ptr().addr().cast_signed() as i64)
    }
}

impl From<&mut [u64]> for Word {
    fn from(words: &mut [u64]) -> Word {
        Word(words.as_mut_ptr().addr().cast_signed() as i64)
    }
}
