//! What is said to a shell: lines that it reads as commands.
//!
//! Code arrives as the value of a variable, quoted, and is then evaluated. It could not be read with `read`: an interactive
//! shell reads ahead. After an interrupt the shell continues with its next line, which is the one that says `done`.

use std::collections::BTreeMap;
use std::fmt::Write;

/// The first lines.
pub const PRELUDE: &str = include_str!("drivers/bash.sh");

/// What code names its shell's state by must not collide with the user's.
const PREFIX: &str = "__forkd";

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BashError {
    #[error("bash cannot take a NUL character")]
    Nul,
    #[error("'{0}' cannot be the name of a variable in bash")]
    Name(String),
}

/// The lines that run code with variables which are there for its time only, and then say `done ID STATUS`.
pub fn run(id: u64, code: &str, environment: &BTreeMap<String, String>) -> Result<String, BashError> {
    let mut lines = format!("{PREFIX}_code={}\n", quote(code)?);
    for (name, value) in environment {
        let name = checked(name)?;
        let _ = writeln!(
            lines,
            "[[ -v {name} ]] && {PREFIX}_old_{name}=${name} || unset {PREFIX}_old_{name}; export {name}={}",
            quote(value)?
        );
    }
    // Closing nothing and opening /dev/null: the shell keeps its own input at a descriptor that commands do not inherit.
    let _ = writeln!(lines, "eval \"${PREFIX}_code\" </dev/null");
    let _ = writeln!(lines, "{PREFIX}_status=$?");
    for name in environment.keys() {
        let _ = writeln!(
            lines,
            "if [[ -v {PREFIX}_old_{name} ]]; then export {name}=${PREFIX}_old_{name}; unset {PREFIX}_old_{name}; else unset {name}; fi"
        );
    }
    let _ = writeln!(lines, "printf 'done %d %d\\n' {id} \"${PREFIX}_status\" >&0");
    Ok(lines)
}

/// The lines that give a shell the environment of a fork, and `$RANDOM` a seed: it is in the shell's memory, the same in every
/// fork.
///
/// Variables that a shell cannot have are left out; the processes that it starts would not get them from it anyway.
pub fn fork(id: u64, seed: u32, environment: &BTreeMap<String, String>) -> String {
    let mut lines = String::new();
    for (name, value) in environment {
        if let (Ok(name), Ok(value)) = (checked(name), quote(value)) {
            let _ = writeln!(lines, "export {name}={value}");
        }
    }
    let _ = writeln!(lines, "RANDOM={seed}");
    let _ = writeln!(lines, "printf 'done %d 0\\n' {id} >&0");
    lines
}

fn quote(text: &str) -> Result<String, BashError> {
    if text.contains('\0') {
        return Err(BashError::Nul);
    }
    Ok(format!("'{}'", text.replace('\'', r"'\''")))
}

fn checked(name: &str) -> Result<&str, BashError> {
    let first = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    let rest = name.chars().all(|character| character.is_ascii_alphanumeric() || character == '_');
    if first && rest && !name.starts_with(PREFIX) {
        Ok(name)
    } else {
        Err(BashError::Name(name.chars().take(50).collect()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bash(script: &str) -> String {
        crate::testing::run("bash", &["-c", script]).1
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn whatever_is_quoted_is_one_word_with_the_same_bytes(text in "[^\0]{0,40}") {
            let script = format!("printf %s {}", quote(&text).unwrap());
            prop_assert_eq!(bash(&script), text);
        }
    }

    #[test]
    fn names_and_codes_that_are_not_bash_are_refused() {
        let name = |name: &str| BTreeMap::from([(name.to_owned(), String::new())]);
        assert_eq!(run(1, "a\0b", &BTreeMap::new()), Err(BashError::Nul));
        for wrong in ["", "1a", "a b", "a;reboot", "__forkd_code", "ä"] {
            assert_eq!(run(1, "", &name(wrong)), Err(BashError::Name(wrong.into())));
        }
        assert!(run(1, "", &name("_OK1")).is_ok());
    }

    #[test]
    fn a_fork_takes_the_variables_that_a_shell_can_have() {
        let environment =
            BTreeMap::from([("A".to_owned(), "it's".to_owned()), ("b-c".to_owned(), "x".to_owned())]);
        let lines = fork(3, 7, &environment).replace(">&0", "");
        assert_eq!(bash(&format!("{lines}echo $A")), "done 3 0\nit's\n");
    }

    #[test]
    fn variables_of_a_call_are_gone_after_it() {
        let environment =
            BTreeMap::from([("A".to_owned(), "new".to_owned()), ("B".to_owned(), "b".to_owned())]);
        let lines = run(7, "echo $A $B; false", &environment).unwrap();
        let script = format!("A=old\n{}echo $A ${{B-gone}}", lines.replace(">&0", ""));
        assert_eq!(bash(&script), "new b\ndone 7 1\nold gone\n");
    }
}
