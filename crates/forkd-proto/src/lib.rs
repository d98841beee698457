//! Messages between forkd's processes: plain types, no behaviour, no I/O.

pub mod probe;
