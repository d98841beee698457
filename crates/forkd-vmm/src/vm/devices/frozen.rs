//! The devices of a VM that was frozen, and devices made from them.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::{Mutex, PoisonError};

use forkd_devices::disk::{DiskError, DiskState, Frozen, Layer, LayerStack, NewTop};
use forkd_devices::serial::{CappedLog, SerialPort, SerialPortState};
use forkd_devices::virtio::block::Block;
use forkd_devices::virtio::net::{NetDevice, NetState};
use forkd_devices::virtio::rng::Rng;
use forkd_devices::virtio::transport::{Interrupt, MmioTransport, TransportState};
use forkd_devices::virtio::vsock::{GuestCid, VsockDevice, VsockState};
use forkd_memory::GuestRam;
use forkd_proto::control::{self, Descriptor, Disk};
use forkd_proto::one_or_many;
use kvm_ioctls::VmFd;
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};

use super::line::Line;
use super::slot::Slot;
use super::{
    Descriptors, DeviceError, Devices, ENTROPY, NET, SERIAL_GSI, SERIAL_LIMIT, VSOCK, new_generation,
    serial_input, take_mailbox,
};

/// Saved states, and the layers of the disks that all VMs made from it share. No descriptor but those of the layers.
pub struct FrozenDevices {
    pub state: DevicesState,
    /// Of each disk.
    pub layers: Vec<LayerStack>,
}

/// The states of all devices: plain data.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DevicesState {
    wanted: control::Devices,
    #[serde(rename = "console")]
    serial: Option<SerialPortState>,
    #[serde(default, rename = "disk", with = "one_or_many")]
    disks: Vec<(TransportState, DiskState)>,
    net: Option<(TransportState, NetState)>,
    vsock: Option<(TransportState, VsockState)>,
    entropy: Option<TransportState>,
}

impl DevicesState {
    /// Whether there is a state for each device that the VM has, and for no other.
    pub fn is_whole(&self) -> bool {
        let DevicesState { wanted, serial, disks, net, vsock, entropy } = self;
        (wanted.serial, wanted.disks.len(), wanted.net.is_some(), wanted.vsock.is_some(), wanted.entropy)
            == (serial.is_some(), disks.len(), net.is_some(), vsock.is_some(), entropy.is_some())
    }

    /// What the layers of each disk must be.
    pub fn disks(&self) -> impl Iterator<Item = &DiskState> {
        self.disks.iter().map(|(_, disk)| disk)
    }
}

impl Devices {
    /// Makes `tops` new top layers for the disks, and does not use them yet. Without `tops` the VM is one that will not write again.
    pub fn prepare_tops(&self, tops: Option<Vec<File>>) -> Result<Vec<NewTop>, DeviceError> {
        let tops = match tops {
            Some(tops) => tops,
            None => self.disks.iter().map(|_| unused_top()).collect::<Result<_, _>>()?,
        };
        let (found, expected) = (tops.len(), self.disks.len());
        if found != expected {
            return Err(DeviceError::Tops { found, expected });
        }
        let prepare = |(slot, top): (&Slot<Block>, File)| Ok(slot.lock().device().disk().prepare_top(top)?);
        self.disks.iter().zip(tops).map(prepare).collect()
    }

    /// Freezes the top layer of each disk and puts one of `tops` above it. The VM is paused. Says of each whether there was
    /// anything in the layer.
    pub fn freeze_disks(&self, tops: Vec<NewTop>) -> Vec<bool> {
        let freeze =
            |(slot, top): (&Slot<Block>, NewTop)| slot.lock().device_mut().freeze_under(top) == Frozen::Layer;
        self.disks.iter().zip(tops).map(freeze).collect()
    }

    /// Makes the files of the disks' frozen layers complete. The guest's requests do not wait for it.
    pub fn settle_disks(&self) -> Result<(), DiskError> {
        self.stacks().iter().try_for_each(LayerStack::complete)
    }

    /// What the VM shares of each disk with those that are made from it.
    fn stacks(&self) -> Vec<LayerStack> {
        self.disks.iter().map(|slot| slot.lock().device().disk().stack().clone()).collect()
    }

    /// Puts one frozen layer of a disk in the place of several, from one request of the guest's to the next.
    pub fn replace_layers(&self, disk: usize, layers: Range<usize>, layer: Layer) -> Result<(), DeviceError> {
        let slot = self.disks.get(disk).ok_or(DeviceError::NoDisk(disk))?;
        slot.lock().device_mut().disk_mut().replace_layers(layers, layer)?;
        Ok(())
    }

    /// Looks at the files of each disk, the top layer last. The image below is not among them.
    pub fn disk_files<T>(&self, look: impl Fn(&File) -> io::Result<T>) -> io::Result<Vec<Vec<T>>> {
        let of_disk = |slot: &Slot<Block>| {
            let slot = slot.lock();
            let disk = slot.device().disk();
            disk.stack().layer_files().chain([disk.top_file()]).map(&look).collect()
        };
        self.disks.iter().map(of_disk).collect()
    }

    /// A second descriptor of everything that a successor takes over, in the order of `control::Devices::own`.
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

