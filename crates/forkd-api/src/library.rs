//! Kernels and images.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImageSummary {
    pub id: String,
    pub names: Vec<String>,
    pub created_at_unix: u64,
    /// What its file system holds.
    pub size_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImageList {
    pub images: Vec<ImageSummary>,
}

/// A kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KernelSummary {
    pub name: String,
    pub default: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KernelList {
    pub kernels: Vec<KernelSummary>,
}
