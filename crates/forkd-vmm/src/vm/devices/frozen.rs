//! The devices of a VM that was frozen, and devices made from them.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::{Mutex, PoisonError};

use forkd_devices::disk::{DiskError, DiskState, Frozen, Layer, LayerStack, NewTop};
use forkd_devices::serial::{CappedLog, SerialPort, SerialPortState};
use forkd_devices::virtio::net::{NetDevice, NetState};
use forkd_devices::virtio::rng::Rng;
use forkd_devices::virtio::transport::{Interrupt, MmioTransport, TransportState};
use forkd_devices::virtio::vsock::{GuestCid, VsockDevice, VsockState};
use forkd_memory::GuestRam;
use forkd_proto::control::{self, Descriptor, Disk};
use kvm_ioctls::VmFd;
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};

use super::line::Line;
use super::slot::Slot;
use super::{
    DISK, Descriptors, DeviceError, Devices, ENTROPY, NET, SERIAL_GSI, SERIAL_LIMIT, VSOCK, make_block,
    new_generation, serial_input, take_mailbox,
};

/// Saved states, and the layers of the disk that all VMs made from it share. No descriptor but those of the layers.
pub struct FrozenDevices {
    pub state: DevicesState,
    /// There if the VM has a disk.
    pub layers: Option<LayerStack>,
}

/// The states of all devices: plain data.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DevicesState {
    wanted: control::Devices,
    #[serde(rename = "console")]
    serial: Option<SerialPortState>,
    disk: Option<(TransportState, DiskState)>,
    net: Option<(TransportState, NetState)>,
    vsock: Option<(TransportState, VsockState)>,
    entropy: Option<TransportState>,
}

impl DevicesState {
    /// Whether there is a state for each device that the VM has, and for no other.
    pub fn is_whole(&self) -> bool {
        let DevicesState { wanted, serial, disk, net, vsock, entropy } = self;
        (wanted.serial, wanted.disk.is_some(), wanted.net.is_some(), wanted.vsock.is_some(), wanted.entropy)
            == (serial.is_some(), disk.is_some(), net.is_some(), vsock.is_some(), entropy.is_some())
    }

    /// What the disk's layers must be.
    pub fn disk(&self) -> Option<&DiskState> {
        self.disk.as_ref().map(|(_, disk)| disk)
    }
}

impl Devices {
    /// Makes `top` a new top layer for the disk, if there is one, and does not use it yet. The VM is paused; without a `top`
    /// it is one that will not write again.
    pub fn prepare_top(&self, top: Option<File>) -> Result<Option<NewTop>, DeviceError> {
        let Some(slot) = &self.disk else { return Ok(None) };
        let top = match top {
            Some(top) => top,
            None => File::from(memfd_create("top", MemfdFlags::CLOEXEC).map_err(io::Error::from)?),
        };
        Ok(Some(slot.lock().device().disk().prepare_top(top)?))
    }

    /// Freezes the disk's top layer and puts `top` above it. The VM is paused. Says whether there was anything in the layer.
    pub fn freeze_disk(&self, top: Option<NewTop>) -> bool {
        match (&self.disk, top) {
            (Some(slot), Some(top)) => slot.lock().device_mut().freeze_under(top) == Frozen::Layer,
            _ => false,
        }
    }

    /// Makes the files of the disk's frozen layers complete. The guest's requests do not wait for it.
    pub fn settle_disk(&self) -> Result<(), DiskError> {
        let stack = self.disk.as_ref().map(|slot| slot.lock().device().disk().stack().clone());
        stack.map_or(Ok(()), |stack| stack.complete())
    }

    /// Puts one frozen layer of the disk in the place of several, from one request of the guest's to the next.
    pub fn replace_layers(&self, layers: Range<usize>, layer: Layer) -> Result<(), DeviceError> {
        let slot = self.disk.as_ref().ok_or(DeviceError::NoDisk)?;
        slot.lock().device_mut().disk_mut().replace_layers(layers, layer)?;
        Ok(())
    }

    /// Looks at the files of the disk, the top layer last. The image below is not among them.
    pub fn disk_files<T>(&self, look: impl Fn(&File) -> io::Result<T>) -> io::Result<Vec<T>> {
        let Some(slot) = &self.disk else { return Ok(Vec::new()) };
        let slot = slot.lock();
        let disk = slot.device().disk();
        disk.stack().layer_files().chain([disk.top_file()]).map(look).collect()
    }

    /// A second descriptor of everything that a successor goes on with, in the order of `control::Devices::own`.
    pub fn own_descriptors(&self) -> io::Result<Vec<OwnedFd>> {
        let mut own = Vec::new();
        if let Some(serial) = &self.serial {
            let serial = serial.lock().unwrap_or_else(PoisonError::into_inner);
            own.push(serial.log().file().as_fd().try_clone_to_owned()?);
        }
        if let Some(input) = &self.serial_input {
            own.push(input.try_clone()?);
        }
        if let Some(slot) = &self.net {
            own.push(slot.lock().device().tap().try_clone()?);
        }
        if let Some(slot) = &self.vsock {
            own.push(slot.lock().device().listener().as_fd().try_clone_to_owned()?);
        }
        if let Some(slot) = &self.entropy {
            own.push(slot.lock().device().source().as_fd().try_clone_to_owned()?);
        }
        if let Some(mailbox) = &self.mailbox {
            own.push(mailbox.socket().try_clone()?);
        }
        Ok(own)
    }

