//! Snapshots as OCI artifacts: the wire format, and the ways it travels: registries, OCI layouts in tar files; and
//! signatures.
//!
//! A snapshot is a set of streams of bytes, each with a role. What the bytes mean is the caller's business; this crate knows nothing
//! of KVM, of guests or of how snapshots are stored.
//!
//! ```text
//!                 sender                                                    receiver
//!  ByteSource ─▶ frames of 2 MiB, BLAKE3 ─▶ zstd ─▶ blobs of 32      blobs ─▶ frames, checked ─▶ ByteSink
//!  (stream)         └─▶ FrameTable ─┐                                    ▲
//!                          about ───┴─▶ config ─▶ manifest ─▶ tag ─▶ Artifact: everything is known before the first byte
//!
//!  registry   Repository::push   ════════ 8 blobs at a time ════════▶   Repository::open, then Repository::fetch
//!  file       layout::write      ════════ one tar, in one pass ═════▶   Layout::unpack, Layout::open, Layout::fetch
//! ```
//!
//! - The format: `frame.rs` says how a stream is cut, [`FrameTable`] what is known of it, `config.rs` and `manifest.rs` what travels
//!   beside it. Cutting is deterministic, so equal streams are equal blobs and are sent once.
//! - A receiver gets an [`Artifact`] first. It decides by `about`, sizes and digest whether to fetch at all.
//! - Nothing that comes from a registry or a file is used before it was checked; each frame is checked before the sink gets it.
//! - Signatures are cosign's, with keys of one's own; a [`trust::Policy`] says which repositories need which: [`trust`].
//! - A caller that keeps the [`FrameTable`]s of a push or a pull can push again without reading or compressing anything.

mod artifact;
mod byte_io;
mod config;
mod fetch;
mod frame;
pub mod layout;
mod manifest;
mod outgoing;
mod pack;
mod present;
mod progress;
pub mod registry;
mod role;
mod table;
#[cfg(test)]
mod testing;
pub mod trust;
mod unpack;
mod workers;

pub use artifact::{Artifact, OpenError, Selector, SourceError, Variant, first_variant};
pub use byte_io::{ByteSink, ByteSource};
pub use config::{About, ConfigError, MAX_ABOUT, MAX_STREAMS, Stream};
pub use fetch::{FetchError, Fetched, Have, Wanted};
pub use frame::{BLOB_FRAMES, FRAME_SIZE, MAX_STREAM, frame_count, frame_range};
pub use manifest::{Annotations, ManifestError};
pub use outgoing::{Outgoing, OutgoingError, Snapshot};
pub use pack::PackError;
pub use present::present_frames;
pub use progress::{Progress, Silent};
pub use role::{ARTIFACT_TYPE, CONFIG_TYPE, Role};
pub use table::{Blob, Frame, FrameTable, TableError};
pub use unpack::UnpackError;
