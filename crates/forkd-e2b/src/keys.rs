//! The tokens of sandboxes: what a client shows to reach one.
//!
//! ```text
//!   ea_<sandbox id>_<40 hex>      for the agent:  X-Access-Token
//!   et_<sandbox id>_<40 hex>      for its ports:  E2b-Traffic-Access-Token
//! ```
//!
//! The digits are made of the id and of a key that only this daemon has, in a file. So nothing has to be kept for a sandbox, a
//! token is the same as long as its sandbox lives, no two are equal, and a token says whose it is.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use forkd_daemon::auth::{NoRandomness, random};
use forkd_daemon::operations::whole_file;

const FILE: &str = "e2b-key";
const LENGTH: usize = 32;
/// Bytes of a block of SHA-256.
const BLOCK: usize = 64;
/// Hexadecimal digits of a token.
const DIGITS: usize = 40;

/// What a token is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Access,
    Traffic,
    /// For the files of a template's build, by their hash instead of an id.
    Upload,
}

/// The daemon's key. It is not printed.
pub(crate) struct Keys([u8; LENGTH]);

impl std::fmt::Debug for Keys {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Keys(…)")
    }
}

/// The key can neither be read nor made.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("cannot use the key for sandbox tokens, {}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{} is not a key of {LENGTH} bytes; remove it to create a new one", path.display())]
    Damaged { path: PathBuf },
    #[error(transparent)]
    Random(#[from] NoRandomness),
}

impl Purpose {
    fn prefix(self) -> &'static str {
        match self {
            Purpose::Access => "ea_",
            Purpose::Traffic => "et_",
            Purpose::Upload => "eu_",
        }
    }
}

impl Keys {
    /// The key below forkd's home, which is made the first time.
    pub fn open(home: &Path) -> Result<Keys, KeyError> {
        let path = home.join(FILE);
        let at = |source| KeyError::File { path: path.clone(), source };
        match File::open(&path) {
            Ok(mut file) => {
                let mut key = [0; LENGTH];
                let mut more = [0];
                let whole =
                    file.read_exact(&mut key).is_ok() && file.read(&mut more).is_ok_and(|read| read == 0);
                if whole { Ok(Keys(key)) } else { Err(KeyError::Damaged { path }) }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let key = random::<LENGTH>()?;
                whole_file::replace(&path, &key).map_err(at)?;
                Ok(Keys(key))
            }
            Err(error) => Err(at(error)),
        }
    }

    /// The token of a sandbox.
    pub fn token(&self, purpose: Purpose, id: &str) -> String {
        let named = format!("{}{id}", purpose.prefix());
        // HMAC's own padding of a key that is shorter than a block.
        let mut block = [0; BLOCK];
        block[..LENGTH].copy_from_slice(&self.0);
        let digest = Hmac::<Sha256>::new(&block.into()).chain_update(&named).finalize().into_bytes();
        format!("{named}_{}", hex::encode(&digest[..DIGITS / 2]))
    }

    /// Whether this is the token of a sandbox. Takes the same time wherever the two differ.
    pub fn is_right(&self, purpose: Purpose, id: &str, shown: &[u8]) -> bool {
        self.token(purpose, id).as_bytes().ct_eq(shown).into()
    }

    /// Whose token this is, if it is one of this daemon's.
    pub fn holder<'a>(&self, purpose: Purpose, shown: &'a str) -> Option<&'a str> {
        let (id, _) = shown.strip_prefix(purpose.prefix())?.split_once('_')?;
        self.is_right(purpose, id, shown.as_bytes()).then_some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_kept_and_damage_is_said() {
        let home = tempfile::tempdir().unwrap();
        let token = Keys::open(home.path()).unwrap().token(Purpose::Access, "i1");
        assert_eq!(Keys::open(home.path()).unwrap().token(Purpose::Access, "i1"), token);
        for damage in [&b""[..], b"short", &[0; LENGTH + 1]] {
            std::fs::write(home.path().join(FILE), damage).unwrap();
            assert!(matches!(Keys::open(home.path()), Err(KeyError::Damaged { .. })));
        }
    }

    #[test]
    fn a_token_is_for_one_sandbox_and_one_purpose() {
        let keys = Keys([7; LENGTH]);
        let token = keys.token(Purpose::Access, "i1");
        assert_eq!(keys.holder(Purpose::Access, &token), Some("i1"));
        assert_eq!(keys.holder(Purpose::Traffic, &token), None);
        assert!(!keys.is_right(Purpose::Access, "i2", token.as_bytes()));
        assert!(!keys.is_right(Purpose::Traffic, "i1", token.as_bytes()));
        assert_ne!(Keys([8; LENGTH]).token(Purpose::Access, "i1"), token);
        assert_eq!(keys.holder(Purpose::Access, &token.replace("i1", "i2")), None);
    }

    proptest::proptest! {
        #[test]
        fn nothing_else_is_a_token(text in "(ea_)?[a-z0-9]{0,4}_?[0-9a-f]{38,42}|\\PC{0,60}") {
            proptest::prop_assert_eq!(Keys([7; LENGTH]).holder(Purpose::Access, &text), None);
        }
    }
}
