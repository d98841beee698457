//! Files of a sandbox. All paths are the guest's.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// The type of a body that is a tar archive.
pub const TAR: &str = "application/x-tar";

/// A file, a directory or a link in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct FilePath {
    /// Absolute, or from the user's directory.
    #[param(min_length = 1, max_length = 4096)]
    pub path: String,
    /// Whose directory a relative path begins at, and who new files belong to. Without one, the image's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// A part of what is in a directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListFiles {
    /// Absolute, or from the user's directory.
    #[param(min_length = 1, max_length = 4096)]
    pub path: String,
    /// Whose directory a relative path begins at. Without one, the image's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Only names behind this one: `next` of the list before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// How many at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(minimum = 1, maximum = 10000, default = 10000)]
    pub limit: Option<u32>,
}

/// What is known of a file. A link is shown as what it leads to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileInfo {
    pub name: String,
    pub path: String,
    pub kind: FileKind,
    pub size: u64,
    /// The permissions: `0o644` is 420.
    pub mode: u32,
    pub owner: String,
    pub group: String,
    pub modified_unix: u64,
    /// Where a link leads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub symlink_target: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    File,
    Directory,
    /// A link that leads nowhere.
    Symlink,
    /// A device, a pipe or a socket.
    Other,
}

/// What is in a directory, in the order of names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileList {
    pub files: Vec<FileInfo>,
    /// Whether there are more.
    pub truncated: bool,
    /// If there are: `after` with it gives the next of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}
