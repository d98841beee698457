//! Which device answers at which port and address.

use std::os::fd::OwnedFd;

use vm_memory::GuestMemoryMmap;

use super::devices::Devices;
use super::mailbox;
use crate::boot::acpi::{PANIC_PORT, RESET_PORT, RESET_VALUE, SLEEP_PORT, SLEEP_POWER_OFF};

/// What a guest may say at [`PANIC_PORT`]: that its kernel has panicked, and that it has and another kernel takes over.
const PANIC_EVENTS: u8 = 1 << 0 | 1 << 1;

const SERIAL: std::ops::RangeInclusive<u16> = 0x3f8..=0x3ff;

/// Where an [`Attack`] says what became of it: the console.
#[cfg(feature = "attacks")]
pub type Say<'a> = &'a dyn Fn(u8);
/// Called by a vCPU's thread with a port that no device has, and what the guest writes to it. A test's idea of what a guest
/// that has taken over its VM process does next.
#[cfg(feature = "attacks")]
pub type Attack = fn(u16, &[u8], Say<'_>);

#[cfg(feature = "attacks")]
pub static ATTACK: std::sync::OnceLock<Attack> = std::sync::OnceLock::new();

/// All that vCPUs reach beside memory. Their threads share it.
pub struct Bus {
    memory: GuestMemoryMmap,
    pub devices: Devices,
}

/// What an access means for the VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Continue,
    /// The guest's kernel says that it has panicked, and keeps running.
    Panicked,
    PowerOff,
    Reset,
}

impl Bus {
    pub fn new(memory: GuestMemoryMmap, devices: Devices) -> Bus {
        Bus { memory, devices }
    }

    /// `stop` becomes readable when the vCPU is to pause: a device that waits gives up then.
    pub fn port_read(&self, port: u16, data: &mut [u8], stop: &OwnedFd) {
        // Addresses without a device read as ones.
        data.fill(0xff);
        match (port, &self.devices.mailbox, data) {
            (mailbox::PORT, Some(mailbox), data @ [_, ..]) => {
                data.fill(0);
                data[0] = u8::from(mailbox.wait(&self.memory, stop));
            }
            (PANIC_PORT, _, [value]) => *value = PANIC_EVENTS,
            (port, _, [value]) if SERIAL.contains(&port) => {
                *value = self.devices.serial_read(serial_offset(port))
            }
            _ => {}
        }
    }

    pub fn port_write(&self, port: u16, data: &[u8]) -> Outcome {
        match (port, data, &self.devices.mailbox) {
            (mailbox::PORT, _, Some(mailbox)) => mailbox.answer(&self.memory),
            (SLEEP_PORT, [SLEEP_POWER_OFF, ..], _) => return Outcome::PowerOff,
            (RESET_PORT, [RESET_VALUE, ..], _) => return Outcome::Reset,
            (PANIC_PORT, [events], _) if events & PANIC_EVENTS != 0 => return Outcome::Panicked,
            (port, [value], _) if SERIAL.contains(&port) => {
                self.devices.serial_write(serial_offset(port), *value);
            }
            #[cfg(feature = "attacks")]
            (port, _, _) => {
                if let Some(attack) = ATTACK.get() {
                    attack(port, data, &|byte| self.devices.serial_write(0, byte));
                }
            }
            #[cfg(not(feature = "attacks"))]
            _ => {}
        }
        Outcome::Continue
    }

    pub fn memory_read(&self, address: u64, data: &mut [u8]) {
        self.devices.mmio_read(address, data);
    }

    pub fn memory_write(&self, address: u64, data: &[u8]) {
        self.devices.mmio_write(address, data);
    }
}

fn serial_offset(port: u16) -> u8 {
    port.to_le_bytes()[0] - SERIAL.start().to_le_bytes()[0]
}
