//! The reset vector: where a PC's firmware begins, and where a kernel jumps to start again if it knows no better way.
//!
//! Linux knows no better one here. On a hardware-reduced platform it leaves the FADT's reset register alone and asks EFI;
//! where there is no EFI, it goes back to real mode and jumps to the vector. There is no firmware either, only code that
//! writes to the reset register.

use vm_memory::{Bytes, GuestAddress, GuestMemoryError, GuestMemoryMmap};

use super::acpi::{RESET_PORT, RESET_VALUE};

/// The last 16 bytes of the first megabyte.
pub const RESET_VECTOR: GuestAddress = GuestAddress(0xf_fff0);

/// In 16 bits: `mov al, RESET_VALUE; mov dx, RESET_PORT; out dx, al`, and a loop around `hlt` for a vCPU that is still there.
const CODE: [u8; 9] = {
    let [low, high] = RESET_PORT.to_le_bytes();
    [0xb0, RESET_VALUE, 0xba, low, high, 0xee, 0xf4, 0xeb, 0xfd]
};

pub fn write(memory: &GuestMemoryMmap) -> Result<(), GuestMemoryError> {
    memory.write_slice(&CODE, RESET_VECTOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_ends_with_the_first_megabyte() {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 2 << 20)]).unwrap();
        write(&memory).unwrap();
        let mut vector = [0; 17];
        memory.read_slice(&mut vector, RESET_VECTOR).unwrap();
        assert_eq!(vector[..9], [0xb0, 0x01, 0xba, 0x02, 0x06, 0xee, 0xf4, 0xeb, 0xfd]);
        assert_eq!(vector[9..], [0; 8]);
    }
}
