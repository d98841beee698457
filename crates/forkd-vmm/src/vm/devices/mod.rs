//! The devices of a VM, wired to KVM: registers to exits, notifications to ioeventfds, interrupts to irqfds.
//!
//! | device | guest addresses | interrupt |
//! |---|---|---|
//! | console | ports 0x3f8 to 0x3ff | 4 |
//! | virtio-mmio number n: first disk, network, vsock, entropy, other disks | 0xd000_0000 + n * 0x1000 | 5 + n |
//! | generation id | 16 bytes of memory | 16 |
//!
//! vCPU threads handle register accesses; one thread ([`worker`]) handles queues and the host's descriptors. Parked, they
//! hold no lock, and everything with a descriptor is in here, where the thread that commands them can reach it.

mod event;
mod frozen;
mod line;
mod serial_input;
mod slot;
pub mod worker;

pub use frozen::{DevicesState, FrozenDevices};

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex, PoisonError};

use forkd_devices::disk::{Layer, LayerStack, LayeredDisk, StackError};
use forkd_devices::serial::{CappedLog, SerialPort, SerialPortError};
use forkd_devices::virtio::block::{Block, DiskName};
use forkd_devices::virtio::net::{NetDevice, NetError, NetSettings};
use forkd_devices::virtio::rng::Rng;
use forkd_devices::virtio::transport::{Interrupt, MmioTransport, QueueSizeError, RestoreError, WINDOW};
use forkd_devices::virtio::vsock::{GuestCid, VsockDevice, VsockError};
use forkd_memory::GuestRam;
use forkd_proto::control::{self, Descriptor, MAX_DISKS};
use kvm_ioctls::VmFd;
use rustix::event::epoll;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};
use vmm_sys_util::eventfd::EventFd;

use super::hardware::KvmError;
use super::mailbox::Mailbox;
use crate::boot::acpi::GED_GSI;
use line::Line;
use slot::{AnySlot, Slot};

/// Where the generation id is: beside the ACPI tables, outside of what the guest takes for its RAM.
pub const GENERATION_ID: GuestAddress = GuestAddress(0xd_0000);
const SERIAL_GSI: u32 = 4;

/// The numbers of the virtio devices: where they are, and by which lines they interrupt.
const FIRST_DISK: u32 = 0;
const NET: u32 = 1;
const VSOCK: u32 = 2;
const ENTROPY: u32 = 3;
/// Behind all others, which have been where they are since there was one disk.
const SECOND_DISK: u32 = 4;
const _: () = assert!(slot::gsi(SECOND_DISK) as usize + MAX_DISKS - 1 <= GED_GSI as usize);

/// The numbers of the disks, in order.
fn disk_numbers() -> impl Iterator<Item = u32> {
    [FIRST_DISK].into_iter().chain(SECOND_DISK..)
}

/// What messages call a virtio device.
fn name(number: u32) -> &'static str {
    match number {
        FIRST_DISK => "the disk",
        NET => "the network device",
        VSOCK => "the vsock device",
        ENTROPY => "the entropy device",
        _ => "another disk",
    }
}

/// What the console's log may grow to.
const SERIAL_LIMIT: u64 = 1 << 20;

/// The serial number of a disk: its place among the VM's disks, as the guest can find it.
fn disk_name(index: usize) -> DiskName {
    let name = match index {
        0 => "forkd-root".to_owned(),
        index => format!("forkd-disk-{index}"),
    };
    let mut padded = DiskName::default();
    padded.iter_mut().zip(name.bytes()).for_each(|(place, byte)| *place = byte);
    padded
}

