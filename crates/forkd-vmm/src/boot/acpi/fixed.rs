//! The tables of fixed format: FADT and MADT.

use acpi_tables::Aml;
use acpi_tables::fadt::{FADT, FADTBuilder, Flags};
use acpi_tables::gas::{AccessSize, AddressSpace, GAS};
use acpi_tables::madt::{EnabledStatus, IoApic, ProcessorLocalApic};
use acpi_tables::sdt::Sdt;

use super::{OEM_ID, OEM_REVISION, OEM_TABLE_ID, RESET_PORT, RESET_VALUE, SLEEP_PORT, SLEEP_STATUS_PORT};

/// Bits of the FADT's boot architecture flags. The bit for a keyboard controller is not among them: the VM has no such controller.
const NO_VGA: u16 = 1 << 2;
const NO_CMOS_RTC: u16 = 1 << 5;

const HYPERVISOR: [u8; 8] = *b"forkd\0\0\0";

const LOCAL_APIC: u32 = 0xfee0_0000;
const IO_APIC: u32 = 0xfec0_0000;
/// What KVM's I/O APIC says of itself.
const IO_APIC_ID: u8 = 0;
const FIRST_GSI: u32 = 0;

const MADT_HEADER: u32 = 44;
const MADT_REVISION: u8 = 5;
const MADT_LOCAL_APIC: usize = 36;
/// Type 4, 6 bytes: on all processors (0xff), with the bus's own polarity and trigger mode (0), at pin LINT1.
const LOCAL_APIC_NMI: [u8; 6] = [4, 6, 0xff, 0, 0, 1];

/// The FADT: what kind of platform this is, and its registers.
pub fn fadt(dsdt: u64) -> FADT {
    // There are no buttons. The flags say "not in fixed hardware", where the guest would look for them otherwise.
    let mut fadt = FADTBuilder::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION)
        .dsdt_64(dsdt)
        .flag(Flags::Wbinvd)
        .flag(Flags::PwrButton)
        .flag(Flags::SlpButton)
        .flag(Flags::ResetRegSup)
        .flag(Flags::Headless)
        .flag(Flags::HwReducedAcpi);
    fadt.iapc_boot_arch = (NO_VGA | NO_CMOS_RTC).into();
    fadt.reset_reg = port(RESET_PORT);
    fadt.reset_value = RESET_VALUE;
    fadt.sleep_control_reg = port(SLEEP_PORT);
    fadt.sleep_status_reg = port(SLEEP_STATUS_PORT);
    fadt.hypervisor_vendor_identity = u64::from_le_bytes(HYPERVISOR).into();
    fadt.finalize()
}

fn port(number: u16) -> GAS {
    GAS::new(AddressSpace::SystemIo, 8, 0, AccessSize::ByteAccess, u64::from(number))
}

/// The MADT: processors and interrupt controllers. The crate's own type has no entry for NMIs, so this is a plain table.
pub fn madt(vcpus: u8) -> Sdt {
    let mut madt = Sdt::new(*b"APIC", MADT_HEADER, MADT_REVISION, OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    madt.write_u32(MADT_LOCAL_APIC, LOCAL_APIC);
    for id in 0..vcpus {
        ProcessorLocalApic::new(id, id, EnabledStatus::Enabled).to_aml_bytes(&mut madt);
    }
    IoApic::new(IO_APIC_ID, IO_APIC, FIRST_GSI).to_aml_bytes(&mut madt);
    madt.append_slice(&LOCAL_APIC_NMI);
    madt
}
