//! The config of an artifact: what the caller says about the snapshot, and the frame tables of its streams.
//!
//! ```text
//! {"version": 1, "frame_size": 2097152, "blob_frames": 32, "about": {…},
//!  "streams": [{"role": "application/vnd.forkd.snapshot.memory.v1+zstd", "name": "base", "table": {"size": …, "blobs": […]}}, …]}
//! ```

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::frame::{BLOB_FRAMES, FRAME_SIZE};
use crate::role::Role;
use crate::table::FrameTable;

const VERSION: u32 = 1;
/// Bytes of the largest config. The tables of 512 GiB take 13 MiB.
pub(crate) const MAX_CONFIG: u64 = 16 << 20;
/// Bytes of the largest `about`.
pub const MAX_ABOUT: usize = 2 << 20;
/// Streams in one artifact: a chain of snapshots has a few for each.
pub const MAX_STREAMS: usize = 4096;
const MAX_NAME: usize = 200;

/// What travels beside the blobs. The caller's object is opaque here.
pub type About = Map<String, Value>;

/// One stream of an artifact, as it is on the wire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stream {
    pub role: Role,
    /// Tells streams of one role from each other, for instance by the snapshot of the chain that they belong to.
    pub name: String,
    pub table: FrameTable,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    version: u32,
    frame_size: u64,
    blob_frames: usize,
    pub about: About,
    pub streams: Vec<Stream>,
}

/// A config cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("the config is not valid JSON of the expected form")]
    Syntax(#[source] serde_json::Error),
    #[error("config version {found}, expected {VERSION}: it was made by a newer forkd; update this one")]
    Version { found: u32 },
    #[error(
        "the config has frames of {frame_size} bytes and blobs of {blob_frames} frames, expected {FRAME_SIZE} and {BLOB_FRAMES}"
    )]
    Geometry { frame_size: u64, blob_frames: usize },
    #[error("the config has {size} bytes, expected at most {MAX_CONFIG}")]
    TooLarge { size: u64 },
    #[error("`about` has {size} bytes, expected at most {MAX_ABOUT}")]
    AboutTooLarge { size: usize },
    #[error("{count} streams, expected 1 to {MAX_STREAMS}")]
    StreamCount { count: usize },
    #[error("{name:?} is not a valid name of a stream: expected 1-{MAX_NAME} of a-z, A-Z, 0-9 and '._-/:@+'")]
    Name { name: String },
    #[error("two streams have the role {} and the name {name:?}", role.media_type())]
    Duplicate { role: Role, name: String },
}

/// Read on its own first: a newer config has other fields.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

impl Config {
    pub fn new(about: About, streams: Vec<Stream>) -> Result<Config, ConfigError> {
        let config =
            Config { version: VERSION, frame_size: FRAME_SIZE, blob_frames: BLOB_FRAMES, about, streams };
        config.check()?;
        Ok(config)
    }

    pub fn encode(&self) -> Result<Vec<u8>, ConfigError> {
        let bytes = serde_json::to_vec(self).map_err(ConfigError::Syntax)?;
        let size = bytes.len() as u64;
        if size > MAX_CONFIG { Err(ConfigError::TooLarge { size }) } else { Ok(bytes) }
    }

    pub fn parse(bytes: &[u8]) -> Result<Config, ConfigError> {
        let size = bytes.len() as u64;
        if size > MAX_CONFIG {
            return Err(ConfigError::TooLarge { size });
        }
        let Versioned { version } = serde_json::from_slice(bytes).map_err(ConfigError::Syntax)?;
        if version != VERSION {
            return Err(ConfigError::Version { found: version });
        }
        let config: Config = serde_json::from_slice(bytes).map_err(ConfigError::Syntax)?;
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), ConfigError> {
        let (frame_size, blob_frames) = (self.frame_size, self.blob_frames);
        if (frame_size, blob_frames) != (FRAME_SIZE, BLOB_FRAMES) {
            return Err(ConfigError::Geometry { frame_size, blob_frames });
        }
        let size = serde_json::to_vec(&self.about).map_err(ConfigError::Syntax)?.len();
        if size > MAX_ABOUT {
            return Err(ConfigError::AboutTooLarge { size });
        }
        check_streams(self.streams.iter().map(|stream| (stream.role, stream.name.as_str())))
    }
}

/// Checks count and names of streams.
pub(crate) fn check_streams<'a>(
    streams: impl ExactSizeIterator<Item = (Role, &'a str)>,
) -> Result<(), ConfigError> {
    let count = streams.len();
    if !(1..=MAX_STREAMS).contains(&count) {
        return Err(ConfigError::StreamCount { count });
    }
    let mut seen = BTreeSet::new();
    for (role, name) in streams {
        let valid = (1..=MAX_NAME).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-/:@+".contains(&byte));
        if !valid {
            return Err(ConfigError::Name { name: name.chars().take(80).collect() });
        }
        if !seen.insert((role, name)) {
            return Err(ConfigError::Duplicate { role, name: name.into() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(role: Role, name: &str) -> Stream {
        Stream { role, name: name.into(), table: FrameTable::default() }
    }

    #[test]
    fn a_config_survives_json_and_wrong_ones_are_named() {
        let mut about = About::new();
        about.insert("cpu".into(), "x86-64-v3".into());
        let config =
            Config::new(about, vec![stream(Role::State, "base"), stream(Role::Memory, "base")]).unwrap();
        let bytes = config.encode().unwrap();
        assert_eq!(Config::parse(&bytes).unwrap(), config);

        let refused = |from: &str, to: &str, says: &str| {
            let text = String::from_utf8(bytes.clone()).unwrap();
            assert!(text.contains(from), "{text}");
            let error = Config::parse(text.replace(from, to).as_bytes()).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        };
        refused("\"version\":1", "\"version\":2,\"new\":true", "version 2");
        refused("2097152", "4096", "frames of 4096 bytes");
        refused("\"name\":\"base\"", "\"name\":\"../a b\"", "not a valid name");
        refused("snapshot.state.v1", "snapshot.memory.v1", "two streams");
        refused("\"about\"", "\"other\"", "not valid JSON");
        assert!(matches!(Config::new(About::new(), Vec::new()), Err(ConfigError::StreamCount { count: 0 })));
    }

    #[test]
    fn a_large_about_is_refused() {
        let mut about = About::new();
        about.insert("text".into(), "x".repeat(MAX_ABOUT).into());
        let error = Config::new(about, vec![stream(Role::State, "a")]).unwrap_err();
        assert!(matches!(error, ConfigError::AboutTooLarge { .. }));
    }
}
