//! Requests to drivers that cannot read JSON: a line of words, in which each text is an `x` and the hexadecimal digits of its bytes.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::message::ForkIdentity;

/// `run ID CODE [NAME VALUE]...`
pub fn run(id: u64, code: &str, environment: &BTreeMap<String, String>) -> String {
    let mut line = format!("run {id}");
    push(&mut line, code);
    finish(line, environment)
}

/// `fork ID IDENTITY INDEX GENERATION [NAME VALUE]...`
pub fn fork(id: u64, identity: &ForkIdentity, environment: &BTreeMap<String, String>) -> String {
    let ForkIdentity { id: name, index, generation } = identity;
    let mut line = format!("fork {id}");
    push(&mut line, name);
    let _ = write!(line, " {index} {generation}");
    finish(line, environment)
}

/// The digits alone.
pub fn hex(text: &str) -> String {
    let mut digits = String::with_capacity(2 * text.len());
    for byte in text.bytes() {
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}

fn push(line: &mut String, text: &str) {
    line.push_str(" x");
    line.push_str(&hex(text));
}

fn finish(mut line: String, environment: &BTreeMap<String, String>) -> String {
    for text in environment.iter().flat_map(|(name, value)| [name, value]) {
        push(&mut line, text);
    }
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_said_is_one_line_of_words() {
        let environment = BTreeMap::from([("A B".to_owned(), String::new())]);
        assert_eq!(run(7, "a\nü ", &environment), "run 7 x610ac3bc20 x412042 x\n");
        let identity = ForkIdentity { id: "i1".into(), index: 4, generation: 2 };
        assert_eq!(fork(8, &identity, &BTreeMap::new()), "fork 8 x6931 4 2\n");
    }
}
