//! `filesystem.Filesystem`: entries, directories and watchers. Messages as protobuf's JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::json::{Number, or_default};

pub const STAT: &str = "/filesystem.Filesystem/Stat";
pub const LIST_DIR: &str = "/filesystem.Filesystem/ListDir";
pub const MAKE_DIR: &str = "/filesystem.Filesystem/MakeDir";
pub const MOVE: &str = "/filesystem.Filesystem/Move";
pub const REMOVE: &str = "/filesystem.Filesystem/Remove";
pub const WATCH_DIR: &str = "/filesystem.Filesystem/WatchDir";
pub const CREATE_WATCHER: &str = "/filesystem.Filesystem/CreateWatcher";
pub const GET_WATCHER_EVENTS: &str = "/filesystem.Filesystem/GetWatcherEvents";
pub const REMOVE_WATCHER: &str = "/filesystem.Filesystem/RemoveWatcher";

/// What a stream of `WatchDir` begins with.
pub const WATCH_START: &[u8] = br#"{"start":{}}"#;
/// What a silent one says.
pub const WATCH_KEEPALIVE: &[u8] = br#"{"keepalive":{}}"#;

/// A request that only names a path.
#[derive(Debug, Serialize, Deserialize)]
pub struct PathRequest {
    #[serde(default, deserialize_with = "or_default")]
    pub path: String,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct ListDirRequest {
    #[serde(default, deserialize_with = "or_default")]
    pub path: String,
    #[serde(default, deserialize_with = "or_default")]
    pub depth: Number,
    /// Only a part of a directory, without those in it. E2B has no such thing, and early agents answer with all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page: Option<Page>,
}

/// A part of a directory, in the order of names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// It begins after this name.
    #[serde(default)]
    pub after: String,
    pub limit: u32,
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

#[derive(Debug, Serialize, Deserialize)]
pub struct EntryResponse {
    pub entry: EntryInfo,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct ListDirResponse {
    #[serde(default)]
    pub entries: Vec<EntryInfo>,
    /// Whether a page is not the last.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
}

#[derive(Debug, Serialize)]
pub struct WatcherEvents {
    pub events: Vec<Event>,
}

/// A message of a stream of `WatchDir`.
#[derive(Debug, Serialize)]
pub struct WatchMessage {
    pub filesystem: Event,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
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

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileType {
    #[serde(rename = "FILE_TYPE_FILE")]
    File,
    #[serde(rename = "FILE_TYPE_DIRECTORY")]
    Directory,
    #[serde(rename = "FILE_TYPE_SYMLINK")]
    Symlink,
    /// Also every type that is not listed here.
    #[default]
    #[serde(rename = "FILE_TYPE_UNSPECIFIED", other)]
    Other,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_survive_and_little_of_them_is_needed() {
        let entry = EntryInfo {
            name: "a".into(),
            kind: FileType::Symlink,
            size: "5".into(),
            symlink_target: Some("/b".into()),
            ..EntryInfo::default()
        };
        let text = serde_json::to_string(&entry).unwrap();
        assert!(text.contains(r#""type":"FILE_TYPE_SYMLINK""#) && text.contains(r#""symlinkTarget":"/b""#));
        assert_eq!(serde_json::from_str::<EntryInfo>(&text).unwrap(), entry);
        let little: EntryInfo =
            serde_json::from_str(r#"{"name":"a","type":"FILE_TYPE_SOCKET","new":1}"#).unwrap();
        assert_eq!((little.name.as_str(), little.kind), ("a", FileType::Other));
        assert_eq!(serde_json::to_string(&FileType::Other).unwrap(), "\"FILE_TYPE_UNSPECIFIED\"");
        assert!(serde_json::from_str::<EntryInfo>(r#"{"size":5}"#).is_err());
    }
}
