//! How often and how long something is tried. Pure, so that it can be tested without waiting.

use std::time::{Duration, SystemTime};

use super::error::RegistryError;

/// Limits on retries. A try that moved something forward starts the count anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RetryPolicy {
    /// Failures in a row before giving up.
    pub attempts: u32,
    /// The first wait; each next one is twice as long.
    pub first: Duration,
    /// The longest wait.
    pub longest: Duration,
    /// The longest wait that a registry may ask for.
    pub obeyed: Duration,
}

impl Default for RetryPolicy {
    /// About a minute in all, unless the registry asks for more.
    fn default() -> RetryPolicy {
        RetryPolicy {
            attempts: 8,
            first: Duration::from_millis(250),
            longest: Duration::from_secs(20),
            obeyed: Duration::from_secs(60),
        }
    }
}

impl RetryPolicy {
    /// How long to wait after the `attempts`th failure in a row, or the error if another try is of no use.
    pub fn decide(&self, error: RegistryError, attempts: u32) -> Result<Duration, RegistryError> {
        if !error.is_transient() || attempts >= self.attempts {
            return Err(error);
        }
        let backoff = self.first.saturating_mul(1 << attempts.saturating_sub(1).min(20)).min(self.longest);
        match error.retry_after() {
            None => Ok(backoff),
            Some(wait) if wait <= self.obeyed => Ok(wait.max(backoff)),
            Some(wait) => {
                let RegistryError::Status { request, .. } = error else { return Err(error) };
                Err(RegistryError::Busy { request, wait })
            }
        }
    }
}

/// Reads `Retry-After`: seconds, or a date.
pub fn parse_retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(value).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn status(code: u16, retry_after: Option<u64>) -> RegistryError {
        let retry_after = retry_after.map(Duration::from_secs);
        RegistryError::Status { request: "GET x".into(), code, message: String::new(), retry_after }
    }

    #[test]
    fn waits_grow_and_end() {
        let policy = RetryPolicy::default();
        let wait = |attempts| policy.decide(status(503, None), attempts).map(|wait| wait.as_millis()).ok();
        assert_eq!([1, 2, 3].map(wait), [Some(250), Some(500), Some(1000)]);
        assert_eq!(wait(7), Some(16_000));
        assert_eq!(wait(8), None);
        assert!(policy.decide(status(404, None), 1).is_err());
    }

    #[test]
    fn the_registry_is_obeyed_within_bounds() {
        let policy = RetryPolicy::default();
        assert_eq!(policy.decide(status(429, Some(7)), 1).unwrap().as_secs(), 7);
        let error = policy.decide(status(429, Some(3600)), 1).unwrap_err();
        assert!(error.to_string().contains("asks to wait 3600 s"), "{error}");
    }

    #[test]
    fn both_forms_of_retry_after_are_read() {
        let now = SystemTime::UNIX_EPOCH;
        assert_eq!(parse_retry_after(" 12 ", now), Some(Duration::from_secs(12)));
        let date = "Thu, 01 Jan 1970 00:00:30 GMT";
        assert_eq!(parse_retry_after(date, now), Some(Duration::from_secs(30)));
        assert_eq!(parse_retry_after(date, now + Duration::from_secs(90)), Some(Duration::ZERO));
        assert_eq!(parse_retry_after("soon", now), None);
    }

    proptest! {
        #[test]
        fn any_wait_is_bounded(code in 100_u16..600, asked in prop::option::of(0_u64..100), attempts in 0_u32..12) {
            let policy = RetryPolicy::default();
            match policy.decide(status(code, asked), attempts) {
                Ok(wait) => {
                    prop_assert!(attempts < policy.attempts && wait >= policy.first && wait <= policy.obeyed);
                    prop_assert!(asked.is_none_or(|seconds| wait >= Duration::from_secs(seconds)));
                }
                Err(RegistryError::Busy { wait, .. }) => prop_assert!(wait > policy.obeyed),
                Err(error) => prop_assert!(!error.is_transient() || attempts >= policy.attempts),
            }
        }

        #[test]
        fn any_retry_after_is_a_wait_or_none(
            text in ".{0,40}",
            seconds in any::<u64>(),
            now in 0_u64..250_000_000_000,
            later in 0_u64..3_000_000_000,
            at in any::<prop::sample::Index>(),
            letter in any::<char>(),
        ) {
            let time = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            parse_retry_after(&text, time(now));
            let read = |text: &str, now| parse_retry_after(text, time(now)).map(|wait| wait.as_secs());
            prop_assert_eq!(read(&seconds.to_string(), now), Some(seconds));
            let mut date = httpdate::fmt_http_date(time(now + later));
            prop_assert_eq!(read(&date, now), Some(later));
            prop_assert_eq!(read(&date, now + later + 1), Some(0));
            date.insert(at.index(date.len()), letter);
            parse_retry_after(&date, time(now));
        }
    }
}
