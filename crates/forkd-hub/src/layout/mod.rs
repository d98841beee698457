//! Snapshots in a file: an OCI image layout in a tar.
//!
//! ```text
//! oci-layout                    {"imageLayoutVersion": "1.0.0"}
//! blobs/sha256/<64 hex>         blobs of the streams, then the config, then the manifest
//! index.json                    names the manifest
//! ```

mod read;
mod write;

pub use read::{Layout, LayoutError};
pub use write::{WriteError, Written, write};

use serde::{Deserialize, Serialize};

const MARKER: &str = "oci-layout";
const INDEX: &str = "index.json";
const BLOBS: &str = "blobs/sha256";
/// The annotation that has the tag.
const TAG: &str = "org.opencontainers.image.ref.name";

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Marker {
    image_layout_version: String,
}

#[cfg(test)]
mod tests;
