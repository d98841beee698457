//! Extended headers of pax archives: `LENGTH KEY=VALUE\n`, again and again.
//!
//! The length counts the whole record, its own digits too. Values are bytes and may hold newlines: capabilities do.

/// The records of an extended header, or `None` if it is malformed.
pub(super) fn records(mut bytes: &[u8]) -> Option<Vec<(&[u8], &[u8])>> {
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let space = bytes.iter().take(20).position(|byte| *byte == b' ')?;
        let length: usize = std::str::from_utf8(&bytes[..space]).ok()?.parse().ok()?;
        let record = bytes.get(space + 1..length)?;
        let (b'\n', record) = record.split_last()? else { return None };
        let equals = record.iter().position(|byte| *byte == b'=')?;
        records.push((&record[..equals], &record[equals + 1..]));
        bytes = &bytes[length..];
    }
    Some(records)
}

/// A decimal number of seconds with an optional fraction.
pub(super) fn time(value: &[u8]) -> Option<(i64, u32)> {
    let text = std::str::from_utf8(value).ok()?;
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = seconds.parse().ok()?;
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let nanoseconds: u32 = format!("{:0<9.9}", fraction).parse().ok()?;
    // A negative time with a fraction lies before the second that is written.
    if nanoseconds > 0 && text.starts_with('-') {
        return Some((seconds.checked_sub(1)?, 1_000_000_000 - nanoseconds));
    }
    Some((seconds, nanoseconds))
}

/// A whole number.
pub(super) fn number(value: &[u8]) -> Option<u64> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::testing::pax_record as record;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn malformed_records_are_refused() {
        assert_eq!(records(b"").unwrap(), []);
        assert_eq!(records(b"6 a=b\n").unwrap(), [(&b"a"[..], &b"b"[..])]);
        for bad in [
            "6 a=b",
            "7 a=b\n",
            "0 a=b\n",
            "2 a=b\n",
            "6 a-b\n",
            "x a=b\n",
            "4 ab\n",
            "-6 a=b\n",
            "99999999999999999999 a=b\n",
        ] {
            assert!(records(bad.as_bytes()).is_none(), "{bad}");
        }
    }

    #[test]
    fn times() {
        assert_eq!(time(b"12"), Some((12, 0)));
        assert_eq!(time(b"12.5"), Some((12, 500_000_000)));
        assert_eq!(time(b"12.0000000019"), Some((12, 1)));
        assert_eq!(time(b"-1.25"), Some((-2, 750_000_000)));
        for bad in ["", "x", "1.x", "1e3", "1.-5"] {
            assert_eq!(time(bad.as_bytes()), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(pairs in proptest::collection::vec(("[a-zA-Z.]{1,12}", proptest::collection::vec(any::<u8>(), 0..120)), 0..5)) {
            let bytes: Vec<u8> = pairs.iter().flat_map(|(key, value)| record(key.as_bytes(), value)).collect();
            let expected: Vec<(&[u8], &[u8])> = pairs.iter().map(|(key, value)| (key.as_bytes(), &value[..])).collect();
            prop_assert_eq!(records(&bytes).unwrap(), expected);
        }

        #[test]
        fn nothing_panics(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = (records(&bytes), time(&bytes), number(&bytes));
        }
    }
}
