//! A VM that can run, and its frozen form.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use forkd_devices::disk::{DiskError, Layer, NewTop};
use forkd_memory::GuestRam;
use forkd_proto::control::{self, Event, KvmCounts};
use kvm_ioctls::{Kvm, VmFd};

use super::bus::Bus;
use super::devices::{Descriptors, DeviceError, Devices, FrozenDevices};
use super::hardware::{Hardware, KvmError};
use super::prefault::Prefault;
use super::state::{StateError, VmState};
use super::thread::Thread;
use super::vcpu::{self, Crew, Vcpu};

/// A VM with its threads. It is running or paused; its owner knows which.
pub struct LiveVm {
    pub ram: GuestRam,
    wanted: control::Devices,
    crew: Arc<Crew>,
    vcpus: Vec<Vcpu>,
    device_thread: Thread,
    vm: VmFd,
    kvm: Arc<Kvm>,
    /// The pages that the guest uses first, after a fork and after a branch.
    prefault: Arc<Prefault>,
    /// Readable while there are notices.
    pub ready: OwnedFd,
}

/// A VM without KVM: memory and state, from which any number of VMs can be made.
pub struct FrozenVm {
    pub ram: GuestRam,
    pub state: VmState,
    pub devices: FrozenDevices,
    /// The pages that VMs forked from this use first.
    pub prefault: Arc<Prefault>,
}

