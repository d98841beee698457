//! `forkd snapshot …`, and `images` and `rmi`, which are its `ls` and `rm`.

pub mod build;
pub mod compact;
pub mod history;
pub mod inspect;
pub mod load;
pub mod ls;
pub mod make;
pub mod pull;
pub mod push;
pub mod rm;
pub mod save;
pub mod share;
pub mod tag;
pub mod verify;
