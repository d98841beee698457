//! The Connect protocol with its JSON codec: what the envd services speak.
//!
//! ```text
//!  unary           POST, application/json            one JSON object ──▶ one JSON object, or status + {"code","message"}
//!  server stream   POST, application/connect+json    one envelope    ──▶ 200, envelopes, one end-of-stream envelope
//!  client stream   POST, application/connect+json    envelopes       ──▶ 200, one envelope, one end-of-stream envelope
//!
//!  envelope        flags (1 byte) · length (4 bytes, big endian) · JSON
//!                  flags: 0 a message, 1 compressed (never negotiated, refused), 2 the end: {} or {"error":{…}}
//! ```

mod decoder;
mod envelope;
mod error;
mod tracker;

pub use decoder::{Decoder, Frame};
pub use envelope::{end, message, outcome};
pub use error::{Code, ConnectError, refusal};
pub use tracker::Tracker;

/// The type of a unary call.
pub const UNARY_TYPE: &str = "application/json";
/// The type of a stream.
pub const STREAM_TYPE: &str = "application/connect+json";

/// The version of the protocol, in a header of every request of a stream.
pub const VERSION_HEADER: &str = "connect-protocol-version";
pub const VERSION: &str = "1";
/// How long a call may take, in milliseconds.
pub const TIMEOUT_HEADER: &str = "connect-timeout-ms";
/// How often a silent stream sends a keepalive, in seconds. E2B's own.
pub const KEEPALIVE_HEADER: &str = "keepalive-ping-interval";
