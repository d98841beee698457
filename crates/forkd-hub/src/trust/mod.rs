//! Who made a snapshot: signatures with keys of one's own, as cosign makes and checks them, and which are wanted.
//!
//! ```text
//! manifest sha256:abc… ─▶ payload {"critical": {… "docker-manifest-digest": "sha256:abc…"}} ─▶ ECDSA P-256, SHA-256
//!
//! tag sha256-abc….sig ─▶ manifest, one layer a signature: the payload, and the signature in base64 as its annotation
//! ```
//!
//! A [`Signature`] is made where the key is, and stored by the daemon, which never sees the key.
//!
//! Signatures with certificates, transparency logs and the bundles of cosign 3 are not supported; bundles are refused by name.

mod key;
mod payload;
mod pem;
mod policy;
mod sign;
mod signature;
mod signatures;
pub(crate) mod verify;

#[cfg(test)]
mod tests;

pub use key::{KeyError, PublicKey, SigningKey};
pub use policy::{Policy, PolicyError, Requirement};
pub use sign::SignError;
pub use signature::{Signature, SignatureError};
pub use signatures::{SignaturesError, listed_signatures};
pub use verify::VerifyError;
