//! How a registry says where its tokens are issued, and what such a service answers.

use http_auth::parser::ChallengeParser;
use reqwest::Url;
use reqwest::header::{HeaderMap, WWW_AUTHENTICATE};
use serde::Deserialize;

/// A challenge to get a token.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Challenge {
    realm: String,
    service: Option<String>,
}

impl Challenge {
    /// The challenge of a refused request, if it is one for a token.
    pub fn find(headers: &HeaderMap) -> Option<Challenge> {
        headers.get_all(WWW_AUTHENTICATE).iter().find_map(|value| Challenge::parse(value.to_str().ok()?))
    }

    fn parse(text: &str) -> Option<Challenge> {
        let mut challenges = ChallengeParser::new(text).filter_map(Result::ok);
        let bearer = challenges.find(|challenge| challenge.scheme.eq_ignore_ascii_case("bearer"))?;
        let parameter = |name: &str| {
            let found = bearer.params.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.to_unescaped())
        };
        Some(Challenge { realm: parameter("realm")?, service: parameter("service") })
    }

    /// Where to get a token that may push to one repository and read another.
    pub fn address(&self, target: &str, source: &str) -> Option<Url> {
        let mut url: Url = self.realm.parse().ok()?;
        let mut query = url.query_pairs_mut();
        if let Some(service) = &self.service {
            query.append_pair("service", service);
        }
        query.append_pair("scope", &format!("repository:{target}:pull,push"));
        query.append_pair("scope", &format!("repository:{source}:pull"));
        drop(query);
        Some(url)
    }
}

/// The token of a token service's answer.
pub(super) fn token(answer: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Answer {
        token: Option<String>,
        access_token: Option<String>,
    }
    let Answer { token, access_token } = serde_json::from_slice(answer).ok()?;
    token.or(access_token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_for_a_mount_have_both_scopes() {
        let text =
            r#"Basic realm="x", Bearer realm="https://auth.example/token?a=b",service="registry.example""#;
        let url = Challenge::parse(text).unwrap().address("team/child", "base").unwrap();
        let expected = "https://auth.example/token?a=b&service=registry.example\
             &scope=repository%3Ateam%2Fchild%3Apull%2Cpush&scope=repository%3Abase%3Apull";
        assert_eq!(url.as_str(), expected);
    }

    #[test]
    fn other_challenges_are_none() {
        for text in ["", "Basic realm=\"x\"", "Bearer", "Bearer service=\"x\"", "Bearer realm=\"x", "\u{7f}"]
        {
            assert_eq!(Challenge::parse(text), None, "{text}");
        }
        let nowhere = Challenge { realm: "/token".into(), service: None };
        assert_eq!(nowhere.address("a", "b"), None);
    }

    #[test]
    fn both_names_of_a_token_are_read() {
        assert_eq!(token(br#"{"token":"a","access_token":"b"}"#).as_deref(), Some("a"));
        assert_eq!(token(br#"{"access_token":"b","expires_in":60}"#).as_deref(), Some("b"));
        for answer in [&b"{}"[..], b"[]", b"", b"{\"token\":1}"] {
            assert_eq!(token(answer), None);
        }
    }
}
