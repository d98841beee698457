//! The headers that mean something: types, time limits, keepalives.

use std::time::Duration;

use axum::http::{HeaderMap, header};
use forkd_envd::connect::{Code, ConnectError, KEEPALIVE_HEADER, TIMEOUT_HEADER};

/// Ten digits at most, says the protocol.
const MAX_TIMEOUT_DIGITS: usize = 10;
const DEFAULT_KEEPALIVE: Duration = Duration::from_secs(90);
const LONGEST_KEEPALIVE: u64 = 24 * 60 * 60;

/// How long the call may take: `connect-timeout-ms`. Nothing, or 0, is without a limit.
pub fn timeout(headers: &HeaderMap) -> Result<Option<Duration>, ConnectError> {
    let Some(value) = headers.get(TIMEOUT_HEADER) else { return Ok(None) };
    let wrong = || ConnectError::invalid("connect-timeout-ms is not a number of at most ten digits");
    let text = value.to_str().map_err(|_| wrong())?;
    if text.is_empty() || text.len() > MAX_TIMEOUT_DIGITS || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    let milliseconds: u64 = text.parse().map_err(|_| wrong())?;
    Ok((milliseconds > 0).then(|| Duration::from_millis(milliseconds)))
}

/// How often a silent stream says that it lives: `keepalive-ping-interval`, in seconds. What cannot be read is the default, as
/// nothing depends on it.
pub fn keepalive(headers: &HeaderMap) -> Duration {
    let value = headers.get(KEEPALIVE_HEADER).and_then(|value| value.to_str().ok());
    let seconds = value.and_then(|text| text.parse::<u64>().ok()).filter(|seconds| *seconds > 0);
    seconds.map_or(DEFAULT_KEEPALIVE, |seconds| Duration::from_secs(seconds.min(LONGEST_KEEPALIVE)))
}

/// Refuses what is not JSON of the wanted kind, and compressed bodies.
pub(super) fn check_type(headers: &HeaderMap, wanted: &str) -> Result<(), ConnectError> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = text(header::CONTENT_TYPE.as_str()).split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case(wanted) {
        let message = format!("content-type '{kind}': this method takes {wanted}");
        return Err(ConnectError::new(Code::Unimplemented, message));
    }
    for name in ["content-encoding", "connect-content-encoding"] {
        let encoding = text(name);
        if !encoding.is_empty() && !encoding.eq_ignore_ascii_case("identity") {
            return Err(ConnectError::new(Code::Unimplemented, format!("{name} '{encoding}' is not known")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn with(name: &'static str, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name.parse().unwrap(), HeaderValue::from_str(value).unwrap())])
    }

    #[test]
    fn timeouts() {
        assert_eq!(timeout(&HeaderMap::new()), Ok(None));
        assert_eq!(timeout(&with("connect-timeout-ms", "0")), Ok(None));
        assert_eq!(timeout(&with("connect-timeout-ms", "1500")), Ok(Some(Duration::from_millis(1500))));
        for wrong in ["", "-1", "1.5", "12345678901", "1s"] {
            assert!(timeout(&with("connect-timeout-ms", wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn keepalives_are_never_busy_loops() {
        assert_eq!(keepalive(&with("keepalive-ping-interval", "50")), Duration::from_secs(50));
        for odd in ["0", "-5", "soon"] {
            assert_eq!(keepalive(&with("keepalive-ping-interval", odd)), DEFAULT_KEEPALIVE, "{odd}");
        }
    }

    #[test]
    fn types() {
        let json = "application/json";
        assert!(check_type(&with("content-type", "application/json; charset=utf-8"), json).is_ok());
        assert!(check_type(&with("content-type", "application/proto"), json).is_err());
        let mut compressed = with("content-type", json);
        compressed.insert("content-encoding", HeaderValue::from_static("gzip"));
        assert!(check_type(&compressed, json).is_err());
        compressed.insert("content-encoding", HeaderValue::from_static("identity"));
        assert!(check_type(&compressed, json).is_ok());
    }
}