impl FrozenVm {
    pub fn new(ram: GuestRam, state: VmState, devices: FrozenDevices) -> FrozenVm {
        FrozenVm { ram, state, devices, prefault: Arc::default() }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum VmError {
    #[error(transparent)]
    Kvm(#[from] KvmError),
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error("cannot start the VM's threads")]
    Threads(#[from] io::Error),
    #[error("a vCPU is not parked")]
    NotParked,
    #[error("cannot sync the layers of the disk")]
    Disk(#[source] DiskError),
    #[error("the VM has ended")]
    Ended,
}

impl LiveVm {
    /// Gives each vCPU of `hardware` a thread, and the devices one. The VM is paused.
    pub fn new(
        ram: GuestRam,
        hardware: Hardware,
        wanted: control::Devices,
        devices: Devices,
    ) -> Result<LiveVm, VmError> {
        let Hardware { vcpus, vm, kvm } = hardware;
        let crew = Crew::new(Bus::new(ram.memory().clone(), devices))?;
        let ready = crew.ready()?;
        let vcpus = vcpus.into_iter().enumerate();
        let vcpus = vcpus
            .map(|(index, vcpu)| Vcpu::start(vcpu, index, Arc::clone(&crew)))
            .collect::<Result<_, _>>()?;
        let device_thread = vcpu::start_device_thread(Arc::clone(&crew))?;
        let prefault = Arc::default();
        Ok(LiveVm { ram, wanted, crew, vcpus, device_thread, vm, kvm, prefault, ready })
    }

    /// Makes a VM of a frozen one, with descriptors of its own. The VM is paused.
    pub fn restore(
        kvm: &Arc<Kvm>,
        frozen: &FrozenVm,
        wanted: control::Devices,
        descriptors: &mut Descriptors,
    ) -> Result<LiveVm, VmError> {
        forkd_proto::passes!();
        let vcpus = u8::try_from(frozen.state.vcpus.len()).unwrap_or(u8::MAX);
        // Before KVM maps anything: what is copied later is unmapped, with the huge page around it.
        frozen.prefault.copy(&frozen.ram);
        let hardware = Hardware::new(kvm, &frozen.ram, vcpus)?;
        frozen.state.restore(&hardware.vm, &hardware.vcpus)?;
        if let Some(vcpu) = hardware.vcpus.first() {
            frozen.prefault.map(&frozen.ram, vcpu);
        }
        // After KVM's own state: an interrupt that a device raises must not be overwritten.
        let devices = Devices::restore(&frozen.devices, &wanted, &hardware.vm, &frozen.ram, descriptors)?;
        let vm = LiveVm::new(frozen.ram.clone(), hardware, wanted, devices)?;
        Ok(LiveVm { prefault: Arc::clone(&frozen.prefault), ..vm })
    }

    pub fn run(&self) {
        vcpu::run(&self.crew);
    }

    pub fn pause(&self) {
        vcpu::pause(&self.crew, &self.vcpus, self.vcpus.len() + 1);
    }

    /// What it was made with. Its branches are made with the same: most of what a guest uses first after one, its kernel, agent and
    /// interpreters, is where it was.
    pub fn prefault(&self) -> Arc<Prefault> {
        Arc::clone(&self.prefault)
    }

    /// Copies the pages that a guest uses first, of a VM whose memory is shared with a branch since a moment ago. The VM may run.
    pub fn copy_ahead(&self) {
        self.prefault.copy(&self.ram);
    }

    /// Whether there is anything for KVM to map, and it can.
    pub fn maps_ahead(&self) -> bool {
        self.prefault.maps()
    }

    /// Has KVM map them, of a paused VM.
    pub fn map_ahead(&self) {
        if let Some(first) = self.vcpus.first()
            && let Some(vcpu) = &*first.parked()
        {
            self.prefault.map(&self.ram, vcpu);
        }
    }

    /// Makes `tops` new top layers for the disks, which do not use them yet. The VM need not be paused for it; without `tops` it is
    /// one that will not write again.
    pub fn prepare_tops(&self, tops: Option<Vec<File>>) -> Result<Vec<NewTop>, VmError> {
        let tops = self.crew.with_devices(|devices| devices.prepare_tops(tops));
        Ok(tops.ok_or(VmError::NotParked)??)
    }

    /// Takes the state of a paused VM but for its devices. The VM is as it was.
    pub fn save(&self) -> Result<VmState, VmError> {
        // The requester has no reply yet, and there is no state to continue from.
        if self.crew.has_ended() {
            return Err(VmError::Ended);
        }
        let parked: Vec<_> = self.vcpus.iter().map(Vcpu::parked).collect();
        let vcpus = parked.iter().map(|slot| slot.as_ref().ok_or(VmError::NotParked));
        let vcpus = vcpus.collect::<Result<Vec<_>, _>>()?;
        Ok(VmState::save(&self.kvm, &self.vm, &vcpus)?)
    }

    /// Freezes what a paused VM has written to its disks; `tops` take what it will write. Says of each disk whether what was its top
    /// layer is a frozen layer now. Of a process that forks, each side freezes its own.
    pub fn freeze_disks(&self, tops: Vec<NewTop>) -> Vec<bool> {
        self.crew.with_devices(|devices| devices.freeze_disks(tops)).unwrap_or_default()
    }

    /// Takes the state of the devices of a paused VM, whose disks are frozen.
    pub fn save_devices(&self) -> Result<FrozenDevices, VmError> {
        self.crew.with_devices(|devices| devices.save(&self.wanted)).ok_or(VmError::NotParked)
    }

    /// Ends the threads of a paused VM and closes everything but its memory.
    pub fn end(self) -> GuestRam {
        vcpu::quit(&self.crew, self.vcpus, self.device_thread);
        self.ram
    }

    /// The same in a process that was forked while the VM was paused, and has none of its threads.
    pub fn forget(self) -> GuestRam {
        vcpu::forget(&self.crew, self.vcpus, self.device_thread);
        self.ram
    }

    /// The VM's devices, and a second descriptor of everything that a successor takes over.
    pub fn own_descriptors(&self) -> Result<(control::Devices, Vec<OwnedFd>), VmError> {
        let own = self.crew.with_devices(Devices::own_descriptors).ok_or(VmError::NotParked)??;
        Ok((self.wanted.clone(), own))
    }

    /// Looks at the files of each of the VM's disks, the top layer last. The image below is not among them.
    pub fn disk_files<T>(&self, look: impl Fn(&File) -> io::Result<T>) -> io::Result<Vec<Vec<T>>> {
        self.crew.with_devices(|devices| devices.disk_files(look)).unwrap_or_else(|| Ok(Vec::new()))
    }

    /// Makes the files of the disks' frozen layers complete.
    pub fn settle_disks(&self) -> Result<(), VmError> {
        self.crew.with_devices(Devices::settle_disks).unwrap_or(Ok(())).map_err(VmError::Disk)
    }

    /// Puts one frozen layer of a disk in the place of several.
    pub fn replace_layers(&self, disk: usize, layers: Range<usize>, layer: Layer) -> Result<(), VmError> {
        let replaced = self.crew.with_devices(|devices| devices.replace_layers(disk, layers, layer));
        Ok(replaced.ok_or(VmError::NotParked)??)
    }

    pub fn disk_count(&self) -> usize {
        self.wanted.disks.len()
    }

    /// The events since the last call. With [`Event::Exited`] the VM has ended.
    pub fn take_notices(&self) -> Vec<Event> {
        self.crew.take_notices()
    }

    pub fn exits(&self) -> u64 {
        self.crew.exits()
    }

    /// What KVM has counted, of all vCPUs.
    pub fn counts(&self) -> Option<KvmCounts> {
        self.vcpus.iter().try_fold(KvmCounts::default(), |sum, vcpu| {
            let KvmCounts { exits, page_faults } = vcpu.counts()?;
            Some(KvmCounts { exits: sum.exits + exits, page_faults: sum.page_faults + page_faults })
        })
    }

    pub fn vcpu_count(&self) -> usize {
        self.vcpus.len()
    }
}
