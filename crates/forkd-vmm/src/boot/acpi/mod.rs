//! The ACPI tables: how the guest finds its processors, its devices, and the way to switch itself off.
//!
//! ```text
//! RSDP ──▶ XSDT ──┬──▶ FADT ──▶ DSDT   devices and the sleep state, as AML
//! 0xe0000         └──▶ MADT            processors and interrupt controllers
//! ```
//!
//! All of them are in the part of the first megabyte that a PC's firmware is in. It is not RAM in the memory map, so the
//! guest leaves it alone.
//!
//! The platform is "hardware-reduced": no PM timer, no fixed events, no system control interrupt. Linux then also leaves
//! the PIT and the 8259 alone, and takes all its interrupts from the I/O APIC.

mod dsdt;
mod fixed;

use std::collections::HashSet;

use acpi_tables::Aml;
use acpi_tables::rsdp::Rsdp;
use acpi_tables::xsdt::XSDT;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryError, GuestMemoryMmap};

use super::reset_vector::RESET_VECTOR;

/// The interrupt that tells the guest that its generation id has changed. It is edge-triggered.
pub const GED_GSI: u32 = 16;
/// The sleep control register. The guest writes [`SLEEP_POWER_OFF`] to switch itself off.
pub const SLEEP_PORT: u16 = 0x600;
/// The sleep status register. Linux writes 0x80 here, to clear the wake status, before it writes to [`SLEEP_PORT`].
pub const SLEEP_STATUS_PORT: u16 = 0x601;
/// SLP_EN, and the type of \_S5 in SLP_TYP.
pub const SLEEP_POWER_OFF: u8 = 1 << 5 | SLEEP_TYPE_S5 << 2;
/// The reset register. The guest writes [`RESET_VALUE`] to start again; Linux does so by way of the reset vector.
pub const RESET_PORT: u16 = 0x602;
pub const RESET_VALUE: u8 = 1;

/// Where the guest says that its kernel has panicked. It reads here what it may say.
pub const PANIC_PORT: u16 = 0x505;

const SLEEP_TYPE_S5: u8 = 5;
/// The interrupt of COM1.
const SERIAL_GSI: u32 = 4;

const TABLES_START: u64 = 0xe_0000;
const TABLES_END: u64 = RESET_VECTOR.0;
const ALIGNMENT: u64 = 16;

const GENERATION_ID_SIZE: usize = 16;
const GENERATION_ID_ALIGNMENT: u64 = 8;

/// Devices are named `V000` to `VFFF`.
const MAX_DEVICES: usize = 0x1000;

const OEM_ID: [u8; 6] = *b"FORKD ";
const OEM_TABLE_ID: [u8; 8] = *b"FORKDVM ";
const OEM_REVISION: u32 = 1;

/// What the tables describe.
#[derive(Debug, Clone, Copy)]
pub struct Acpi<'a> {
    /// Their APIC ids are 0 and up, as KVM numbers vCPUs.
    pub vcpus: u8,
    pub virtio: &'a [VirtioMmio],
    /// A GUID in guest memory, outside of RAM as the guest knows it. The VMM changes it and then raises [`GED_GSI`].
    pub generation_id: GuestAddress,
}

/// The place of a virtio device. KVM's I/O APIC has pins for the interrupts 0 to 23.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VirtioMmio {
    pub address: u64,
    pub len: u64,
    pub gsi: u32,
}

#[derive(Debug, thiserror::Error)]
pub enum AcpiError {
    #[error("the ACPI tables need more than the {} KiB there are for them", (TABLES_END - TABLES_START) >> 10)]
    TooLarge,
    #[error("a virtio device of {len:#x} bytes at {address:#x} is not below 4 GiB")]
    Address { address: u64, len: u64 },
    #[error("two devices have the interrupt {0}")]
    Interrupt(u32),
    #[error(
        "the generation id at {:#x} is not aligned to 8 bytes, in guest memory and beside the ACPI tables",
        .0.0
    )]
    GenerationId(GuestAddress),
    #[error("the ACPI tables cannot be written: {0}")]
    Memory(#[from] GuestMemoryError),
}

/// Writes all tables and returns the address of the RSDP, where the guest begins to read.
pub fn write(memory: &GuestMemoryMmap, acpi: &Acpi<'_>) -> Result<GuestAddress, AcpiError> {
    if acpi.virtio.len() > MAX_DEVICES {
        return Err(AcpiError::TooLarge);
    }
    check_interrupts(acpi.virtio)?;

    // A table holds the addresses of others, so those that nothing follows from come first.
    let rsdp = GuestAddress(TABLES_START);
    let mut tables = Tables { memory, end: (TABLES_START + Rsdp::len() as u64).next_multiple_of(ALIGNMENT) };
    let dsdt = tables.place(&dsdt::dsdt(acpi)?)?;
    let fadt = tables.place(&fixed::fadt(dsdt))?;
    let madt = tables.place(&fixed::madt(acpi.vcpus))?;
    let mut xsdt = XSDT::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    xsdt.add_entry(fadt);
    xsdt.add_entry(madt);
    let xsdt = tables.place(&xsdt)?;
    memory.write_slice(&bytes_of(&Rsdp::new(OEM_ID, xsdt)), rsdp)?;

    check_generation_id(&tables, acpi.generation_id)?;
    Ok(rsdp)
}

/// The tables that have been written.
struct Tables<'a> {
    memory: &'a GuestMemoryMmap,
    /// Where the next one goes.
    end: u64,
}

impl Tables<'_> {
    fn place(&mut self, table: &dyn Aml) -> Result<u64, AcpiError> {
        let bytes = bytes_of(table);
        let start = self.end;
        let end = start + bytes.len() as u64;
        if end > TABLES_END {
            return Err(AcpiError::TooLarge);
        }
        self.memory.write_slice(&bytes, GuestAddress(start))?;
        self.end = end.next_multiple_of(ALIGNMENT);
        Ok(start)
    }
}

fn bytes_of(table: &dyn Aml) -> Vec<u8> {
    let mut bytes = Vec::new();
    table.to_aml_bytes(&mut bytes);
    bytes
}

/// The tables say that no interrupt is shared. A driver whose interrupt has an owner already does not start.
fn check_interrupts(virtio: &[VirtioMmio]) -> Result<(), AcpiError> {
    let mut taken = HashSet::from([SERIAL_GSI, GED_GSI]);
    match virtio.iter().find(|device| !taken.insert(device.gsi)) {
        Some(device) => Err(AcpiError::Interrupt(device.gsi)),
        None => Ok(()),
    }
}

fn check_generation_id(tables: &Tables<'_>, at: GuestAddress) -> Result<(), AcpiError> {
    let aligned = at.0.is_multiple_of(GENERATION_ID_ALIGNMENT);
    let in_memory = tables.memory.check_range(at, GENERATION_ID_SIZE);
    let before_tables = at.0.saturating_add(GENERATION_ID_SIZE as u64) <= TABLES_START;
    let after_tables = at.0 >= tables.end;
    if aligned && in_memory && (before_tables || after_tables) {
        Ok(())
    } else {
        Err(AcpiError::GenerationId(at))
    }
}

#[cfg(test)]
mod tests;