    /// Takes the state of all devices. The VM is paused, and its disk has nothing in its top layer.
    pub fn save(&self, wanted: &control::Devices) -> FrozenDevices {
        let state = DevicesState {
            wanted: wanted.clone(),
            serial: self
                .serial
                .as_ref()
                .map(|serial| serial.lock().unwrap_or_else(PoisonError::into_inner).state()),
            disk: self.disk.as_ref().map(|slot| {
                let transport = slot.lock();
                let disk = transport.device().disk();
                (transport.state(), disk.state())
            }),
            net: self.net.as_ref().map(|slot| {
                let transport = slot.lock();
                (transport.state(), transport.device().save())
            }),
            vsock: self.vsock.as_ref().map(|slot| {
                let transport = slot.lock();
                (transport.state(), transport.device().save())
            }),
            entropy: self.entropy.as_ref().map(|slot| slot.lock().state()),
        };
        let layers = self.disk.as_ref().map(|slot| slot.lock().device().disk().stack().clone());
        FrozenDevices { state, layers }
    }

    /// Devices as they were when they were frozen, with descriptors and an identity of their own. `wanted` says what is
    /// this VM's own: its vsock id, and how much less it may write to its disk.
    pub fn restore(
        frozen: &FrozenDevices,
        wanted: &control::Devices,
        vm: &VmFd,
        ram: &GuestRam,
        descriptors: &mut Descriptors,
    ) -> Result<Devices, DeviceError> {
        forkd_proto::passes!();
        let FrozenDevices { state: frozen, layers } = frozen;
        if !is_family(wanted, &frozen.wanted) {
            return Err(DeviceError::Different);
        }
        let memory = ram.memory();
        let mut devices = Devices::none(vm)?;
        if let Some(state) = &frozen.serial {
            let log = CappedLog::new(File::from(descriptors.take(Descriptor::Serial)?), SERIAL_LIMIT)?;
            let serial = SerialPort::restore(state, Line::new(vm, SERIAL_GSI)?.shared(), log)?;
            devices.serial = Some(Mutex::new(serial));
        }
        devices.serial_input = serial_input::take(wanted, descriptors)?;
        if let (Some((transport, disk)), Some(layers)) = (&frozen.disk, layers) {
            let limit = wanted.disk.map_or(disk.limit, |own| own.limit_bytes.min(disk.limit));
            let block = make_block(layers.clone(), limit, descriptors)?;
            devices.disk = Some(Slot::new(DISK, vm, |line| {
                Ok(MmioTransport::restore(block, memory.clone(), line, transport)?)
            })?);
        }
        if let Some((transport, state)) = &frozen.net {
            let net = NetDevice::restored(state, descriptors.take(Descriptor::Tap)?)?;
            devices.net = Some(Slot::new(NET, vm, |line| {
                Ok(MmioTransport::restore(net, memory.clone(), line, transport)?)
            })?);
        }
        if let (Some((transport, state)), Some(own)) = (&frozen.vsock, wanted.vsock) {
            let listener = UnixListener::from(descriptors.take(Descriptor::Vsock)?);
            let vsock = VsockDevice::restored(state, GuestCid::try_from(u64::from(own.cid))?, listener)?;
            devices.vsock = Some(Slot::new(VSOCK, vm, |line| {
                Ok(MmioTransport::restore(vsock, memory.clone(), line, transport)?)
            })?);
        }
        if let Some(transport) = &frozen.entropy {
            let rng = Rng::new(File::from(descriptors.take(Descriptor::Entropy)?));
            devices.entropy = Some(Slot::new(ENTROPY, vm, |line| {
                Ok(MmioTransport::restore(rng, memory.clone(), line, transport)?)
            })?);
        }
        devices.mailbox = take_mailbox(wanted, descriptors)?;
        new_generation(memory)?;
        devices.generation.trigger();
        devices.register()?;
        Ok(devices)
    }
}

/// Whether devices are those that were frozen, but for what is a VM's own.
fn is_family(wanted: &control::Devices, frozen: &control::Devices) -> bool {
    let less = match (wanted.disk, frozen.disk) {
        (Some(own), Some(frozen)) => own.limit_bytes <= frozen.limit_bytes,
        (own, frozen) => own.is_none() && frozen.is_none(),
    };
    let disk =
        wanted.disk.zip(frozen.disk).map(|(own, frozen)| Disk { limit_bytes: frozen.limit_bytes, ..own });
    less && wanted.vsock.is_some() == frozen.vsock.is_some()
        && control::Devices { vsock: frozen.vsock, disk, ..wanted.clone() } == *frozen
}

#[cfg(test)]
mod tests {
    use forkd_proto::control::Vsock;

    use super::*;

    #[test]
    fn a_child_has_its_parent_s_devices_and_no_larger_disk() {
        let devices = |cid, bytes, limit_bytes| control::Devices {
            disk: Some(Disk { bytes, limit_bytes, base: true }),
            vsock: Some(Vsock { cid }),
            ..control::Devices::default()
        };
        let frozen = devices(3, 100, 50);
        assert!(is_family(&frozen, &frozen) && is_family(&devices(4, 100, 10), &frozen));
        assert!(!is_family(&devices(3, 100, 51), &frozen) && !is_family(&devices(3, 99, 50), &frozen));
        for other in [
            control::Devices { disk: None, ..frozen.clone() },
            control::Devices { vsock: None, ..frozen.clone() },
            control::Devices { serial: true, ..frozen.clone() },
        ] {
            assert!(!is_family(&other, &frozen) && !is_family(&frozen, &other));
        }
    }
}
