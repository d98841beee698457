//! `POST /init`: what the host tells a sandbox about itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub const INIT: &str = "/init";

/// What is absent stays as it is.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct InitRequest {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env_vars: Option<BTreeMap<String, String>>,
    /// An empty one takes the token away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_workdir: Option<String>,
    /// RFC 3339, in UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<String>,
}
