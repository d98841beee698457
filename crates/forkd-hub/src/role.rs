//! What the bytes of a stream are, as a media type.

use serde::{Deserialize, Serialize};

/// The `artifactType` of a snapshot's manifest.
pub const ARTIFACT_TYPE: &str = "application/vnd.forkd.snapshot.v1";
/// The media type of a snapshot's config.
pub const CONFIG_TYPE: &str = "application/vnd.forkd.snapshot.config.v1+json";

/// The role of a stream. On the wire it is the media type of the stream's blobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Role {
    /// Pages of guest memory that are not zero, packed.
    #[serde(rename = "application/vnd.forkd.snapshot.memory.v1+zstd")]
    Memory,
    /// Which pages those are.
    #[serde(rename = "application/vnd.forkd.snapshot.memory.map.v1+zstd")]
    MemoryMap,
    /// Registers and devices.
    #[serde(rename = "application/vnd.forkd.snapshot.state.v1+zstd")]
    State,
    /// A layer of a disk.
    #[serde(rename = "application/vnd.forkd.snapshot.disk.v1+zstd")]
    Disk,
    /// Which blocks a layer of a disk has.
    #[serde(rename = "application/vnd.forkd.snapshot.disk.map.v1+zstd")]
    DiskMap,
    /// The order in which a fork uses its memory.
    #[serde(rename = "application/vnd.forkd.snapshot.prefetch.v1+zstd")]
    Prefetch,
}

impl Role {
    pub const ALL: [Role; 6] =
        [Role::Memory, Role::MemoryMap, Role::State, Role::Disk, Role::DiskMap, Role::Prefetch];

    pub fn media_type(self) -> &'static str {
        match self {
            Role::Memory => "application/vnd.forkd.snapshot.memory.v1+zstd",
            Role::MemoryMap => "application/vnd.forkd.snapshot.memory.map.v1+zstd",
            Role::State => "application/vnd.forkd.snapshot.state.v1+zstd",
            Role::Disk => "application/vnd.forkd.snapshot.disk.v1+zstd",
            Role::DiskMap => "application/vnd.forkd.snapshot.disk.map.v1+zstd",
            Role::Prefetch => "application/vnd.forkd.snapshot.prefetch.v1+zstd",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_the_media_type() {
        for role in Role::ALL {
            let json = serde_json::to_string(&role).unwrap();
            assert_eq!(json, format!("{:?}", role.media_type()));
            assert_eq!(serde_json::from_str::<Role>(&json).unwrap(), role);
        }
        assert!(serde_json::from_str::<Role>("\"application/vnd.forkd.snapshot.other.v1+zstd\"").is_err());
    }
}
