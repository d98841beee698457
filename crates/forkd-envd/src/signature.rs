//! Signed links to files: a signature stands for the access token that it was made with.
//!
//! ```text
//!  v1_ + base64 without padding of SHA-256 of   path ":" read|write ":" user ":" token [":" expiration]
//! ```

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use sha2::{Digest, Sha256};

use crate::caller::same_secret;
use crate::files::FileQuery;

/// What a link is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Read,
    Write,
}

/// Why a signature is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    #[error("there is neither an access token nor a signature")]
    Missing,
    #[error("the signature is wrong")]
    Wrong,
    #[error("the signature has expired")]
    Expired,
}

impl FileQuery {
    /// The signature of this query, made with a token.
    pub fn signature_by(&self, token: &str, operation: Operation) -> String {
        let path = self.path.as_deref().unwrap_or_default();
        let user = self.username.as_deref().unwrap_or_default();
        let operation = match operation {
            Operation::Read => "read",
            Operation::Write => "write",
        };
        let mut text = format!("{path}:{operation}:{user}:{token}");
        if let Some(expiration) = self.signature_expiration {
            text.push_str(&format!(":{expiration}"));
        }
        format!("v1_{}", STANDARD_NO_PAD.encode(Sha256::digest(text)))
    }

    /// Whether it was signed with this token, at whatever time.
    pub fn is_signed_by(&self, token: &str, operation: Operation) -> bool {
        let expected = self.signature_by(token, operation);
        self.signature.as_ref().is_some_and(|shown| same_secret(expected.as_bytes(), shown.as_bytes()))
    }

    /// Whether it was signed with this token and holds at `now`, in seconds since 1970.
    pub fn check_signature(&self, token: &str, operation: Operation, now: u64) -> Result<(), SignatureError> {
        if self.signature.is_none() {
            return Err(SignatureError::Missing);
        }
        if !self.is_signed_by(token, operation) {
            return Err(SignatureError::Wrong);
        }
        match self.signature_expiration {
            Some(expiration) if expiration < now => Err(SignatureError::Expired),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_for_one_path_one_user_one_operation_and_a_time() {
        let query = FileQuery {
            path: Some("/a".into()),
            username: Some("user".into()),
            // Made with coreutils: printf '/a:read:user:secret:100' | sha256sum | xxd -r -p | base64
            signature: Some("v1_b/CTCIP7L66xz0TGUikmdJS4J4CAvso9qxLZETN/KwY".into()),
            signature_expiration: Some(100),
            whole: false,
        };
        let check = |query: &FileQuery, operation, now| query.check_signature("secret", operation, now);
        assert_eq!(check(&query, Operation::Read, 100), Ok(()));
        assert_eq!(check(&query, Operation::Read, 101), Err(SignatureError::Expired));
        assert_eq!(check(&query, Operation::Write, 100), Err(SignatureError::Wrong));
        assert_eq!(query.check_signature("other", Operation::Read, 100), Err(SignatureError::Wrong));
        let other = FileQuery { path: Some("/b".into()), ..query.clone() };
        assert_eq!(check(&other, Operation::Read, 1), Err(SignatureError::Wrong));
        let longer = FileQuery { signature_expiration: Some(999), ..query.clone() };
        assert_eq!(check(&longer, Operation::Read, 1), Err(SignatureError::Wrong));
        let endless = FileQuery { signature_expiration: None, ..query.clone() };
        assert_eq!(check(&endless, Operation::Read, 1), Err(SignatureError::Wrong));
        let none = FileQuery { signature: None, ..query };
        assert_eq!(check(&none, Operation::Read, 1), Err(SignatureError::Missing));
    }
}
