//! Signed links to files: what stands for a token in an address.
//!
//! ```text
//!  v1_ + base64 without padding of SHA-256 of   path ":" read|write ":" user ":" token [":" expiration]
//! ```

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// What the query of a link to a file says.
#[derive(Debug, Default, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Signed {
    #[serde(default)]
    pub path: String,
    #[serde(default)]
    pub username: String,
    #[serde(default)]
    pub signature: Option<String>,
    #[serde(default)]
    pub signature_expiration: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Read,
    Write,
}

/// Why a signature does not help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SignatureError {
    #[error("there is neither an access token nor a signature")]
    Missing,
    #[error("the signature is wrong")]
    Wrong,
    #[error("the signature has expired")]
    Expired,
}

impl Signed {
    /// What a query says; nothing if it is none.
    pub fn of(query: Option<&str>) -> Signed {
        let uri =
            axum::http::Uri::builder().path_and_query(format!("/?{}", query.unwrap_or_default())).build();
        let parsed = uri.ok().and_then(|uri| axum::extract::Query::try_from_uri(&uri).ok());
        parsed.map(|axum::extract::Query(signed)| signed).unwrap_or_default()
    }

    /// Whether it was signed with this token.
    pub fn is_by(&self, token: &str, operation: Operation) -> bool {
        let expected = signature(&self.path, operation, &self.username, token, self.signature_expiration);
        self.signature.as_ref().is_some_and(|shown| expected.as_bytes().ct_eq(shown.as_bytes()).into())
    }

    /// Whether it was signed with this token, for now.
    pub fn check(&self, token: &str, operation: Operation, now: u64) -> Result<(), SignatureError> {
        if self.signature.is_none() {
            return Err(SignatureError::Missing);
        }
        if !self.is_by(token, operation) {
            return Err(SignatureError::Wrong);
        }
        match self.signature_expiration {
            Some(expiration) if expiration < now => Err(SignatureError::Expired),
            _ => Ok(()),
        }
    }
}

fn signature(path: &str, operation: Operation, user: &str, token: &str, expiration: Option<u64>) -> String {
    let operation = match operation {
        Operation::Read => "read",
        Operation::Write => "write",
    };
    let mut text = format!("{path}:{operation}:{user}:{token}");
    if let Some(expiration) = expiration {
        text.push_str(&format!(":{expiration}"));
    }
    format!("v1_{}", STANDARD_NO_PAD.encode(Sha256::digest(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_for_one_path_one_user_one_operation_and_a_time() {
        // Made with coreutils: printf '/a:read:user:secret:100' | sha256sum | xxd -r -p | base64
        let query = "path=%2Fa&username=user&signature=v1_b%2FCTCIP7L66xz0TGUikmdJS4J4CAvso9qxLZETN%2FKwY&signature_expiration=100";
        let signed = Signed::of(Some(query));
        let check = |signed: &Signed, operation, now| signed.check("secret", operation, now);
        assert_eq!(check(&signed, Operation::Read, 100), Ok(()));
        assert_eq!(check(&signed, Operation::Read, 101), Err(SignatureError::Expired));
        assert_eq!(check(&signed, Operation::Write, 100), Err(SignatureError::Wrong));
        assert_eq!(signed.check("other", Operation::Read, 100), Err(SignatureError::Wrong));
        let other = Signed { path: "/b".into(), ..signed.clone() };
        assert_eq!(check(&other, Operation::Read, 1), Err(SignatureError::Wrong));
        let longer = Signed { signature_expiration: Some(999), ..signed.clone() };
        assert_eq!(check(&longer, Operation::Read, 1), Err(SignatureError::Wrong));
        let none = Signed { signature: None, ..signed };
        assert_eq!(check(&none, Operation::Read, 1), Err(SignatureError::Missing));
    }

    proptest::proptest! {
        #[test]
        fn any_query_is_read_or_nothing(query in "\\PC{0,80}") {
            let signed = Signed::of(Some(&query));
            proptest::prop_assert!(signed.check("secret", Operation::Read, 0).is_err());
        }
    }
}
