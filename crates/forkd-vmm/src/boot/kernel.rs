//! The kernel in guest memory, and the page that tells it about the machine.

use std::fs::File;

use forkd_memory::GuestRam;
use linux_loader::configurator::linux::LinuxBootConfigurator;
use linux_loader::configurator::{BootConfigurator, BootParams};
use linux_loader::loader::bootparam::{boot_e820_entry, boot_params};
use linux_loader::loader::elf::Elf;
use linux_loader::loader::{Cmdline, KernelLoader, load_cmdline};
use vm_memory::{Bytes, GuestAddress};

/// Where boot parameters are.
pub const ZERO_PAGE: GuestAddress = GuestAddress(0x7000);
const COMMAND_LINE: GuestAddress = GuestAddress(0x2_0000);
const COMMAND_LINE_SIZE: usize = 0x1_0000;
/// The end of low memory, as it has been since 1981.
const LOW_MEMORY_END: u64 = 0x9_fc00;
const HIGH_MEMORY: GuestAddress = GuestAddress(0x10_0000);

const E820_RAM: u32 = 1;
/// "A loader without a number of its own."
const LOADER: u8 = 0xff;
const BOOT_FLAG: u16 = 0xaa55;
const HEADER_MAGIC: u32 = 0x5372_6448;

#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    #[error("cannot load the kernel: {0}")]
    Load(linux_loader::loader::Error),
    #[error("cannot read the initial RAM disk")]
    Initramfs(#[source] std::io::Error),
    #[error(
        "an initial RAM disk of {size} bytes does not fit behind the kernel, which ends at {kernel_end:#x}"
    )]
    TooLittleMemory { kernel_end: u64, size: u64 },
    #[error("the command line is not plain text, or longer than {COMMAND_LINE_SIZE} bytes")]
    CommandLine,
    #[error("the boot parameters do not fit into guest memory")]
    Parameters,
}

/// Loads an ELF kernel and its initial RAM disk, and returns the address of the first instruction.
pub fn load(
    ram: &GuestRam,
    mut kernel: File,
    initramfs: Option<File>,
    command_line: &str,
    rsdp: GuestAddress,
) -> Result<GuestAddress, KernelError> {
    let memory = ram.memory();
    let loaded = Elf::load(memory, None, &mut kernel, Some(HIGH_MEMORY)).map_err(KernelError::Load)?;

    let mut text = Cmdline::new(COMMAND_LINE_SIZE).map_err(|_| KernelError::CommandLine)?;
    text.insert_str(command_line).map_err(|_| KernelError::CommandLine)?;
    load_cmdline(memory, COMMAND_LINE, &text).map_err(|_| KernelError::CommandLine)?;

    let mut parameters = boot_params::default();
    parameters.hdr.type_of_loader = LOADER;
    parameters.hdr.boot_flag = BOOT_FLAG;
    parameters.hdr.header = HEADER_MAGIC;
    parameters.hdr.cmd_line_ptr = u32::try_from(COMMAND_LINE.0).map_err(|_| KernelError::Parameters)?;
    parameters.hdr.cmdline_size = u32::try_from(command_line.len()).map_err(|_| KernelError::CommandLine)?;
    parameters.hdr.kernel_alignment = 0x100_0000;
    parameters.acpi_rsdp_addr = rsdp.0;
    if let Some(initramfs) = initramfs {
        let (address, size) = load_initramfs(ram, initramfs, loaded.kernel_end)?;
        parameters.hdr.ramdisk_image = address;
        parameters.hdr.ramdisk_size = size;
    }
    for (entry, (addr, size)) in parameters.e820_table.iter_mut().zip(memory_map(ram)) {
        *entry = boot_e820_entry { addr, size, r#type: E820_RAM };
        parameters.e820_entries += 1;
    }
    LinuxBootConfigurator::write_bootparams(&BootParams::new(&parameters, ZERO_PAGE), memory)
        .map_err(|_| KernelError::Parameters)?;
    Ok(loaded.kernel_load)
}

/// Puts the RAM disk at the end of the first region, where no kernel unpacks itself to.
fn load_initramfs(ram: &GuestRam, mut file: File, kernel_end: u64) -> Result<(u32, u32), KernelError> {
    let size = file.metadata().map_err(KernelError::Initramfs)?.len();
    let end = ram.layout().regions().first().map_or(0, |region| region.len);
    let address = end.saturating_sub(size) / 4096 * 4096;
    if address < kernel_end {
        return Err(KernelError::TooLittleMemory { kernel_end, size });
    }
    let too_large = |_| KernelError::TooLittleMemory { kernel_end, size };
    let (address, length) =
        (u32::try_from(address).map_err(too_large)?, u32::try_from(size).map_err(too_large)?);
    ram.memory()
        .read_exact_volatile_from(GuestAddress(u64::from(address)), &mut file, length as usize)
        .map_err(|error| KernelError::Initramfs(std::io::Error::other(error.to_string())))?;
    Ok((address, length))
}

/// RAM as the kernel is told of it: what is below and what is above the hole that the first PC left at 640 KiB.
fn memory_map(ram: &GuestRam) -> Vec<(u64, u64)> {
    let mut map = vec![(0, LOW_MEMORY_END)];
    for region in ram.layout().regions() {
        let start = region.start.0.max(HIGH_MEMORY.0);
        let end = region.start.0 + region.len;
        if end > start {
            map.push((start, end - start));
        }
    }
    map
}
