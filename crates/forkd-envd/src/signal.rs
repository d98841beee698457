//! Signals: those that clients may send, and the words for those that end processes.

use serde_json::Value;

/// A signal that clients may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    Hup,
    Int,
    Quit,
    Kill,
    Usr1,
    Usr2,
    Term,
    Cont,
    Stop,
    Tstp,
}

/// What a name in a message begins with.
const PREFIX: &str = "SIGNAL_";

/// The words of strsignal in lower case, which is how E2B's envd describes them, with the numbers of Linux.
const DESCRIPTIONS: [(i32, &str); 18] = [
    (1, "hangup"),
    (2, "interrupt"),
    (3, "quit"),
    (4, "illegal instruction"),
    (5, "trace/breakpoint trap"),
    (6, "aborted"),
    (7, "bus error"),
    (8, "floating point exception"),
    (9, "killed"),
    (10, "user defined signal 1"),
    (11, "segmentation fault"),
    (12, "user defined signal 2"),
    (13, "broken pipe"),
    (14, "alarm clock"),
    (15, "terminated"),
    (24, "CPU time limit exceeded"),
    (25, "file size limit exceeded"),
    (31, "bad system call"),
];
const LAST: i32 = 64;

impl Signal {
    pub const ALL: [Signal; 10] = [
        Signal::Hup,
        Signal::Int,
        Signal::Quit,
        Signal::Kill,
        Signal::Usr1,
        Signal::Usr2,
        Signal::Term,
        Signal::Cont,
        Signal::Stop,
        Signal::Tstp,
    ];

    /// `SIGHUP`.
    pub fn name(self) -> &'static str {
        match self {
            Signal::Hup => "SIGHUP",
            Signal::Int => "SIGINT",
            Signal::Quit => "SIGQUIT",
            Signal::Kill => "SIGKILL",
            Signal::Usr1 => "SIGUSR1",
            Signal::Usr2 => "SIGUSR2",
            Signal::Term => "SIGTERM",
            Signal::Cont => "SIGCONT",
            Signal::Stop => "SIGSTOP",
            Signal::Tstp => "SIGTSTP",
        }
    }

    /// Linux's number, on x86-64 and arm64.
    pub fn number(self) -> i32 {
        match self {
            Signal::Hup => 1,
            Signal::Int => 2,
            Signal::Quit => 3,
            Signal::Kill => 9,
            Signal::Usr1 => 10,
            Signal::Usr2 => 12,
            Signal::Term => 15,
            Signal::Cont => 18,
            Signal::Stop => 19,
            Signal::Tstp => 20,
        }
    }

    /// As a message has it: `SIGNAL_SIGHUP`.
    pub(crate) fn to_json(self) -> Value {
        format!("{PREFIX}{}", self.name()).into()
    }

    /// Protobuf's JSON has enums by name or by number; here the numbers are the system's. E2B's clients know `SIGNAL_SIGKILL` and
    /// `SIGNAL_SIGTERM`; the others are for terminals.
    pub(crate) fn from_json(value: &Value) -> Option<Signal> {
        let name = value.as_str().and_then(|text| text.strip_prefix(PREFIX));
        let is = |signal: &Signal| {
            name == Some(signal.name()) || value.as_i64() == Some(i64::from(signal.number()))
        };
        Signal::ALL.into_iter().find(is)
    }
}

/// What people call a signal: `killed`; its number if it has no name here.
pub fn describe(number: i32) -> String {
    let known = DESCRIPTIONS.iter().find(|(known, _)| *known == number);
    known.map_or_else(|| number.to_string(), |(_, text)| (*text).to_owned())
}

/// The number of a signal that was described.
pub fn described(text: &str) -> Option<i32> {
    let known = DESCRIPTIONS.iter().find(|(_, known)| *known == text).map(|(number, _)| *number);
    known.or_else(|| text.parse().ok().filter(|number| (1..=LAST).contains(number)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn signals_have_names_and_numbers() {
        for (value, is) in [
            (json!("SIGNAL_SIGKILL"), Some(Signal::Kill)),
            (json!(2), Some(Signal::Int)),
            (json!("SIGNAL_SIGINT"), Some(Signal::Int)),
            (json!("SIGNAL_SIGHUP"), Some(Signal::Hup)),
            (json!(1), Some(Signal::Hup)),
            (json!("SIGKILL"), None),
            (json!("SIGNAL_SIGSEGV"), None),
            (json!(0), None),
            (json!(null), None),
            (json!(-9), None),
        ] {
            assert_eq!(Signal::from_json(&value), is, "{value}");
        }
        for signal in Signal::ALL {
            assert_eq!(Signal::from_json(&signal.to_json()), Some(signal));
        }
    }

    #[test]
    fn descriptions_are_understood() {
        assert_eq!((describe(9).as_str(), describe(34).as_str()), ("killed", "34"));
        for number in 1..=LAST {
            assert_eq!(described(&describe(number)), Some(number));
        }
        for lie in ["2000000000", "-5", "0", "65", "what", ""] {
            assert_eq!(described(lie), None, "{lie}");
        }
    }
}
