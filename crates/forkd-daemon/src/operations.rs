//! What a protocol beside the daemon's own calls: the same that the handlers of forkd's API call, so that admission, limits, metrics
//! and errors are the same.

pub use crate::during::during;
pub use crate::egress;
pub use crate::jobs::Place;
pub use crate::kept::{Kept, KeptError};
pub use crate::proxy::{Destination, Forwarded, forward};
pub use crate::routes::checks;
pub use crate::routes::images::build::carry_out;
pub use crate::routes::images::look;
pub use crate::routes::sandboxes::change::{branch_of, from_now};
pub use crate::routes::sandboxes::create::{MOST, fork_all};
pub use crate::routes::snapshots::create::{How, make};
pub use crate::{upload, whole_file};
