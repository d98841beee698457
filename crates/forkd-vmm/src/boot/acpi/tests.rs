//! The tables are read back from guest memory the way a guest finds them.

use super::*;

const GENERATION_ID: GuestAddress = GuestAddress(0xd_0000);

fn memory() -> GuestMemoryMmap {
    GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 2 << 20)]).unwrap()
}

fn devices(count: u32) -> Vec<VirtioMmio> {
    (0..count)
        .map(|number| VirtioMmio {
            address: 0xd000_0000 + u64::from(number) * 0x1000,
            len: 0x1000,
            gsi: 17 + number,
        })
        .collect()
}

fn acpi(vcpus: u8, virtio: &[VirtioMmio]) -> Acpi<'_> {
    Acpi { vcpus, virtio, generation_id: GENERATION_ID }
}

fn read(memory: &GuestMemoryMmap, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    memory.read_slice(&mut bytes, GuestAddress(at)).unwrap();
    bytes
}

fn sum(bytes: &[u8]) -> u8 {
    bytes.iter().copied().fold(0, u8::wrapping_add)
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(bytes[offset..offset + 4].try_into().unwrap())
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(bytes[offset..offset + 8].try_into().unwrap())
}

fn count(bytes: &[u8], wanted: &[u8]) -> usize {
    bytes.windows(wanted.len()).filter(|part| *part == wanted).count()
}

/// A table with a right checksum, whole inside of its window.
fn table(memory: &GuestMemoryMmap, at: u64, signature: &[u8; 4]) -> Vec<u8> {
    let len = u32_at(&read(memory, at, 8), 4);
    assert!(at >= TABLES_START && at + u64::from(len) <= TABLES_END);
    let bytes = read(memory, at, usize::try_from(len).unwrap());
    assert_eq!(&bytes[..4], signature);
    assert_eq!(sum(&bytes), 0, "checksum of {}", signature.escape_ascii());
    bytes
}

struct Found {
    fadt: Vec<u8>,
    madt: Vec<u8>,
    dsdt: Vec<u8>,
}

/// Follows all addresses from the RSDP on.
fn find(memory: &GuestMemoryMmap, rsdp: GuestAddress) -> Found {
    assert_eq!(rsdp, GuestAddress(0xe_0000));
    let rsdp = read(memory, rsdp.0, 36);
    assert_eq!(&rsdp[..8], b"RSD PTR ");
    assert_eq!((sum(&rsdp[..20]), sum(&rsdp)), (0, 0));
    assert_eq!((rsdp[15], u32_at(&rsdp, 20)), (2, 36));

    let xsdt = table(memory, u64_at(&rsdp, 24), b"XSDT");
    assert_eq!(xsdt.len(), 36 + 2 * 8);
    let fadt = table(memory, u64_at(&xsdt, 36), b"FACP");
    let madt = table(memory, u64_at(&xsdt, 44), b"APIC");
    let dsdt = table(memory, u64_at(&fadt, 140), b"DSDT");
    Found { fadt, madt, dsdt }
}

fn written(acpi: &Acpi<'_>) -> Found {
    let memory = memory();
    let rsdp = write(&memory, acpi).unwrap();
    find(&memory, rsdp)
}

#[test]
fn the_fadt_names_the_registers() {
    let fadt = written(&acpi(1, &[])).fadt;
    // I/O space, 8 bits, byte access, 0x600 and up.
    let port = |number: u8| [1, 8, 0, 1, number, 6, 0, 0, 0, 0, 0, 0];
    assert_eq!((fadt.len(), fadt[8]), (276, 6));
    // WBINVD, no fixed power and sleep buttons, reset register, headless, hardware-reduced.
    assert_eq!(u32_at(&fadt, 112), 1 | 1 << 4 | 1 << 5 | 1 << 10 | 1 << 12 | 1 << 20);
    assert_eq!(fadt[109..111], [0b10_0100, 0]);
    assert_eq!((&fadt[116..128], fadt[128]), (&port(2)[..], 1));
    assert_eq!(fadt[244..256], port(0));
    assert_eq!(fadt[256..268], port(1));
    assert_eq!(&fadt[268..276], b"forkd\0\0\0");
}

#[test]
fn the_madt_has_every_vcpu_and_one_io_apic() {
    for vcpus in [1, 2, 32, 254] {
        let madt = written(&acpi(vcpus, &[])).madt;
        assert_eq!(u32_at(&madt, 36), 0xfee0_0000);
        let mut entries = &madt[44..];
        for id in 0..vcpus {
            let (entry, rest) = entries.split_at(8);
            assert_eq!(entry, [0, 8, id, id, 1, 0, 0, 0]);
            entries = rest;
        }
        let (io_apic, nmi) = entries.split_at(12);
        assert_eq!(io_apic, [1, 12, 0, 0, 0, 0, 0xc0, 0xfe, 0, 0, 0, 0]);
        assert_eq!(nmi, [4, 6, 0xff, 0, 0, 1]);
    }
}

#[test]
fn the_dsdt_has_every_virtio_device() {
    let virtio = devices(24);
    let dsdt = written(&acpi(32, &virtio)).dsdt;
    assert_eq!(count(&dsdt, b"LNRO0005"), virtio.len());
    for (number, device) in virtio.iter().enumerate() {
        // Fixed memory, writable; then an interrupt: consumer, edge, high, exclusive, one number.
        let mut resources = vec![0x86, 9, 0, 1];
        resources.extend(u32::try_from(device.address).unwrap().to_le_bytes());
        resources.extend(u32::try_from(device.len).unwrap().to_le_bytes());
        resources.extend([0x89, 6, 0, 0b0011, 1]);
        resources.extend(device.gsi.to_le_bytes());
        assert_eq!(count(&dsdt, &resources), 1);
        assert_eq!(count(&dsdt, format!("V{number:03X}").as_bytes()), 1);
    }
}

