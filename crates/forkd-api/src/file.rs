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
    /// Absolute, or relative to the user's home directory.
    #[param(min_length = 1, max_length = 4096)]
    pub path: String,
    /// The user whose home directory relative paths start from, and who owns new files [default: the image's user].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// A part of what is in a directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListFiles {
    /// Absolute, or relative to the user's home directory.
    #[param(min_length = 1, max_length = 4096)]
    pub path: String,
    /// The user whose home directory relative paths start from [default: the image's user].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Only names after this one: `next` of the previous page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// The maximum number of entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(minimum = 1, maximum = 10000, default = 10000)]
    pub limit: Option<u32>,
}

/// Metadata of a file. Symbolic links are followed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileInfo {
    pub name: String,
    pub path: String,
    pub kind: FileKind,
    pub size: u64,
    /// The permission bits as a number: `0o644` is 420.
    pub mode: u32,
    pub owner: String,
    pub group: String,
    pub modified_unix: u64,
    /// The target of a symbolic link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub symlink_target: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    File,
    Directory,
    /// A broken symbolic link.
    Symlink,
    /// A device, a pipe or a socket.
    Other,
}

/// The entries of a directory, sorted by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileList {
    pub files: Vec<FileInfo>,
    /// Whether there are more entries.
    pub truncated: bool,
    /// If there are more: pass this as `after` to get the next page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}
