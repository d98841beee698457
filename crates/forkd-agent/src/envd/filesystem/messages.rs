//! The messages of the service, as protobuf's JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::connect::json::{Number, or_default};

/// A request that only names a path.
#[derive(Debug, Deserialize)]
pub struct PathRequest {
    #[serde(default, deserialize_with = "or_default")]
    pub path: String,
}

#[derive(Debug, Deserialize)]
pub struct ListDirRequest {
    #[serde(default, deserialize_with = "or_default")]
    pub path: String,
    #[serde(default, deserialize_with = "or_default")]
    pub depth: Number,
}

#[derive(Debug, Deserialize)]
pub struct MoveRequest {
    #[serde(default, deserialize_with = "or_default")]
    pub source: String,
    #[serde(default, deserialize_with = "or_default")]
    pub destination: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WatchRequest {
    #[serde(default, deserialize_with = "or_default")]
    pub path: String,
    #[serde(default, deserialize_with = "or_default")]
    pub recursive: bool,
    #[serde(default, deserialize_with = "or_default", alias = "include_entry")]
    pub include_entry: bool,
    #[serde(default, deserialize_with = "or_default", alias = "allow_network_mounts")]
    pub allow_network_mounts: bool,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WatcherId {
    #[serde(default, deserialize_with = "or_default", alias = "watcher_id")]
    pub watcher_id: String,
}

#[derive(Debug, Serialize)]
pub struct EntryResponse {
    pub entry: EntryInfo,
}

#[derive(Debug, Serialize)]
pub struct ListDirResponse {
    pub entries: Vec<EntryInfo>,
}

#[derive(Debug, Serialize)]
pub struct WatcherEvents {
    pub events: Vec<Event>,
}

#[derive(Debug, Serialize)]
pub struct Empty {}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EntryInfo {
    pub name: String,
    #[serde(rename = "type")]
    pub kind: FileType,
    pub path: String,
    /// An int64, which protobuf's JSON has as a string.
    pub size: String,
    pub mode: u32,
    pub permissions: String,
    pub owner: String,
    pub group: String,
    pub modified_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub symlink_target: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum FileType {
    #[serde(rename = "FILE_TYPE_UNSPECIFIED")]
    Other,
    #[serde(rename = "FILE_TYPE_FILE")]
    File,
    #[serde(rename = "FILE_TYPE_DIRECTORY")]
    Directory,
    #[serde(rename = "FILE_TYPE_SYMLINK")]
    Symlink,
}

/// Something that happened in a watched directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Event {
    /// Relative to the watched directory.
    pub name: String,
    #[serde(rename = "type")]
    pub kind: EventType,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entry: Option<EntryInfo>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum EventType {
    #[serde(rename = "EVENT_TYPE_CREATE")]
    Create,
    #[serde(rename = "EVENT_TYPE_WRITE")]
    Write,
    #[serde(rename = "EVENT_TYPE_REMOVE")]
    Remove,
    #[serde(rename = "EVENT_TYPE_RENAME")]
    Rename,
    #[serde(rename = "EVENT_TYPE_CHMOD")]
    Chmod,
}
