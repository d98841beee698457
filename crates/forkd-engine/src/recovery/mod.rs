//! What a daemon finds of an earlier one, and the unused files that it removes.

pub(crate) mod recover;
pub(crate) mod sweep;
pub(crate) mod written;
