//! Which packets go where: the host's own table, and one table in each sandbox's namespace.

pub mod host;
pub mod lease;
pub mod ranges;

/// The name of every table that forkd makes. No other table is touched.
pub const TABLE: &str = "forkd";
