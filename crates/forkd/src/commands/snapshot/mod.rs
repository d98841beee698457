//! `forkd snapshot …`.

pub mod build;
pub mod compact;
pub mod history;
pub mod inspect;
pub mod key;
pub mod load;
pub mod ls;
pub mod make;
pub mod prune;
pub mod pull;
pub mod push;
pub mod rm;
pub mod save;
pub mod share;
pub mod sign;
pub mod tag;
pub mod verify;
