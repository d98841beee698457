//! `/files`: the contents of files, up and down.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub const FILES: &str = "/files";
pub const COMPOSE: &str = "/files/compose";

/// The query of both directions. Whether it is signed: see [`crate::signature`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct FileQuery {
    #[serde(default)]
    pub path: Option<String>,
    #[serde(default)]
    pub username: Option<String>,
    #[serde(default)]
    pub signature: Option<String>,
    #[serde(default)]
    pub signature_expiration: Option<u64>,
    /// forkd's own: the file appears, or is replaced, when all of it has come, and not before.
    #[serde(default)]
    pub whole: bool,
}

impl FileQuery {
    /// The path and query of a request.
    pub fn target(&self) -> String {
        let expiration = self.signature_expiration.map(|seconds| seconds.to_string());
        let values = [
            ("path", self.path.as_deref()),
            ("username", self.username.as_deref()),
            ("signature", self.signature.as_deref()),
            ("signature_expiration", expiration.as_deref()),
            ("whole", self.whole.then_some("true")),
        ];
        let pairs = values.iter().filter_map(|(name, value)| Some(format!("{name}={}", encoded((*value)?))));
        format!("{FILES}?{}", pairs.collect::<Vec<_>>().join("&"))
    }
}

/// A value of a query: everything but the plainest characters as %XX.
pub fn encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'_' | b'-' => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

/// What an upload answers about each file.
#[derive(Debug, Serialize)]
pub struct Written {
    pub path: String,
    pub name: String,
    #[serde(rename = "type")]
    pub kind: WrittenKind,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
}

/// Only files can be uploaded.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WrittenKind {
    File,
}

/// `POST /files/compose`: several files become one.
#[derive(Debug, Deserialize)]
pub struct ComposeRequest {
    #[serde(default)]
    pub source_paths: Vec<String>,
    #[serde(default)]
    pub destination: String,
    #[serde(default)]
    pub username: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_has_what_is_given() {
        let query = FileQuery {
            path: Some("/a b".into()),
            username: Some("me".into()),
            whole: true,
            ..FileQuery::default()
        };
        assert_eq!(query.target(), "/files?path=/a%20b&username=me&whole=true");
        let signed = FileQuery {
            path: Some("/ä".into()),
            signature: Some("v1_+".into()),
            signature_expiration: Some(9),
            ..FileQuery::default()
        };
        assert_eq!(signed.target(), "/files?path=/%C3%A4&signature=v1_%2B&signature_expiration=9");
    }
}
