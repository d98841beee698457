//! Trees of files as tar archives on their way to and from a daemon: `pack` writes one, `unpack` takes one apart with
//! suspicion, and `pipe` is what is between a thread that works on files and the connection.

mod pack;
mod pipe;
mod unpack;

pub use pack::pack;
pub use pipe::{Taken, written};
pub use unpack::{UnpackError, merge, unpack};
