//! What E2B's clients write into queries in ways of their own.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use percent_encoding::percent_decode_str;

/// Metadata that is searched for: `key=value&key2=value2`, each part encoded, and the whole encoded again.
pub(crate) fn metadata(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    let twice = |text: &str| decode(&decode(text));
    pairs
        .map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (twice(key), twice(value))
        })
        .collect()
}

/// Without `%XX` and with spaces for `+`. What is not encoded rightly stays as it is.
fn decode(text: &str) -> String {
    percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned()
}

/// A time as clients write it: RFC 3339, in UTC or with an offset.
pub(crate) fn time(text: &str) -> Option<SystemTime> {
    if !text.is_ascii() {
        return None;
    }
    let (base, offset) = match text.len().checked_sub(6).map(|at| text.split_at(at)) {
        Some((base, offset)) if offset.starts_with(['+', '-', ' ']) && base.contains('T') => {
            (base, Some(offset))
        }
        _ => (text, None),
    };
    let time = humantime::parse_rfc3339_weak(base).ok()?;
    let Some(offset) = offset else { return Some(time) };
    let (hours, minutes) = offset.get(1..)?.split_once(':')?;
    let minutes = hours.parse::<u64>().ok()?.checked_mul(60)?.checked_add(minutes.parse().ok()?)?;
    let shift = Duration::from_secs(minutes.checked_mul(60)?);
    // A plus that nobody has encoded has become a space.
    if offset.starts_with('-') { time.checked_add(shift) } else { time.checked_sub(shift) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encode(text: &str) -> String {
        text.bytes().map(|byte| format!("%{byte:02X}")).collect()
    }

    #[test]
    fn metadata_is_encoded_twice() {
        let found = metadata("a=b&user%2520name=x%2526y%253D%252B&empty=&lone");
        let expected = [("a", "b"), ("user name", "x&y=+"), ("empty", ""), ("lone", "")];
        assert_eq!(found, expected.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
        assert_eq!(metadata(""), BTreeMap::new());
    }

    #[test]
    fn times_have_offsets() {
        let utc = time("2026-01-02T03:04:05Z").unwrap();
        for same in [
            "2026-01-02T03:04:05+00:00",
            "2026-01-02T03:04:05 00:00",
            "2026-01-02T05:04:05+02:00",
            "2026-01-02T02:34:05-00:30",
            "2026-01-02T03:04:05.000Z",
            "2026-01-02T03:04:05",
        ] {
            assert_eq!(time(same), Some(utc), "{same}");
        }
        for wrong in ["", "yesterday", "2026-01-02T03:04:05+xx:00", "2026-13-02T03:04:05Z", "ü"] {
            assert_eq!(time(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_metadata_comes_back(wanted in proptest::collection::btree_map("\\PC{1,8}", "\\PC{0,8}", 0..4)) {
            let pairs: Vec<String> =
                wanted.iter().map(|(key, value)| format!("{}={}", encode(&encode(key)), encode(&encode(value)))).collect();
            prop_assert_eq!(metadata(&pairs.join("&")), wanted);
        }

        #[test]
        fn any_text_may_come(text in "\\PC{0,64}") {
            let _ = (metadata(&text), time(&text));
        }
    }
}
