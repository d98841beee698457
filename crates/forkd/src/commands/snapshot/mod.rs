//! `forkd snapshot …`, and `images` and `rmi`, which are its `ls` and `rm`.

pub mod create;
pub mod inspect;
pub mod ls;
pub mod rm;
pub mod share;
