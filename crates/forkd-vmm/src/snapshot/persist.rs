//! Writing a snapshot of a zygote. It happens in a process that was forked from the zygote for this purpose only:
//! nothing waits for it, and its failure does not affect the zygote or its children.

use std::fs::File;
use std::ops::ControlFlow;

use forkd_devices::disk::{DiskError, LayerStack};
use forkd_memory::Pagemap;
use forkd_proto::control::{Descriptor, Persist, Persisted};
use forkd_store::{Chain, ChainError, LayoutError, NewContents, NewFiles, PageSource, WriteError};

use super::pages::{RamPages, union};
use super::{PAYLOAD_VERSION, PayloadRef, take_chain};
use crate::vm::devices::{Descriptors, DeviceError};
use crate::vm::features;
use crate::vm::live::FrozenVm;

#[derive(Debug, thiserror::Error)]
pub enum PersistError {
    #[error(transparent)]
    Descriptor(#[from] DeviceError),
    #[error("cannot sync the layers of the disk")]
    Disk(#[source] DiskError),
    #[error(
        "the daemon is older than this process and expects a format that is no longer written; restart the daemon"
    )]
    OldDaemon,
    #[error("cannot encode the state")]
    Encode(#[source] serde_json::Error),
    #[error("cannot use the base")]
    Base(#[source] ChainError),
    #[error(transparent)]
    Layout(#[from] LayoutError),
    #[error("cannot write the snapshot")]
    Write(#[source] WriteError),
}

/// Writes state and memory to the files that came with the request, and completes the disks' layers. `pagemap` is the
/// zygote's: its memory and this process' are the same, and neither writes to it. `wanted` is asked now
/// and then whether anybody still wants the snapshot.
pub fn persist(
    frozen: &FrozenVm,
    request: &Persist,
    descriptors: &mut Descriptors,
    pagemap: Option<&Pagemap>,
    mut wanted: impl FnMut() -> bool,
) -> Result<Persisted, PersistError> {
    if !request.packed {
        return Err(PersistError::OldDaemon);
    }
    let mut file = |descriptor| descriptors.take(descriptor).map(File::from);
    let files = NewFiles {
        state: file(Descriptor::NewVmState)?,
        memory: file(Descriptor::NewMemory)?,
        runs: file(Descriptor::NewPageMap)?,
    };
    let base = match take_chain(&request.base, descriptors)? {
        files if files.is_empty() => None,
        files => Some(Chain::open(files).map_err(PersistError::Base)?),
    };

    frozen.devices.layers.iter().try_for_each(LayerStack::flush).map_err(PersistError::Disk)?;
    let payload = PayloadRef { vm: &frozen.state, devices: &frozen.devices.state };
    let state = serde_json::to_vec(&payload).map_err(PersistError::Encode)?;
    let memory = RamPages::new(&frozen.ram)?;
    let new = NewContents {
        state_version: PAYLOAD_VERSION,
        state: &state,
        memory: &memory,
        base: base.as_ref().map(|base| base as &dyn PageSource),
    };
    // What is nowhere in memory is zero, which matters only where the base is not.
    let below = base.iter().flat_map(Chain::data_ranges);
    let mut candidates = union(frozen.ram.populated(pagemap), below);
    let mut observe = |_step| if wanted() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
    forkd_store::write_contents(&files, &new, &mut candidates, &mut observe).map_err(PersistError::Write)?;
    let cpuid = frozen.state.vcpus.first().map(|vcpu| vcpu.cpuid()).unwrap_or_default();
    Ok(Persisted {
        cpu_features: features::names(cpuid).into_iter().collect(),
        cpu_vendor: features::vendor(cpuid),
        tsc_khz: Some(frozen.state.tsc_khz()),
        regions: memory.layout().regions().iter().map(|region| (region.address, region.length)).collect(),
    })
}