    /// Takes the state of all devices. The VM is paused, and its disks have nothing in their top layers.
    pub fn save(&self, wanted: &control::Devices) -> FrozenDevices {
        let state = DevicesState {
            wanted: wanted.clone(),
            serial: self
                .serial
                .as_ref()
                .map(|serial| serial.lock().unwrap_or_else(PoisonError::into_inner).state()),
            disks: self
                .disks
                .iter()
                .map(|slot| {
                    let transport = slot.lock();
                    let disk = transport.device().disk();
                    (transport.state(), disk.state())
                })
                .collect(),
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
        FrozenDevices { state, layers: self.stacks() }
    }

    /// Devices as they were when they were frozen, with descriptors and an identity of their own. `wanted` says what is
    /// this VM's own: its vsock id, and how much less it may write to its disks.
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
        for (((transport, disk), layers), own) in frozen.disks.iter().zip(layers).zip(&wanted.disks) {
            let own = Disk { limit_bytes: own.limit_bytes.min(disk.limit), ..*own };
            devices.add_disk(&own, vm, layers.clone(), descriptors, |block, line| {
                Ok(MmioTransport::restore(block, memory.clone(), line, transport)?)
            })?;
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

/// A file in the place of a top layer that nothing will be written to.
fn unused_top() -> Result<File, DeviceError> {
    Ok(File::from(memfd_create("top", MemfdFlags::CLOEXEC).map_err(io::Error::from)?))
}

/// Whether devices are those that were frozen, but for what is a VM's own.
fn is_family(wanted: &control::Devices, frozen: &control::Devices) -> bool {
    let is_like = |(own, frozen): (&Disk, &Disk)| {
        own.limit_bytes <= frozen.limit_bytes && Disk { limit_bytes: frozen.limit_bytes, ..*own } == *frozen
    };
    wanted.disks.len() == frozen.disks.len()
        && wanted.disks.iter().zip(&frozen.disks).all(is_like)
        && wanted.vsock.is_some() == frozen.vsock.is_some()
        && control::Devices { vsock: frozen.vsock, disks: frozen.disks.clone(), ..wanted.clone() } == *frozen
}

#[cfg(test)]
mod tests {
    use forkd_proto::control::Vsock;
    use serde_json::{Value, json};

    use super::*;

    /// As it is in the state of a snapshot that was written when a VM had one disk at most.
    fn state_of_one_disk() -> Value {
        json!({
            "wanted": {
                "console": false, "console_input": false, "disk": {"bytes": 4096, "limit_bytes": 4096, "base": true},
                "disk_layers": 0, "net": null, "vsock": null, "entropy": false, "mailbox": true
            },
            "console": null,
            "disk": [
                {
                    "status": 15, "device_features_select": 1, "driver_features_select": 1, "driver_features": 4294967808u64,
                    "queue_select": 0, "interrupt_status": 0, "config_generation": 0, "fault": null, "queues": []
                },
                {"size": 4096, "has_base": true, "layers": 2, "limit": 4096}
            ],
            "net": null, "vsock": null, "entropy": null
        })
    }

    #[test]
    fn states_with_one_disk_are_the_same_in_every_version() {
        let old = state_of_one_disk();
        let state: DevicesState = serde_json::from_value(old.clone()).unwrap();
        assert!(state.is_whole());
        assert_eq!(state.disks().map(|disk| (disk.has_base, disk.layers)).collect::<Vec<_>>(), [(true, 2)]);
        assert_eq!(serde_json::to_value(&state).unwrap(), old);
    }

    #[test]
    fn a_state_has_one_for_each_disk() {
        let mut two = state_of_one_disk();
        two["disk"] = json!([two["disk"], two["disk"]]);
        let read = |value: &Value| serde_json::from_value::<DevicesState>(value.clone());
        assert!(!read(&two).unwrap().is_whole(), "the VM has one");
        two["wanted"]["disk"] = json!([two["wanted"]["disk"], two["wanted"]["disk"]]);
        let state = read(&two).unwrap();
        assert!(state.is_whole() && state.disks().count() == 2);
        assert_eq!(serde_json::to_value(&state).unwrap(), two);
        two["disk"] = Value::Null;
        assert!(!read(&two).unwrap().is_whole());
        two["disks"] = json!([]);
        assert!(read(&two).is_err(), "a later version's");
    }

    #[test]
    fn a_child_has_its_parent_s_devices_and_no_larger_disk() {
        let devices = |cid, bytes, limit_bytes| control::Devices {
            disks: vec![
                Disk { bytes: 100, limit_bytes: 50, base: true, layers: 0, read_only: false },
                Disk { bytes, limit_bytes, base: false, layers: 0, read_only: false },
            ],
            vsock: Some(Vsock { cid }),
            ..control::Devices::default()
        };
        let frozen = devices(3, 100, 50);
        assert!(is_family(&frozen, &frozen) && is_family(&devices(4, 100, 10), &frozen));
        assert!(!is_family(&devices(3, 100, 51), &frozen) && !is_family(&devices(3, 99, 50), &frozen));
        for other in [
            control::Devices { disks: frozen.disks[..1].to_vec(), ..frozen.clone() },
            control::Devices { disks: frozen.disks.iter().rev().copied().collect(), ..frozen.clone() },
            control::Devices { disks: Vec::new(), ..frozen.clone() },
            control::Devices { vsock: None, ..frozen.clone() },
            control::Devices { serial: true, ..frozen.clone() },
        ] {
            assert!(!is_family(&other, &frozen) && !is_family(&frozen, &other));
        }
    }
}