/// A device could not be made.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    #[error("{0:?} did not come with the request")]
    Missing(Descriptor),
    #[error("the devices asked for are not those of the frozen VM")]
    Different,
    #[error("the disk")]
    Disk(#[from] StackError),
    #[error("disk {0} does not exist")]
    NoDisk(usize),
    #[error("{found} new top layers for {expected} disks")]
    Tops { found: usize, expected: usize },
    #[error("the network device")]
    Net(#[from] NetError),
    #[error("the vsock device")]
    Vsock(#[from] VsockError),
    #[error("the console")]
    SerialPort(#[from] SerialPortError),
    #[error("input for a console, but the VM has no console")]
    NoSerial,
    #[error("cannot wait for the console's input: {0}")]
    SerialInput(io::Error),
    #[error(transparent)]
    Queue(#[from] QueueSizeError),
    #[error("saved device state")]
    Restore(#[from] RestoreError),
    #[error(transparent)]
    Kvm(#[from] KvmError),
    #[error("a descriptor for a device")]
    Io(#[from] io::Error),
    #[error("the generation id does not fit into guest memory")]
    GenerationId,
}

/// The descriptors of a request, by what they are for.
pub struct Descriptors(Vec<(Descriptor, OwnedFd)>);

impl Descriptors {
    pub fn new(descriptors: Vec<(Descriptor, OwnedFd)>) -> Descriptors {
        Descriptors(descriptors)
    }

    pub fn take(&mut self, wanted: Descriptor) -> Result<OwnedFd, DeviceError> {
        match self.0.iter().position(|(descriptor, _)| *descriptor == wanted) {
            // In order: a chain has several of a kind.
            Some(index) => Ok(self.0.remove(index).1),
            None => Err(DeviceError::Missing(wanted)),
        }
    }
}

/// Where a virtio device is.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    pub address: u64,
    pub len: u64,
    pub gsi: u32,
}

/// All devices of a VM.
pub struct Devices {
    pub mailbox: Option<Mailbox>,
    serial: Option<Mutex<SerialPort>>,
    serial_input: Option<OwnedFd>,
    disks: Vec<Slot<Block>>,
    net: Option<Slot<NetDevice>>,
    vsock: Option<Slot<VsockDevice>>,
    entropy: Option<Slot<Rng>>,
    generation: Line,
    /// What the worker waits on.
    epoll: OwnedFd,
    /// Tells the worker that a driver has changed a device.
    poke: EventFd,
}

impl Devices {
    /// Devices that no driver has seen.
    pub fn new(
        wanted: &control::Devices,
        vm: &VmFd,
        ram: &GuestRam,
        descriptors: &mut Descriptors,
    ) -> Result<Devices, DeviceError> {
        let memory = ram.memory();
        let mut devices = Devices::none(vm)?;
        if wanted.serial {
            let log = CappedLog::new(File::from(descriptors.take(Descriptor::Serial)?), SERIAL_LIMIT)?;
            devices.serial = Some(Mutex::new(SerialPort::new(Line::new(vm, SERIAL_GSI)?.shared(), log)));
        }
        devices.serial_input = serial_input::take(wanted, descriptors)?;
        for disk in &wanted.disks {
            let base = match disk.base {
                true => Some(File::from(descriptors.take(Descriptor::DiskBase)?)),
                false => None,
            };
            let stack = LayerStack::new(disk.bytes, base, take_layers(disk.layers, descriptors)?)?;
            devices.add_disk(disk, vm, stack, descriptors, |block, line| {
                Ok(MmioTransport::new(block, memory.clone(), line)?)
            })?;
        }
        if let Some(net) = wanted.net {
            let settings = NetSettings { mac: net.mac, mtu: net.mtu };
            let net = NetDevice::new(settings, descriptors.take(Descriptor::Tap)?)?;
            devices.net =
                Some(Slot::new(NET, vm, |line| Ok(MmioTransport::new(net, memory.clone(), line)?))?);
        }
        if let Some(vsock) = wanted.vsock {
            let listener = UnixListener::from(descriptors.take(Descriptor::Vsock)?);
            let vsock = VsockDevice::new(GuestCid::try_from(u64::from(vsock.cid))?, listener)?;
            devices.vsock =
                Some(Slot::new(VSOCK, vm, |line| Ok(MmioTransport::new(vsock, memory.clone(), line)?))?);
        }
        if wanted.entropy {
            let rng = Rng::new(File::from(descriptors.take(Descriptor::Entropy)?));
            devices.entropy =
                Some(Slot::new(ENTROPY, vm, |line| Ok(MmioTransport::new(rng, memory.clone(), line)?))?);
        }
        devices.mailbox = take_mailbox(wanted, descriptors)?;
        new_generation(memory)?;
        devices.register()?;
        Ok(devices)
    }

    /// No device yet.
    fn none(vm: &VmFd) -> Result<Devices, DeviceError> {
        Ok(Devices {
            mailbox: None,
            serial: None,
            serial_input: None,
            disks: Vec::new(),
            net: None,
            vsock: None,
            entropy: None,
            generation: Line::new(vm, GED_GSI)?,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io::Error::from)?,
            poke: event::new()?,
        })
    }

    /// Puts the next disk into its place, with an empty top layer above `stack`.
    fn add_disk(
        &mut self,
        wanted: &control::Disk,
        vm: &VmFd,
        stack: LayerStack,
        descriptors: &mut Descriptors,
        make: impl FnOnce(Block, Arc<dyn Interrupt>) -> Result<MmioTransport<Block>, DeviceError>,
    ) -> Result<(), DeviceError> {
        let top = File::from(descriptors.take(Descriptor::DiskTop)?);
        let disk = LayeredDisk::with_empty_top(stack, top, wanted.limit_bytes)?;
        let index = self.disks.len();
        let number = disk_numbers().nth(index).ok_or(DeviceError::NoDisk(index))?;
        let block = Block::new(disk, disk_name(index)).read_only(wanted.read_only);
        self.disks.push(Slot::new(number, vm, |line| make(block, line))?);
        Ok(())
    }

    /// The virtio devices that are there.
    fn slots(&self) -> impl Iterator<Item = &dyn AnySlot> {
        let disks = self.disks.iter().map(|slot| slot as &dyn AnySlot);
        let net = self.net.as_ref().map(|slot| slot as &dyn AnySlot);
        let vsock = self.vsock.as_ref().map(|slot| slot as &dyn AnySlot);
        let entropy = self.entropy.as_ref().map(|slot| slot as &dyn AnySlot);
        disks.chain([net, vsock, entropy].into_iter().flatten())
    }

    /// Where the virtio devices are: the guest is told in its ACPI tables.
    pub fn virtio(&self) -> impl Iterator<Item = Place> {
        let place = |number| Place { address: slot::address(number), len: WINDOW, gsi: slot::gsi(number) };
        self.slots().map(AnySlot::number).map(place)
    }

    pub fn serial_read(&self, offset: u8) -> u8 {
        self.with_serial(|serial| serial.read(offset)).unwrap_or(0xff)
    }

    pub fn serial_write(&self, offset: u8, value: u8) {
        self.with_serial(|serial| serial.write(offset, value));
    }

    /// Calls with the console. If that makes room for input, the worker looks for some.
    fn with_serial<T>(&self, call: impl FnOnce(&mut SerialPort) -> T) -> Option<T> {
        let mut serial = self.serial.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        let was_full = serial.room() == 0;
        let result = call(&mut serial);
        if was_full && serial.room() > 0 {
            let _ = self.poke.write(1);
        }
        Some(result)
    }

    pub fn mmio_read(&self, address: u64, data: &mut [u8]) {
        data.fill(0xff);
        for slot in self.slots() {
            if let Some(offset) = slot::offset(slot.number(), address) {
                slot.read(offset, data);
            }
        }
    }

    pub fn mmio_write(&self, address: u64, data: &[u8]) {
        for slot in self.slots() {
            if let Some(offset) = slot::offset(slot.number(), address) {
                slot.write(offset, data);
                // A driver that starts or resets its device changes what the worker waits for.
                let _ = self.poke.write(1);
            }
        }
    }
}

/// The frozen layers of a disk that was written before.
fn take_layers(count: u8, descriptors: &mut Descriptors) -> Result<Vec<Layer>, DeviceError> {
    let open = |number| {
        let file = File::from(descriptors.take(Descriptor::DiskLayer)?);
        Layer::open(file).map_err(|source| StackError::Frozen { number, source }.into())
    };
    (1..=usize::from(count)).map(open).collect()
}

fn take_mailbox(
    wanted: &control::Devices,
    descriptors: &mut Descriptors,
) -> Result<Option<Mailbox>, DeviceError> {
    match wanted.mailbox {
        true => Ok(Some(Mailbox::new(descriptors.take(Descriptor::Mailbox)?))),
        false => Ok(None),
    }
}

/// Gives the guest a generation id that no other has.
fn new_generation(memory: &GuestMemoryMmap) -> Result<(), DeviceError> {
    let mut id = [0; 16];
    rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty()).map_err(io::Error::from)?;
    memory.write_slice(&id, GENERATION_ID).map_err(|_| DeviceError::GenerationId)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guests that were frozen go on at the same addresses.
    #[test]
    fn disks_leave_the_other_devices_where_they_are() {
        let numbers: Vec<u32> = disk_numbers().take(MAX_DISKS).collect();
        assert_eq!(numbers, [0, 4, 5, 6]);
        assert!([NET, VSOCK, ENTROPY].iter().all(|number| !numbers.contains(number)));
        assert_eq!((slot::address(numbers[0]), slot::gsi(numbers[0])), (0xd000_0000, 5));
        assert_eq!((slot::address(numbers[1]), slot::gsi(numbers[1])), (0xd000_4000, 9));
    }

    #[test]
    fn a_guest_can_tell_its_disks_apart() {
        assert_eq!(&disk_name(0), b"forkd-root\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(&disk_name(1), b"forkd-disk-1\0\0\0\0\0\0\0\0");
    }
}
