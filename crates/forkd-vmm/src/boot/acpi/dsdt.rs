//! The DSDT: devices that no bus announces, as AML.
//!
//! ```text
//! \_S5            the sleep type of power-off
//! \_SB.COM1       serial port
//! \_SB.VGEN       VM generation id
//! \_SB.GED        turns its interrupt into a notification of VGEN
//! \_SB.PEVT       takes the news that the kernel has panicked
//! \_SB.V000 …     virtio-mmio
//! ```

use acpi_tables::Aml;
use acpi_tables::aml::{
    Device, EISAName, IO, Interrupt, Memory32Fixed, Method, Name, Notify, Package, Path, ResourceTemplate,
    Scope, ZERO,
};
use acpi_tables::sdt::Sdt;

use super::{
    Acpi, AcpiError, GED_GSI, OEM_ID, OEM_REVISION, OEM_TABLE_ID, PANIC_PORT, SERIAL_GSI, SLEEP_TYPE_S5,
    VirtioMmio,
};

const HEADER: u32 = 36;
/// From revision 2 on, AML's integers have 64 bits.
const REVISION: u8 = 2;

const SERIAL_PORT: u16 = 0x3f8;
const SERIAL_PORTS: u8 = 8;
/// The device is present, enabled, shown and working.
const PRESENT_AND_WORKING: u8 = 0x0f;
/// "The generation id has changed."
const GENERATION_CHANGED: u8 = 0x80;

pub fn dsdt(acpi: &Acpi<'_>) -> Result<Sdt, AcpiError> {
    let mut devices = Vec::new();
    serial(&mut devices);
    generation_id(acpi.generation_id.0, &mut devices);
    generic_event(&mut devices);
    panic_event(&mut devices);
    for (number, device) in acpi.virtio.iter().enumerate() {
        virtio(number, device, &mut devices)?;
    }

    let mut aml = Vec::new();
    let power_off = Package::new(vec![&SLEEP_TYPE_S5, &ZERO, &ZERO, &ZERO]);
    Name::new(Path::new("_S5_"), &power_off).to_aml_bytes(&mut aml);
    aml.extend(Scope::raw(Path::new("\\_SB_"), devices));

    let mut table = Sdt::new(*b"DSDT", HEADER, REVISION, OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    table.append_slice(&aml);
    Ok(table)
}

fn serial(aml: &mut Vec<u8>) {
    let ports = IO::new(SERIAL_PORT, SERIAL_PORT, 1, SERIAL_PORTS);
    Device::new(
        Path::new("COM1"),
        vec![
            &Name::new(Path::new("_HID"), &EISAName::new("PNP0501")),
            &Name::new(Path::new("_UID"), &ZERO),
            &Name::new(Path::new("_CRS"), &ResourceTemplate::new(vec![&ports, &interrupt(SERIAL_GSI)])),
        ],
    )
    .to_aml_bytes(aml);
}

/// Drivers know this device by its `_CID`, which Microsoft's specification gives in this form. It is longer than ACPI
/// allows; Linux takes it, in capitals.
fn generation_id(address: u64, aml: &mut Vec<u8>) {
    let low = address & u64::from(u32::MAX);
    let high = address >> 32;
    Device::new(
        Path::new("VGEN"),
        vec![
            &Name::new(Path::new("_HID"), &"FORK0001"),
            &Name::new(Path::new("_CID"), &"VM_Gen_Counter"),
            &Name::new(Path::new("_DDN"), &"VM_Gen_Counter"),
            &Name::new(Path::new("ADDR"), &Package::new(vec![&low, &high])),
        ],
    )
    .to_aml_bytes(aml);
}

/// Hardware-reduced platforms have no general-purpose events. This device stands in for them: the guest calls its `_EVT`
/// with the number of the interrupt.
fn generic_event(aml: &mut Vec<u8>) {
    Device::new(
        Path::new("GED_"),
        vec![
            &Name::new(Path::new("_HID"), &"ACPI0013"),
            &Name::new(Path::new("_UID"), &ZERO),
            &Name::new(Path::new("_CRS"), &ResourceTemplate::new(vec![&interrupt(GED_GSI)])),
            &Method::new(
                Path::new("_EVT"),
                1,
                true,
                vec![&Notify::new(&Path::new("\\_SB_.VGEN"), &GENERATION_CHANGED)],
            ),
        ],
    )
    .to_aml_bytes(aml);
}

/// Linux finds the device by the name that QEMU gave it.
fn panic_event(aml: &mut Vec<u8>) {
    let port = IO::new(PANIC_PORT, PANIC_PORT, 1, 1);
    Device::new(
        Path::new("PEVT"),
        vec![
            &Name::new(Path::new("_HID"), &"QEMU0001"),
            &Name::new(Path::new("_STA"), &PRESENT_AND_WORKING),
            &Name::new(Path::new("_CRS"), &ResourceTemplate::new(vec![&port])),
        ],
    )
    .to_aml_bytes(aml);
}

fn virtio(number: usize, device: &VirtioMmio, aml: &mut Vec<u8>) -> Result<(), AcpiError> {
    let &VirtioMmio { address, len, gsi } = device;
    let outside = || AcpiError::Address { address, len };
    let base = u32::try_from(address).map_err(|_| outside())?;
    let size = u32::try_from(len).map_err(|_| outside())?;
    if address + len > 1 << 32 {
        return Err(outside());
    }
    let registers = Memory32Fixed::new(true, base, size);
    Device::new(
        Path::new(&format!("V{number:03X}")),
        vec![
            &Name::new(Path::new("_HID"), &"LNRO0005"),
            &Name::new(Path::new("_UID"), &number),
            &Name::new(Path::new("_CCA"), &1u8),
            &Name::new(Path::new("_CRS"), &ResourceTemplate::new(vec![&registers, &interrupt(gsi)])),
        ],
    )
    .to_aml_bytes(aml);
    Ok(())
}

/// Edge-triggered, active high, exclusive: a write to an irqfd is an edge, and nothing there would hold a level.
fn interrupt(gsi: u32) -> Interrupt {
    Interrupt::new(true, true, false, false, gsi)
}
