//! Fresh entropy for the kernel's generator: the one thing that no ordinary write can credit.
#![expect(unsafe_code, reason = "the random device's requests are ioctls, which rustix leaves to its caller")]

use std::fs::File;
use std::io;

use rustix::ioctl::{NoArg, Opcode, Setter, ioctl, opcode};

/// How much is handed over in one request.
const CHUNK: usize = 64;
const BITS_PER_BYTE: i32 = 8;

/// `RNDADDENTROPY` of <linux/random.h>: its number is that of a request with two integers.
const ADD: Opcode = opcode::write::<[i32; 2]>(b'R', 3);
const RESEED: Opcode = opcode::none(b'R', 7);
const _: () = assert!(ADD == 0x4008_5203 && RESEED == 0x5207);

/// `struct rand_pool_info`, with room for a chunk.
#[repr(C)]
struct Pool {
    entropy_bits: i32,
    size: i32,
    bytes: [u8; CHUNK],
}

/// Mixes the seed in, credits it in full, and makes the generator use it now, not at its next turn.
pub fn credit(seed: &[u8]) -> io::Result<()> {
    let device = File::options().write(true).open("/dev/urandom")?;
    for chunk in seed.chunks(CHUNK) {
        let size = i32::try_from(chunk.len()).unwrap_or(0);
        let mut bytes = [0; CHUNK];
        bytes.iter_mut().zip(chunk).for_each(|(to, from)| *to = *from);
        let pool = Pool { entropy_bits: size * BITS_PER_BYTE, size, bytes };
        // SAFETY: the kernel reads the two integers and then `size` bytes behind them, and `Pool` has that many.
        let request = unsafe { Setter::<ADD, Pool>::new(pool) };
        // SAFETY: the request reads its argument and changes no memory of this process.
        unsafe { ioctl(&device, request)? };
    }
    // SAFETY: this request has no argument.
    let request = unsafe { NoArg::<RESEED>::new() };
    // SAFETY: the request touches no memory of this process.
    unsafe { ioctl(&device, request)? };
    Ok(())
}
