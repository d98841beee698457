//! What a step prints: shown line by line as it comes, and the end kept for the error.

use std::collections::VecDeque;

/// Lines that an error shows.
const KEPT: usize = 20;
/// A longer line is cut, wherever that is.
const LONGEST: usize = 2000;

/// Cuts output into lines.
#[derive(Debug, Default)]
pub struct Lines {
    current: Vec<u8>,
    last: VecDeque<String>,
}

impl Lines {
    /// Takes bytes, and hands every line that is whole to `show`.
    pub fn push(&mut self, bytes: &[u8], mut show: impl FnMut(&str)) {
        for byte in bytes {
            if *byte != b'\n' {
                self.current.push(*byte);
            }
            if *byte == b'\n' || self.current.len() >= LONGEST {
                self.line(&mut show);
            }
        }
    }

    /// Hands on what has no end of line, and returns the last lines.
    pub fn finish(mut self, mut show: impl FnMut(&str)) -> String {
        if !self.current.is_empty() {
            self.line(&mut show);
        }
        Vec::from(self.last).join("\n")
    }

    fn line(&mut self, show: &mut impl FnMut(&str)) {
        let text = printable(&String::from_utf8_lossy(&self.current));
        self.current.clear();
        show(&text);
        if self.last.len() == KEPT {
            self.last.pop_front();
        }
        self.last.push_back(text);
    }
}

/// A guest's output must not steer the user's terminal. What a program has overwritten with carriage returns is not shown.
fn printable(line: &str) -> String {
    let line = line.trim_end_matches('\r');
    let line = line.rsplit('\r').next().unwrap_or(line);
    line.chars().filter(|character| *character == '\t' || !character.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_are_shown_once_whole_and_without_control_characters() {
        let mut shown = Vec::new();
        let mut lines = Lines::default();
        for piece in [&b"on"[..], b"e\n10%\r50%\r100%\r\n\x1b[2Jred\n", b"last"] {
            lines.push(piece, |line| shown.push(line.to_owned()));
        }
        let last = lines.finish(|line| shown.push(line.to_owned()));
        assert_eq!(shown, ["one", "100%", "[2Jred", "last"]);
        assert_eq!(last, shown.join("\n"));
    }

    #[test]
    fn the_end_is_bounded() {
        let mut lines = Lines::default();
        for number in 0..10_000 {
            lines.push(format!("{number}\n").as_bytes(), |_| {});
        }
        lines.push(&vec![b'x'; 1 << 20], |_| {});
        let last = lines.finish(|_| {});
        assert!(last.len() <= KEPT * (LONGEST + 1) && last.lines().count() == KEPT);
    }

    proptest! {
        #[test]
        fn nothing_panics_and_nothing_steers(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut lines = Lines::default();
            lines.push(&bytes, |line| assert!(!line.contains('\x1b')));
            lines.finish(|line| assert!(!line.contains('\x1b')));
        }
    }
}
