//! Limits that hold for each process. What a sandbox may take in all is its cgroup's business.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::{JailError, failed};

/// What no VM process needs: memory in files for everybody to read, memory that cannot be swapped out, message queues, a
/// higher priority than others, real time.
const NONE: [Resource; 5] =
    [Resource::Core, Resource::Memlock, Resource::Msgqueue, Resource::Nice, Resource::Rtprio];

pub fn set(file_bytes: Option<u64>) -> Result<(), JailError> {
    if let Some(most) = file_bytes {
        let most = Rlimit { current: Some(most), maximum: Some(most) };
        setrlimit(Resource::Fsize, most).map_err(failed("limits"))?;
    }
    for resource in NONE {
        let none = Rlimit { current: Some(0), maximum: Some(0) };
        setrlimit(resource, none).map_err(failed("limits"))?;
    }
    // As many descriptors as it may have: each frozen layer of a disk is one. The limit that programs begin with is low for the
    // sake of those that use select(2).
    let mut descriptors = getrlimit(Resource::Nofile);
    descriptors.current = descriptors.maximum;
    setrlimit(Resource::Nofile, descriptors).map_err(failed("limits"))
}
