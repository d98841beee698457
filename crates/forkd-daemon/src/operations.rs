//! What a protocol beside the daemon's own calls: the same that the handlers of forkd's API call, so that admission, limits, metrics
//! and errors are the same.

pub use crate::during::during;
pub use crate::jobs::Place;
pub use crate::kept::{Kept, KeptError};
pub use crate::proxy::{Destination, Forwarded, forward};
pub use crate::routes::images::build::carry_out;
pub use crate::routes::images::look;
pub use crate::routes::sandboxes::change::{branch_of, from_now};
pub use crate::routes::sandboxes::create::{MOST, fork_all};
pub use crate::routes::snapshots::build::build_recipe;
pub use crate::routes::snapshots::create::{How, make};

pub mod checks {
    pub use crate::routes::checks::{env, malformed, metadata, within};
}

pub mod egress {
    pub use crate::egress::{convert, show};
}

pub mod upload {
    pub use crate::upload::to_file;
}

pub mod whole_file {
    pub use crate::whole_file::replace;
}
