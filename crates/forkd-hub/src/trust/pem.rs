//! PEM: one block of base64 between two lines.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Bytes of the largest file with a key.
const MAX_PEM: usize = 16 << 10;

pub(super) fn encode(label: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let mut pem = format!("-----BEGIN {label}-----\n");
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(64));
        pem.push_str(line);
        pem.push('\n');
        rest = after;
    }
    pem + &format!("-----END {label}-----\n")
}

/// The label and content of the only block.
pub(super) fn decode(text: &str) -> Option<(&str, Vec<u8>)> {
    if text.len() > MAX_PEM {
        return None;
    }
    let (label, rest) = text.trim().strip_prefix("-----BEGIN ")?.split_once("-----")?;
    let body = rest.strip_suffix("-----")?.strip_suffix(label)?.strip_suffix("-----END ")?;
    let body: String = body.split_whitespace().collect();
    Some((label, STANDARD.decode(body).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn blocks_survive_and_others_are_refused() {
        for length in [0, 1, 47, 48, 49, 500] {
            let der = vec![7; length];
            let text = encode("PUBLIC KEY", &der);
            assert!(text.lines().all(|line| line.len() <= 64));
            assert_eq!(decode(&text).unwrap(), ("PUBLIC KEY", der));
        }
        let good = encode("A", b"x");
        assert!(decode(&good.replace('\n', "\r\n")).is_some());
        for bad in [
            "",
            "x",
            "-----BEGIN A-----",
            "-----BEGIN A-----\neA==\n-----END B-----",
            "-----BEGIN A-----\n?\n-----END A-----",
        ] {
            assert!(decode(bad).is_none(), "{bad}");
        }
        assert!(decode(&(good.clone() + &good)).is_none(), "two blocks");
        assert!(decode(&" ".repeat(MAX_PEM + 1)).is_none());
    }

    proptest! {
        #[test]
        fn any_text_is_a_block_or_is_refused(
            text in "(-----BEGIN )?[A ]{0,4}(-----)?[\\PC\\n]{0,20}(-----END )?[A ]{0,4}(-----)?",
            label in "[A-Z0-9 ]{1,20}",
            der in prop::collection::vec(any::<u8>(), 0..400),
            at in any::<prop::sample::Index>(),
            letter in any::<char>(),
        ) {
            decode(&text);
            let mut text = encode(&label, &der);
            prop_assert_eq!(decode(&text), Some((label.as_str(), der)));
            text.insert(at.index(text.len()), letter);
            decode(&text);
        }
    }
}
