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

mod body;
mod client_stream;
mod envelope;
mod error;
mod headers;
pub mod json;
mod server_stream;
mod unary;

pub use body::{Sender, Stall};
pub use client_stream::client_stream;
pub use envelope::message;
pub use error::{Code, ConnectError};
pub use headers::timeout;
pub use server_stream::{read_request, respond};
pub use unary::unary;

/// The largest message of a request. Input for a process comes in messages, files do not.
const MAX_MESSAGE: usize = 16 << 20;
const STREAM_TYPE: &str = "application/connect+json";
