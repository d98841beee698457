//! How a process ended.

use crate::signal::{self, Signal};

const SIGNALED: &str = "signal: ";

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    /// By its number; 0 if the agent's word for it is not known.
    Signal(i32),
}

impl Exit {
    /// As after SIGKILL.
    pub fn killed() -> Exit {
        Exit::Signal(Signal::Kill.number())
    }

    /// As E2B's envd words it: `exit status 3`, `signal: killed`.
    pub fn describe(self) -> String {
        match self {
            Exit::Code(code) => format!("exit status {code}"),
            Exit::Signal(number) => format!("{SIGNALED}{}", signal::describe(number)),
        }
    }

    /// What envd says about an end. A signal is only in its words.
    pub(crate) fn described(code: i32, status: &str) -> Exit {
        match status.strip_prefix(SIGNALED) {
            Some(text) => Exit::Signal(signal::described(text).unwrap_or(0)),
            None => Exit::Code(code),
        }
    }

    /// As shells say it: 128 and the number of the signal that has ended it.
    pub fn code(self) -> i32 {
        match self {
            Exit::Code(code) => code,
            Exit::Signal(number) => 128 + number,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_exit_codes_too() {
        let code = |code, status: &str| Exit::described(code, status).code();
        assert_eq!(code(3, "exit status 3"), 3);
        assert_eq!(code(-1, "signal: killed"), 137);
        assert_eq!(code(-1, "signal: terminated"), 143);
        assert_eq!(code(-1, "signal: 34"), 162);
        for lie in ["signal: 2000000000", "signal: -5", "signal: what"] {
            assert_eq!(code(-1, lie), 128, "{lie}");
        }
        assert_eq!(Exit::killed(), Exit::described(-1, "signal: killed"));
    }
}
