//! A zygote as files, and files as a zygote.
//!
//! The store knows manifests, pages and digests; what only the VMM knows is here: what the state's bytes mean, where pages
//! are, what the guest needs of the CPU. A process that does either has descriptors only; the requester chooses the files.
//!
//! Guest memory is taken from [`pages`], the state is a [`Payload`]; [`persist`] and [`load`] are the two recipes.

pub mod load;
pub mod pages;
pub mod persist;

use std::fs::File;
use std::path::PathBuf;

use forkd_proto::control::{Descriptor, SnapshotParts};
use forkd_store::SnapshotFiles;
use serde::{Deserialize, Serialize};

use crate::vm::devices::{Descriptors, DeviceError, DevicesState};
use crate::vm::state::VmState;

/// The number of this encoding of [`Payload`]. A process refuses others.
pub(crate) const PAYLOAD_VERSION: u32 = 1;

/// What is in a snapshot's state, as JSON: the structures of KVM are arrays of bytes in it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Payload {
    vm: VmState,
    devices: DevicesState,
}

/// The same to be written.
#[derive(Serialize)]
struct PayloadRef<'a> {
    vm: &'a VmState,
    devices: &'a DevicesState,
}

/// The files of a chain, in the order in which they came.
fn take_chain(
    parts: &[SnapshotParts],
    descriptors: &mut Descriptors,
) -> Result<Vec<SnapshotFiles>, DeviceError> {
    let mut files = Vec::new();
    for part in parts {
        let mut file = |descriptor| descriptors.take(descriptor).map(File::from);
        files.push(SnapshotFiles {
            name: PathBuf::from(&part.name),
            manifest: file(Descriptor::Manifest)?,
            state: None,
            memory: file(Descriptor::Memory)?,
            map: match part.map {
                true => Some(file(Descriptor::PageMap)?),
                false => None,
            },
        });
    }
    if let Some(head) = files.last_mut() {
        head.state = Some(File::from(descriptors.take(Descriptor::VmState)?));
    }
    Ok(files)
}
