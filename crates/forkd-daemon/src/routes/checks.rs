//! What a request's fields may be, beyond their types.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;

use forkd_api::error::ErrorCode;

use crate::error::{Answer, ApiError};

const MAX_METADATA: usize = 64;
const MAX_METADATA_KEY: usize = 128;
const MAX_METADATA_VALUE: usize = 1024;
/// All names and values together. Each guest gets them in one message.
const MAX_ENV: usize = 64 << 10;

pub fn malformed(text: impl Into<String>) -> ApiError {
    ApiError::new(ErrorCode::Malformed, text)
}

/// Refuses a number that is out of its range.
pub fn within<T: PartialOrd + Display>(name: &str, value: T, range: RangeInclusive<T>) -> Answer<T> {
    match range.contains(&value) {
        true => Ok(value),
        false => Err(malformed(format!("{name} is {value}, expected {} to {}", range.start(), range.end()))),
    }
}

pub fn metadata(metadata: &BTreeMap<String, String>) -> Answer<()> {
    let fits = metadata.len() <= MAX_METADATA
        && metadata.iter().all(|(key, value)| {
            (1..=MAX_METADATA_KEY).contains(&key.len())
                && !key.contains('=')
                && value.len() <= MAX_METADATA_VALUE
        });
    if fits {
        return Ok(());
    }
    Err(malformed(format!(
        "metadata has at most {MAX_METADATA} entries, with keys of 1 to {MAX_METADATA_KEY} bytes without `=` and values \
         of at most {MAX_METADATA_VALUE} bytes"
    )))
}

pub fn env(env: &BTreeMap<String, String>) -> Answer<()> {
    let size: usize = env.iter().map(|(name, value)| name.len() + value.len()).sum();
    let names = env.keys().all(|name| !name.is_empty() && !name.contains(['=', '\0']));
    if size <= MAX_ENV && names && !env.values().any(|value| value.contains('\0')) {
        return Ok(());
    }
    Err(malformed(format!(
        "env has an invalid entry: expected names without `=`, no NUL bytes, and at most {MAX_ENV} bytes of names and values together"
    )))
}

/// A program and its arguments.
pub fn command(name: &str, command: &[String]) -> Answer<()> {
    let program = command.first().is_some_and(|program| !program.is_empty());
    match program && !command.iter().any(|word| word.contains('\0')) {
        true => Ok(()),
        false => Err(malformed(format!("{name} must begin with a program and contain no NUL bytes"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(key: &str, value: &str) -> BTreeMap<String, String> {
        BTreeMap::from([(key.to_owned(), value.to_owned())])
    }

    #[test]
    fn numbers_have_ranges() {
        assert_eq!(within("n", 1, 1..=1000).unwrap(), 1);
        assert_eq!(within("n", 1000, 1..=1000).unwrap(), 1000);
        for wrong in [0, 1001] {
            let error = within("n", wrong, 1..=1000).unwrap_err();
            assert_eq!(error.to_string(), format!("n is {wrong}, expected 1 to 1000"));
        }
    }

    #[test]
    fn maps_are_bounded() {
        assert!(metadata(&one("key", "")).is_ok());
        for (key, value) in [("", "x"), ("a=b", "x"), (&"k".repeat(129), "x"), ("k", &"v".repeat(1025))] {
            assert!(metadata(&one(key, value)).is_err(), "{key} {value}");
        }
        let many = (0..65).map(|number| (number.to_string(), String::new())).collect();
        assert!(metadata(&many).is_err());
        assert!(env(&one("A", "")).is_ok());
        for (name, value) in
            [("", "x"), ("A=B", "x"), ("A\0", "x"), ("A", "\0"), ("A", &"v".repeat(64 << 10))]
        {
            assert!(env(&one(name, value)).is_err(), "{name}");
        }
        assert!(command("start", &["sh".into(), String::new()]).is_ok());
        for wrong in [&[][..], &[String::new()], &["a".into(), "b\0".into()]] {
            assert!(command("start", wrong).is_err(), "{wrong:?}");
        }
    }
}
