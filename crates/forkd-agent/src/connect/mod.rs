//! The server's side of the Connect protocol, which [`forkd_envd::connect`] describes.

mod body;
mod client_stream;
mod error;
mod headers;
mod server_stream;
mod unary;

pub use body::{Sender, Stall};
pub use client_stream::client_stream;
pub use error::{error_response, or_missing, system_error, words};
pub use headers::timeout;
pub use server_stream::{read_request, respond};
pub use unary::unary;

/// The largest message of a request. Input for a process comes in messages, files do not.
const MAX_MESSAGE: usize = 16 << 20;
