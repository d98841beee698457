//! How a registry says where its tokens are issued, and what such a service answers.

use http_auth::parser::ChallengeParser;
use reqwest::Url;
use reqwest::header::{HeaderMap, WWW_AUTHENTICATE};
use serde::Deserialize;

/// A challenge to get a token.
#[derive(Debug, PartialEq, Eq)]
pub struct Challenge {
    realm: String,
    service: Option<String>,
}

impl Challenge {
    /// The challenge of a refused request, if it is one for a token.
    pub fn find(headers: &HeaderMap) -> Option<Challenge> {
        headers.get_all(WWW_AUTHENTICATE).iter().find_map(|value| Challenge::parse(value.to_str().ok()?))
    }

    /// The first challenge for a token in one header.
    pub fn parse(text: &str) -> Option<Challenge> {
        let mut challenges = ChallengeParser::new(text).filter_map(Result::ok);
        let bearer = challenges.find(|challenge| challenge.scheme.eq_ignore_ascii_case("bearer"))?;
        let parameter = |name: &str| {
            let found = bearer.params.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.to_unescaped())
        };
        Some(Challenge { realm: parameter("realm")?, service: parameter("service") })
    }

    /// Where to get a token for a repository that may also read another one, from which a blob is mounted.
    pub fn address(&self, repository: &str, is_push: bool, mounts: Option<&str>) -> Option<Url> {
        let mut url: Url = self.realm.parse().ok()?;
        let mut query = url.query_pairs_mut();
        if let Some(service) = &self.service {
            query.append_pair("service", service);
        }
        let actions = if is_push { "pull,push" } else { "pull" };
        query.append_pair("scope", &format!("repository:{repository}:{actions}"));
        if let Some(source) = mounts {
            query.append_pair("scope", &format!("repository:{source}:pull"));
        }
        drop(query);
        Some(url)
    }
}

/// The token of a token service's answer.
pub fn token(answer: &[u8]) -> Option<String> {
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
    use proptest::prelude::*;

    #[test]
    fn tokens_are_for_what_the_request_needs() {
        let text =
            r#"Basic realm="x", Bearer realm="https://auth.example/token?a=b",service="registry.example""#;
        let challenge = Challenge::parse(text).unwrap();
        let pull =
            "https://auth.example/token?a=b&service=registry.example&scope=repository%3Ateam%2Fchild%3Apull";
        let mount = format!("{pull}%2Cpush&scope=repository%3Abase%3Apull");
        let address = |is_push, mounts| challenge.address("team/child", is_push, mounts).unwrap();
        assert_eq!(address(false, None).as_str(), pull);
        assert_eq!(address(true, None).as_str(), format!("{pull}%2Cpush"));
        assert_eq!(address(true, Some("base")).as_str(), mount);
    }

    #[test]
    fn other_challenges_are_none() {
        for text in ["", "Basic realm=\"x\"", "Bearer", "Bearer service=\"x\"", "Bearer realm=\"x", "\u{7f}"]
        {
            assert_eq!(Challenge::parse(text), None, "{text}");
        }
        let nowhere = Challenge { realm: "/token".into(), service: None };
        assert_eq!(nowhere.address("a", false, None), None);
    }

    #[test]
    fn both_names_of_a_token_are_read() {
        assert_eq!(token(br#"{"token":"a","access_token":"b"}"#).as_deref(), Some("a"));
        assert_eq!(token(br#"{"access_token":"b","expires_in":60}"#).as_deref(), Some("b"));
        for answer in [&b"{}"[..], b"[]", b"", b"{\"token\":1}"] {
            assert_eq!(token(answer), None);
        }
    }

    proptest! {
        #[test]
        fn any_challenge_is_one_for_a_token_or_none(
            text in ".{0,60}",
            realm in r"(https://r\.example/)?[ -~]{0,30}",
            service in "[ -~]{0,20}",
            at in any::<prop::sample::Index>(),
            letter in any::<char>(),
        ) {
            Challenge::parse(&text);
            let quoted = |text: &str| text.replace('\\', r"\\").replace('"', "\\\"");
            let mut header = format!("Bearer realm=\"{}\",service=\"{}\"", quoted(&realm), quoted(&service));
            let expected = Challenge { realm, service: Some(service) };
            prop_assert_eq!(Challenge::parse(&header), Some(expected));
            // Whatever the challenge contains, the token is for these two repositories.
            header.insert(at.index(header.len()), letter);
            if let Some(url) = Challenge::parse(&header).and_then(|challenge| challenge.address("a/b", true, Some("c"))) {
                let scopes = "scope=repository%3Aa%2Fb%3Apull%2Cpush&scope=repository%3Ac%3Apull";
                prop_assert!(url.query().is_some_and(|query| query.ends_with(scopes)), "{}", url);
            }
        }

        #[test]
        fn any_answer_has_a_token_or_none(answer in any::<Vec<u8>>(), text in ".{0,40}", is_old in any::<bool>()) {
            token(&answer);
            let name = if is_old { "access_token" } else { "token" };
            let answer = serde_json::json!({ name: text.as_str(), "expires_in": 60 }).to_string();
            prop_assert_eq!(token(answer.as_bytes()), Some(text));
        }
    }
}
