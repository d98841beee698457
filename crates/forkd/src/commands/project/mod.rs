//! `forkd project …`: in the file of tokens, which a daemon notices the changes of.

pub mod limit;
pub mod ls;
