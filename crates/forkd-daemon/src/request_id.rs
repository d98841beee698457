//! The name of a request, by which its answer, its line of the audit log and its lines of the log are found.

use std::sync::Arc;

use axum::http::{HeaderMap, HeaderName, HeaderValue};

use crate::auth::{random, redact};

/// The header that has it, in requests and in answers.
pub const HEADER: HeaderName = HeaderName::from_static("x-request-id");

const MAX_LENGTH: usize = 64;

/// The id of a request. Handlers get it as an extension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestId(Arc<str>);

impl RequestId {
    /// The caller's own, if it is one: 1 to 64 letters, digits, dots, dashes and underscores. Otherwise a new one, so that
    /// callers cannot write other text into the logs, least of all a token.
    pub fn of(headers: &HeaderMap) -> RequestId {
        let given = headers.get(HEADER).and_then(|value| value.to_str().ok()).filter(|text| is_id(text));
        given.map_or_else(RequestId::new, |text| RequestId(text.into()))
    }

    fn new() -> RequestId {
        // Names, not secrets: without random bytes they are still good enough to be told apart by their time.
        let bytes = random::<16>().unwrap_or_else(|_| {
            let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            since.map_or(0, |elapsed| elapsed.as_nanos()).to_be_bytes()
        });
        RequestId(hex::encode(bytes).into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// For the answer.
    pub fn header(&self) -> HeaderValue {
        HeaderValue::from_str(&self.0).unwrap_or_else(|_| HeaderValue::from_static("-"))
    }
}

fn is_id(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=MAX_LENGTH).contains(&text.len()) && text.bytes().all(plain) && redact(text) == text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn given(bytes: &[u8]) -> Option<RequestId> {
        let mut headers = HeaderMap::new();
        headers.insert(HEADER, HeaderValue::from_bytes(bytes).ok()?);
        Some(RequestId::of(&headers))
    }

    #[test]
    fn a_good_id_is_kept_and_others_are_replaced() {
        assert_eq!(given(b"Build-7.2_x").unwrap().as_str(), "Build-7.2_x");
        for bad in [&b""[..], b"a b", b"\"quoted\"", "ü".as_bytes(), &[b'x'; 65]] {
            assert_eq!(given(bad).unwrap().as_str().len(), 32);
        }
        assert_ne!(RequestId::of(&HeaderMap::new()), RequestId::of(&HeaderMap::new()));
    }

    proptest! {
        #[test]
        fn every_id_can_be_a_header_and_a_word_of_a_log(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Some(id) = given(&bytes) {
                prop_assert!(is_id(id.as_str()));
                let header = id.header();
                prop_assert_eq!(header.to_str().unwrap(), id.as_str());
            }
        }
    }
}
