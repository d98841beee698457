//! Making a zygote of a snapshot: check everything, bring the chain's memory together once, decode the state. No KVM VM is
//! made; the first fork finds out whether KVM takes the state.

use std::fs::File;

use forkd_devices::disk::{DiskState, LayerStack, StackError};
use forkd_memory::{GuestRam, RamError};
use forkd_proto::control::{Descriptor, Load};
use forkd_store::{
    AssembleError, Chain, ChainError, LayoutError, OpenError, RequirementError, Snapshot, VmState,
};
use kvm_ioctls::Kvm;

use super::pages::{self, RamPages};
use super::{PAYLOAD_VERSION, Payload, take_chain};
use crate::boot::MAX_VCPUS;
use crate::vm::devices::{Descriptors, DeviceError, DevicesState, FrozenDevices};
use crate::vm::features;
use crate::vm::hardware::KvmError;
use crate::vm::live::FrozenVm;
use crate::vm::state;

#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error(transparent)]
    Descriptor(#[from] DeviceError),
    #[error(transparent)]
    Chain(#[from] ChainError),
    #[error("the state has the encoding {found}, expected {PAYLOAD_VERSION}")]
    PayloadVersion { found: u32 },
    #[error("cannot decode the state with the encoding {PAYLOAD_VERSION}: {0}")]
    Payload(serde_json::Error),
    #[error("the state has {found} vCPUs, expected 1 to {MAX_VCPUS}")]
    Vcpus { found: usize },
    #[error("the state's devices do not match those that it declares")]
    Devices,
    #[error("the manifest names other CPU features than the state: {}", .0.join(", "))]
    Features(Vec<String>),
    #[error("the memory regions are not those of a VM with {0} bytes")]
    Regions(u64),
    #[error(transparent)]
    MemorySize(#[from] forkd_memory::LayoutError),
    #[error(transparent)]
    Layout(#[from] LayoutError),
    #[error(transparent)]
    Requirement(#[from] RequirementError),
    #[error(transparent)]
    Ram(#[from] RamError),
    #[error("cannot assemble the memory")]
    Assemble(#[from] AssembleError),
    #[error("the disks need {expected} layers, {found} came with the request")]
    DiskLayers { found: usize, expected: usize },
    #[error(transparent)]
    DiskLayer(#[from] OpenError),
    #[error("the disk")]
    Disk(#[from] StackError),
    #[error(transparent)]
    Kvm(#[from] KvmError),
}

/// The zygote. What can be refused for little is refused before gigabytes are copied.
pub fn load(kvm: &Kvm, request: &Load, descriptors: &mut Descriptors) -> Result<FrozenVm, LoadError> {
    let chain = Chain::open(take_chain(&request.chain, descriptors)?)?;
    let head = chain.head();
    let mut payload = decode(chain.state())?;
    check_host(kvm, head, &payload, request.memory_limit_bytes)?;
    for vcpu in &mut payload.vm.vcpus {
        vcpu.hide_what_no_guest_has();
    }
    let layers = take_layers(head, &payload.devices, request, descriptors)?;

    let layout = forkd_memory::Layout::new(head.manifest().layout.size())?;
    if pages::layout(&layout)? != head.manifest().layout {
        return Err(LoadError::Regions(layout.size()));
    }
    let ram = GuestRam::allocate(layout)?;
    chain.assemble(&RamPages::new(&ram)?)?;
    let devices = FrozenDevices { state: payload.devices, layers };
    Ok(FrozenVm::new(ram, payload.vm, devices))
}

fn decode(state: &VmState) -> Result<Payload, LoadError> {
    let found = state.version();
    if found != PAYLOAD_VERSION {
        return Err(LoadError::PayloadVersion { found });
    }
    let payload: Payload = serde_json::from_slice(state.payload()).map_err(LoadError::Payload)?;
    let vcpus = payload.vm.vcpus.len();
    if !(1..=usize::from(MAX_VCPUS)).contains(&vcpus) {
        return Err(LoadError::Vcpus { found: vcpus });
    }
    if !payload.devices.is_whole() {
        return Err(LoadError::Devices);
    }
    Ok(payload)
}

/// Whether the guest can go on here.
fn check_host(kvm: &Kvm, head: &Snapshot, payload: &Payload, memory_limit: u64) -> Result<(), LoadError> {
    // The manifest is what others go by; the state is what the guest was told.
    let needed = payload.vm.vcpus.iter().flat_map(|vcpu| features::names(vcpu.cpuid())).collect();
    let named = head.manifest().cpu.features.iter().cloned().collect();
    let differ: Vec<String> =
        std::collections::BTreeSet::symmetric_difference(&needed, &named).cloned().collect();
    if !differ.is_empty() {
        return Err(LoadError::Features(differ));
    }
    head.check_cpu(&features::of_host(kvm)?)?;
    head.check_memory(memory_limit)?;
    // Here, so that no branch of a VM that is forked from this has to.
    state::msr_indices(kvm)?;
    Ok(())
}

/// The layers of each disk, all of them what the manifest says: checked here, unless the caller has checked them. The state says which disk each belongs to.
fn take_layers(
    head: &Snapshot,
    devices: &DevicesState,
    request: &Load,
    descriptors: &mut Descriptors,
) -> Result<Vec<LayerStack>, LoadError> {
    let named = &head.manifest().disk_layers;
    let found = usize::from(request.disk_bases) + usize::from(request.disk_layers);
    let of_disk = |disk: &DiskState| u64::from(disk.has_base) + u64::from(disk.layers);
    let of_state: u64 = devices.disks().map(of_disk).sum();
    for expected in [named.len(), usize::try_from(of_state).unwrap_or(usize::MAX)] {
        if found != expected {
            return Err(LoadError::DiskLayers { found, expected });
        }
    }
    let mut named = named.iter().enumerate();
    let mut take = |descriptor| {
        let file = File::from(descriptors.take(descriptor)?);
        let (index, layer) = named.next().ok_or(DeviceError::Missing(descriptor))?;
        let name = format!("disk layer {index} of snapshot {}", head.label());
        match request.disks_checked {
            true => layer.check_length(name.as_ref(), &file)?,
            false => layer.check(name.as_ref(), &file)?,
        }
        Ok::<_, LoadError>(file)
    };
    let mut stacks = Vec::new();
    for state in devices.disks() {
        let base = state.has_base.then(|| take(Descriptor::DiskBase)).transpose()?;
        let frozen = (0..state.layers).map(|_| take(Descriptor::DiskLayer)).collect::<Result<_, _>>()?;
        stacks.push(LayerStack::restore(state, base, frozen)?);
    }
    Ok(stacks)
}
