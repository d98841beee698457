//! What the fuzz targets of the devices share: a driver that a fuzzer writes, and the host's side of each device. Beside them,
//! the targets of what agents say and of snapshots that come from elsewhere.
//!
//! The seeds of these targets are scripts, written and checked by the tests here:
//! `FORKD_WRITE_SEEDS=1 cargo test --manifest-path fuzz/Cargo.toml --lib`.

pub mod block;
pub mod console;
pub mod driver;
pub mod envd;
pub mod hub;
pub mod net;
pub mod rng;
pub mod script;
pub mod vsock;

#[cfg(test)]
mod seed;
