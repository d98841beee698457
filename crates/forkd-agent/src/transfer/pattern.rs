//! Paths with patterns, as `COPY --from` has them: `*`, `?`, `[a-z]` and `\` within one name.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Longer patterns are refused.
const MAX_MATCHES: usize = 100_000;

/// The paths that a pattern means, in order. One without special characters means itself if it is there.
pub fn expand(pattern: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = vec![PathBuf::from("/")];
    for component in pattern.components() {
        let Component::Normal(name) = component else { continue };
        let name = name.as_bytes();
        let mut next = Vec::new();
        for directory in found {
            if !name.iter().any(|byte| b"*?[\\".contains(byte)) {
                let path = directory.join(component);
                if path.symlink_metadata().is_ok() {
                    next.push(path);
                }
                continue;
            }
            // What is no directory has nothing in it.
            let Ok(entries) = fs::read_dir(&directory) else { continue };
            for entry in entries {
                let entry = entry?.file_name();
                if matches(name, entry.as_bytes()) {
                    next.push(directory.join(entry));
                }
                if next.len() > MAX_MATCHES {
                    return Err(io::Error::other("the pattern matches too many files"));
                }
            }
        }
        next.sort();
        found = next;
    }
    Ok(found)
}

/// Whether a name matches. A star is tried again one byte further whenever what follows it fails, so the time is bounded by the
/// product of both lengths.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut byte) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    loop {
        if pattern.get(at) == Some(&b'*') {
            star = Some((at + 1, byte));
            at += 1;
            continue;
        }
        match name.get(byte) {
            None if at == pattern.len() => return true,
            Some(found) if at < pattern.len() => {
                if let Some(length) = one(&pattern[at..], *found) {
                    at += length;
                    byte += 1;
                    continue;
                }
            }
            _ => {}
        }
        match star {
            Some((after, from)) if from < name.len() => {
                star = Some((after, from + 1));
                (at, byte) = (after, from + 1);
            }
            _ => return false,
        }
    }
}

/// Matches one byte, and says how much of the pattern that was.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [b'?', ..] => Some(1),
        [b'\\', escaped, ..] => (*escaped == byte).then_some(2),
        [b'[', rest @ ..] => {
            let end = rest.iter().skip(1).position(|byte| *byte == b']')? + 1;
            let (negated, class) = match &rest[..end] {
                [b'^', class @ ..] => (true, class),
                class => (false, class),
            };
            (in_class(class, byte) != negated).then_some(end + 2)
        }
        [literal, ..] => (*literal == byte).then_some(1),
        [] => None,
    }
}

fn in_class(class: &[u8], byte: u8) -> bool {
    match class {
        [first, b'-', last, rest @ ..] => (*first..=*last).contains(&byte) || in_class(rest, byte),
        [one, rest @ ..] => *one == byte || in_class(rest, byte),
        [] => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn stars_marks_and_classes() {
        for (pattern, name, expected) in [
            ("*", "", true),
            ("*.txt", "a.txt", true),
            ("*.txt", "a.txt.gz", false),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "axxbyy", false),
            ("?", "a", true),
            ("?", "", false),
            ("[a-c]x", "bx", true),
            ("[^a-c]x", "bx", false),
            ("[]x", "]x", false),
            ("\\*", "*", true),
            ("\\*", "a", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn a_pattern_is_expanded_below_every_match() {
        let directory = tempfile::tempdir().unwrap();
        for file in ["a1/x.so", "a2/y.so", "b/z.so", "a1/n"] {
            let path = directory.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let expand = |pattern: &str| expand(&directory.path().join(pattern)).unwrap();
        let paths = |names: &[&str]| names.iter().map(|name| directory.path().join(name)).collect::<Vec<_>>();
        assert_eq!(expand("a?/*.so"), paths(&["a1/x.so", "a2/y.so"]));
        assert_eq!(expand("b/z.so"), paths(&["b/z.so"]));
        assert_eq!(expand("b/none"), paths(&[]));
    }

    /// The obvious one, which takes exponential time.
    fn slow(pattern: &[u8], name: &[u8]) -> bool {
        match (pattern, name) {
            ([], []) => true,
            ([b'*', rest @ ..], _) => (0..=name.len()).any(|skipped| slow(rest, &name[skipped..])),
            ([], _) | (_, []) => false,
            (pattern, [byte, rest @ ..]) => {
                one(pattern, *byte).is_some_and(|length| slow(&pattern[length..], rest))
            }
        }
    }

    proptest! {
        #[test]
        fn as_the_slow_one(pattern in "[ab*?\\[\\]^\\\\-]{0,8}", name in "[ab]{0,8}") {
            prop_assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), slow(pattern.as_bytes(), name.as_bytes()));
        }
    }
}