#[test]
fn the_dsdt_has_the_platform_devices() {
    let mut platform = acpi(1, &[]);
    let dsdt = written(&platform).dsdt;
    // Package of 4 elements; byte 5, zero, zero, zero.
    assert_eq!(count(&dsdt, b"\x08_S5_\x12\x07\x04\x0a\x05\0\0\0"), 1);
    assert_eq!(SLEEP_POWER_OFF, 0x34);
    // PNP0501; ports 0x3f8 to 0x3ff and the interrupt 4.
    assert_eq!(count(&dsdt, &[0x0c, 0x41, 0xd0, 0x05, 0x01]), 1);
    let serial = [0x47, 1, 0xf8, 3, 0xf8, 3, 1, 8, 0x89, 6, 0, 0b0011, 1, 4, 0, 0, 0];
    assert_eq!(count(&dsdt, &serial), 1);
    assert_eq!(count(&dsdt, b"ACPI0013"), 1);
    // Present, enabled, shown and working; one port, 0x505.
    assert_eq!(count(&dsdt, b"_HID\x0dQEMU0001\0\x08_STA\x0a\x0f"), 1);
    assert_eq!(count(&dsdt, &[0x47, 1, 5, 5, 5, 5, 1, 1, 0x79]), 1);
    assert_eq!(count(&dsdt, &[0x89, 6, 0, 0b0011, 1, 16, 0, 0, 0]), 1);
    // Notify, with a path of two names from the root.
    assert_eq!(count(&dsdt, b"\x86\\\x2e_SB_VGEN\x0a\x80"), 1);
    assert_eq!(count(&dsdt, b"_CID\x0dVM_Gen_Counter\0"), 1);
    assert_eq!(count(&dsdt, b"ADDR\x12\x08\x02\x0c\0\0\x0d\0\0"), 1);

    let high =
        GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 2 << 20), (GuestAddress(0x5_0000_0000), 4096)])
            .unwrap();
    platform.generation_id = GuestAddress(0x5_0000_0010);
    let rsdp = write(&high, &platform).unwrap();
    assert_eq!(count(&find(&high, rsdp).dsdt, b"ADDR\x12\x06\x02\x0a\x10\x0a\x05"), 1);
}

#[test]
fn too_many_devices_are_refused() {
    let memory = memory();
    memory.write_slice(&[0xaa; 4096], GuestAddress(TABLES_END)).unwrap();
    for number in [2_000, 5_000] {
        let error = write(&memory, &acpi(1, &devices(number))).unwrap_err();
        assert!(matches!(error, AcpiError::TooLarge), "{error}");
    }
    assert_eq!(read(&memory, TABLES_END, 4096), [0xaa; 4096]);
    let most = devices(1_500);
    let rsdp = write(&memory, &acpi(1, &most)).unwrap();
    assert_eq!(count(&find(&memory, rsdp).dsdt, b"LNRO0005"), most.len());
    assert_eq!(read(&memory, TABLES_END, 4096), [0xaa; 4096]);
}

#[test]
fn devices_above_four_gib_are_refused() {
    for (address, len, good) in [
        (0xffff_f000, 0x1000, true),
        (0xffff_f000, 0x1001, false),
        (1 << 32, 0x1000, false),
        (u64::MAX, 1, false),
        (0xd000_0000, u64::MAX, false),
    ] {
        let device = [VirtioMmio { address, len, gsi: 5 }];
        let result = write(&memory(), &acpi(1, &device));
        match result {
            Ok(_) => assert!(good, "{address:#x}"),
            Err(error) => assert!(!good && matches!(error, AcpiError::Address { .. }), "{error}"),
        }
    }
}

#[test]
fn interrupts_have_one_owner() {
    let device = |gsi| VirtioMmio { address: 0xd000_0000, len: 0x1000, gsi };
    for (gsis, owned) in [([5, 5], 5), ([5, GED_GSI], GED_GSI), ([4, 5], 4)] {
        let error = write(&memory(), &acpi(1, &gsis.map(device))).unwrap_err();
        assert!(matches!(error, AcpiError::Interrupt(gsi) if gsi == owned), "{error}");
    }
}

#[test]
fn a_generation_id_in_the_wrong_place_is_refused() {
    for (address, good) in [
        (0xd_0000, true),
        (0xd_fff0, true),
        (0xf_fff0, true),
        (0xd_fff8, false),
        (0xe_0000, false),
        (0xe_0100, false),
        (0xd_0004, false),
        (2 << 20, false),
        (u64::MAX - 7, false),
    ] {
        let mut platform = acpi(1, &[]);
        platform.generation_id = GuestAddress(address);
        let result = write(&memory(), &platform);
        match result {
            Ok(_) => assert!(good, "{address:#x}"),
            Err(error) => assert!(!good && matches!(error, AcpiError::GenerationId(_)), "{error}"),
        }
    }
}

#[test]
fn memory_without_the_window_is_refused() {
    let small = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 64 << 10)]).unwrap();
    let error = write(&small, &acpi(1, &[])).unwrap_err();
    assert!(matches!(error, AcpiError::Memory(_)), "{error}");
}
