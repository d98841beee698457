//! What a daemon finds of an earlier one, and what it removes because it belongs to nobody.

pub(crate) mod recover;
pub(crate) mod sweep;
pub(crate) mod written;
