//! What is kept with a sandbox that E2B's clients ask about.

use forkd_engine::record::SandboxRecord;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

const KEY: &str = "e2b";
/// What E2B gives a sandbox if nothing is said, in seconds.
pub(crate) const TIMEOUT: u64 = 300;

/// It is part of the sandbox's record, so it comes and goes with it, and a daemon that starts again has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct About {
    /// The template as it was asked for.
    pub template: Option<String>,
    /// Whether the agent is only for those who show the access token.
    pub secure: bool,
    /// Whether its ports are for everybody who knows its id.
    pub public_traffic: bool,
    /// What its servers see as their host.
    pub mask_host: Option<String>,
}

impl Default for About {
    /// What holds for a sandbox that was made otherwise: nobody has said that its ports are for everybody.
    fn default() -> About {
        About { template: None, secure: true, public_traffic: false, mask_host: None }
    }
}

impl About {
    /// Whether a sandbox was made through E2B's API.
    pub fn is_of(record: &SandboxRecord) -> bool {
        record.about.contains_key(KEY)
    }

    pub fn of(record: &SandboxRecord) -> About {
        let kept = record.about.get(KEY).cloned();
        kept.and_then(|kept| serde_json::from_value(kept).ok()).unwrap_or_default()
    }

    /// As the record has it.
    pub fn kept(&self) -> Map<String, Value> {
        let value = serde_json::to_value(self).unwrap_or_default();
        Map::from_iter([(KEY.to_owned(), value)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_what_is_read() {
        let about = About { template: Some("base".into()), secure: false, ..About::default() };
        let kept = about.kept();
        assert_eq!(serde_json::from_value::<About>(kept[KEY].clone()).unwrap(), about);
        assert_eq!(serde_json::from_str::<About>("{}").unwrap(), About::default());
    }
}
