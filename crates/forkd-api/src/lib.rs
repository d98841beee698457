//! What goes over the REST API: requests and answers as both sides write and read them.
//!
//! These types are only the wire. What a request means is checked where it is converted to the engine's own types, and the
//! engine's types change without these; only `exec::ExecEvent` is also the engine's, as a program's output is passed on
//! unchanged. The OpenAPI document is made of these types, and clients of it: a field's comment
//! is its documentation.
//!
//! Times are seconds since 1970 in UTC (`…_unix`), sizes are MiB (`…_mib`) or bytes (`…_bytes`). Requests with a field that
//! is unknown are refused, since it would be a typing error that changes nothing; answers may get new fields.

pub mod code;
pub mod data;
pub mod error;
pub mod event;
pub mod exec;
pub mod file;
pub mod hint;
pub mod library;
pub mod named;
pub mod percentile;
pub mod sandbox;
pub mod snapshot;
pub mod system;
pub mod token;

/// The prefix of every path with a version.
pub const PREFIX: &str = "/v1";
