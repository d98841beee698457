//! Who calls: the access token, and the user that a call is for.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use subtle::ConstantTimeEq;

/// The header with the sandbox's access token.
pub const ACCESS_TOKEN: &str = "x-access-token";

/// The value of `Authorization` that makes a call for a user.
pub fn authorization(user: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{user}:")))
}

/// The user in a value of `Authorization`: `Basic` and base64 of `name:`.
pub fn user_in(authorization: &str) -> Option<String> {
    let (scheme, credentials) = authorization.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let text = String::from_utf8(STANDARD.decode(credentials.trim()).ok()?).ok()?;
    Some(text.split_once(':').map_or(text.clone(), |(name, _)| name.to_owned()))
}

/// Compares two secrets. The time it takes does not depend on where they differ.
pub fn same_secret(one: &[u8], other: &[u8]) -> bool {
    one.ct_eq(other).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_is_in_basic_authorization() {
        assert_eq!(user_in("Basic dXNlcjo=").as_deref(), Some("user"));
        assert_eq!(user_in("basic cm9vdDpzZWNyZXQ=").as_deref(), Some("root"));
        for wrong in ["", "Bearer dXNlcjo=", "Basic", "Basic !!!", "Basic /w=="] {
            assert_eq!(user_in(wrong), None, "{wrong}");
        }
        assert_eq!(authorization("me"), "Basic bWU6");
        assert_eq!(user_in(&authorization("me")).as_deref(), Some("me"));
    }

    #[test]
    fn secrets_are_compared_whole() {
        assert!(same_secret(b"abc", b"abc"));
        assert!(!same_secret(b"abc", b"abcd"));
        assert!(!same_secret(b"abc", b""));
    }
}
