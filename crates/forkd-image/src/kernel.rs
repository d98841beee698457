//! A kernel as the ELF image that a VM is started from.
//!
//! Distributions ship a bzImage: a small loader followed by the compressed ELF kernel. Unpacking it here, once, spares
//! every boot the decompression in the guest, which takes seconds in the software machine.
//!
//! ```text
//! 0          0x1f1                (setup_sects + 1) * 512        + payload_offset        + payload_length
//! | boot sector | setup header … | protected-mode loader        | compressed ELF | u32 |
//!                 HdrS at 0x202                                                    uncompressed size
//! ```

use std::io::{self, Read};

/// The largest kernel that is unpacked. Debian's is 66 MB; a bomb is refused before it fills the memory.
pub const MAX_KERNEL: u64 = 512 << 20;

const HEADER_MAGIC: (usize, &[u8]) = (0x202, b"HdrS");
const SETUP_SECTS: usize = 0x1f1;
const VERSION: usize = 0x206;
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;
/// The first boot protocol that says where the payload is (Linux 2.6.26).
const VERSION_WITH_PAYLOAD: u16 = 0x0208;

const ELF_MAGIC: &[u8] = b"\x7fELF";
const LZ4_LEGACY_MAGIC: &[u8] = &[0x02, 0x21, 0x4c, 0x18];
/// Blocks of the legacy LZ4 frame hold this much each, the last one less.
const LZ4_LEGACY_BLOCK: usize = 8 << 20;

/// The file is not a kernel that can be started.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    #[error("neither an ELF file nor a bzImage")]
    UnknownFormat,
    #[error("an ELF file, but not a 64-bit x86 executable")]
    NotX86_64,
    #[error("a bzImage of boot protocol {major}.{minor:02}; 2.08 or later is needed")]
    TooOld { major: u8, minor: u8 },
    #[error("a truncated bzImage: its payload ends at byte {end}, the file at {size}")]
    Truncated { end: u64, size: u64 },
    #[error("a payload in an unknown compression (it begins with {0:02x?})")]
    UnknownCompression(Vec<u8>),
    #[error("the kernel unpacks to more than {} MiB", MAX_KERNEL >> 20)]
    TooLarge,
    #[error("the payload of the bzImage ({compression}) does not unpack")]
    Corrupt { compression: &'static str, source: io::Error },
}

/// Returns the ELF kernel in `file`, which is either that already or a bzImage.
pub fn to_elf(file: Vec<u8>) -> Result<Vec<u8>, KernelError> {
    let elf = if file.starts_with(ELF_MAGIC) { file } else { unpack(payload(&file)?)? };
    check_elf(&elf)?;
    Ok(elf)
}

/// Finds the compressed payload of a bzImage.
fn payload(file: &[u8]) -> Result<&[u8], KernelError> {
    let (at, magic) = HEADER_MAGIC;
    if file.get(at..at + magic.len()) != Some(magic) {
        return Err(KernelError::UnknownFormat);
    }
    let version = u16::from_le_bytes(field(file, VERSION)?);
    if version < VERSION_WITH_PAYLOAD {
        let [minor, major] = version.to_le_bytes();
        return Err(KernelError::TooOld { major, minor });
    }
    let [setup_sects] = field(file, SETUP_SECTS)?;
    // Zero stands for four, for the sake of very old loaders.
    let setup_sects = if setup_sects == 0 { 4 } else { u64::from(setup_sects) };
    let offset = u32::from_le_bytes(field(file, PAYLOAD_OFFSET)?);
    let length = u32::from_le_bytes(field(file, PAYLOAD_LENGTH)?);
    let start = (setup_sects + 1) * 512 + u64::from(offset);
    let end = start + u64::from(length);
    let truncated = KernelError::Truncated { end, size: file.len() as u64 };
    match (usize::try_from(start), usize::try_from(end)) {
        (Ok(start), Ok(end)) => file.get(start..end).ok_or(truncated),
        _ => Err(truncated),
    }
}

fn field<const N: usize>(file: &[u8], at: usize) -> Result<[u8; N], KernelError> {
    file.get(at..at + N)
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or(KernelError::Truncated { end: (at + N) as u64, size: file.len() as u64 })
}

/// Unpacks a payload by its magic number. What follows the compressed stream (the uncompressed size, padding) is left
/// alone: none of the decoders needs it.
fn unpack(payload: &[u8]) -> Result<Vec<u8>, KernelError> {
    match payload {
        [0x1f, 0x8b, ..] => read_all("gzip", flate2::read::GzDecoder::new(payload)),
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => read_all("xz", liblzma::read::XzDecoder::new(payload)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            let corrupt = |source| KernelError::Corrupt { compression: "zstd", source };
            let decoder = zstd::stream::read::Decoder::with_buffer(payload).map_err(corrupt)?;
            read_all("zstd", decoder.single_frame())
        }
        [magic @ .., _] if magic.starts_with(LZ4_LEGACY_MAGIC) => unpack_lz4_legacy(payload),
        _ => Err(KernelError::UnknownCompression(payload.iter().copied().take(6).collect())),
    }
}

fn read_all(compression: &'static str, decoder: impl Read) -> Result<Vec<u8>, KernelError> {
    let mut elf = Vec::new();
    let read = decoder.take(MAX_KERNEL + 1).read_to_end(&mut elf);
    let read = read.map_err(|source| KernelError::Corrupt { compression, source })?;
    if read as u64 > MAX_KERNEL { Err(KernelError::TooLarge) } else { Ok(elf) }
}

/// The legacy LZ4 frame, which only the Linux kernel still writes: the magic, then blocks, each behind its compressed
/// length. Nothing marks the end, and the uncompressed size follows the last block.
fn unpack_lz4_legacy(payload: &[u8]) -> Result<Vec<u8>, KernelError> {
    let corrupt = |message: String| KernelError::Corrupt {
        compression: "lz4",
        source: io::Error::new(io::ErrorKind::InvalidData, message),
    };
    let mut elf = Vec::new();
    let mut rest = &payload[LZ4_LEGACY_MAGIC.len()..];
    // Four bytes left are the uncompressed size, not the length of a block.
    while let Some((length, blocks)) = rest.split_first_chunk::<4>().filter(|(_, blocks)| !blocks.is_empty())
    {
        let length = u32::from_le_bytes(*length) as usize;
        let block = blocks.get(..length).ok_or_else(|| corrupt("a block ends past the payload".into()))?;
        let unpacked = lz4_flex::block::decompress(block, LZ4_LEGACY_BLOCK)
            .map_err(|error| corrupt(error.to_string()))?;
        elf.extend_from_slice(&unpacked);
        if elf.len() as u64 > MAX_KERNEL {
            return Err(KernelError::TooLarge);
        }
        rest = &blocks[length..];
    }
    Ok(elf)
}

fn check_elf(elf: &[u8]) -> Result<(), KernelError> {
    const CLASS_64: u8 = 2;
    const LITTLE_ENDIAN: u8 = 1;
    const MACHINE_X86_64: u16 = 62;
    if !elf.starts_with(ELF_MAGIC) {
        return Err(KernelError::UnknownFormat);
    }
    let machine = elf.get(18..20).map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]));
    match (elf.get(4), elf.get(5), machine) {
        (Some(&CLASS_64), Some(&LITTLE_ENDIAN), Some(MACHINE_X86_64)) => Ok(()),
        _ => Err(KernelError::NotX86_64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    /// An ELF header and some megabytes that compress neither to nothing nor not at all.
    fn elf() -> Vec<u8> {
        elf_of(3_000_000)
    }

    fn elf_of(words: u32) -> Vec<u8> {
        let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
        elf.resize(64, 0);
        elf[18] = 62;
        elf.extend((0..words).flat_map(|i| (i / 7).to_le_bytes()));
        elf
    }

    /// The image in every compression, by name.
    fn bzimages(elf: &[u8]) -> [(&'static str, Vec<u8>); 4] {
        let zstd = zstd::encode_all(elf, 1).unwrap();
        [("gzip", gzip(elf)), ("xz", xz(elf)), ("zstd", zstd), ("lz4", lz4_legacy(elf))]
            .map(|(name, compressed)| (name, bzimage(&compressed, elf.len())))
    }

    fn bzimage(compressed: &[u8], size: usize) -> Vec<u8> {
        let mut file = vec![0u8; 5 * 512];
        file[SETUP_SECTS] = 4;
        file[0x202..0x206].copy_from_slice(b"HdrS");
        file[VERSION..VERSION + 2].copy_from_slice(&0x020fu16.to_le_bytes());
        file[PAYLOAD_OFFSET..PAYLOAD_OFFSET + 4].copy_from_slice(&100u32.to_le_bytes());
        let length = u32::try_from(compressed.len() + 4).unwrap();
        file[PAYLOAD_LENGTH..PAYLOAD_LENGTH + 4].copy_from_slice(&length.to_le_bytes());
        file.resize(file.len() + 100, 0xcc);
        file.extend_from_slice(compressed);
        file.extend_from_slice(&u32::try_from(size).unwrap().to_le_bytes());
        file.extend_from_slice(&[0; 700]); // what follows the payload
        file
    }

    fn gzip(data: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }

    /// As the kernel's build does it: the x86 filter before LZMA2, checked with CRC32.
    fn xz(data: &[u8]) -> Vec<u8> {
        use liblzma::stream::{Check, Filters, LzmaOptions, Stream};
        let mut filters = Filters::new();
        filters.x86().lzma2(&LzmaOptions::new_preset(0).unwrap());
        let stream = Stream::new_stream_encoder(&filters, Check::Crc32).unwrap();
        let mut encoder = liblzma::write::XzEncoder::new_stream(Vec::new(), stream);
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }

    fn lz4_legacy(data: &[u8]) -> Vec<u8> {
        let mut frame = LZ4_LEGACY_MAGIC.to_vec();
        for block in data.chunks(LZ4_LEGACY_BLOCK) {
            let block = lz4_flex::block::compress(block);
            frame.extend_from_slice(&u32::try_from(block.len()).unwrap().to_le_bytes());
            frame.extend_from_slice(&block);
        }
        frame
    }

    #[test]
    fn every_compression_unpacks() {
        let elf = elf();
        for (name, file) in bzimages(&elf) {
            assert!(to_elf(file).unwrap() == elf, "{name} unpacks to something else");
        }
        assert!(to_elf(elf.clone()).unwrap() == elf);
    }

    /// The fuzzer begins with small images of each kind. `FORKD_WRITE_SEEDS=1` writes them anew.
    #[test]
    fn the_fuzzer_s_seeds_are_good_kernels() {
        let seeds = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/kernel");
        let elf = elf_of(200);
        for (name, file) in bzimages(&elf) {
            let seed = seeds.join(name);
            if std::env::var_os("FORKD_WRITE_SEEDS").is_some() {
                std::fs::create_dir_all(&seeds).unwrap();
                std::fs::write(&seed, &file).unwrap();
            }
            assert!(to_elf(std::fs::read(&seed).unwrap()).unwrap() == elf, "{name}");
        }
    }

    #[test]
    fn what_is_no_kernel_is_refused_by_name() {
        let elf = elf();
        let good = bzimage(&gzip(&elf), elf.len());
        let refused = |file: Vec<u8>| to_elf(file).unwrap_err().to_string();

        assert_eq!(refused(b"#!/bin/sh".to_vec()), "neither an ELF file nor a bzImage");
        assert_eq!(refused(b"\x7fELF\x01\x01".to_vec()), "an ELF file, but not a 64-bit x86 executable");
        assert!(refused(good[..3000].to_vec()).starts_with("a truncated bzImage"));
        let mut old = good.clone();
        old[VERSION..VERSION + 2].copy_from_slice(&0x0204u16.to_le_bytes());
        assert_eq!(refused(old), "a bzImage of boot protocol 2.04; 2.08 or later is needed");
        let mut odd = good.clone();
        odd[2660] = b'?';
        assert!(refused(odd).starts_with("a payload in an unknown compression"));
        let mut flipped = good.clone();
        flipped[4000] ^= 0x10;
        assert_eq!(refused(flipped), "the payload of the bzImage (gzip) does not unpack");
        let not_elf = bzimage(&gzip(b"just text"), 9);
        assert_eq!(refused(not_elf), "neither an ELF file nor a bzImage");
    }

    #[test]
    fn a_bomb_is_refused() {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        let zeroes = vec![0; 1 << 20];
        for _ in 0..=MAX_KERNEL >> 20 {
            encoder.write_all(&zeroes).unwrap();
        }
        let bomb = encoder.finish().unwrap();
        assert!(matches!(to_elf(bzimage(&bomb, 0)), Err(KernelError::TooLarge)));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(mut file in proptest::collection::vec(any::<u8>(), 0x250..8192), setup in 0u8..6) {
            file[0x202..0x206].copy_from_slice(b"HdrS");
            file[VERSION + 1] = 2;
            file[SETUP_SECTS] = setup;
            file[PAYLOAD_OFFSET + 2..PAYLOAD_OFFSET + 4].fill(0);
            file[PAYLOAD_LENGTH + 2..PAYLOAD_LENGTH + 4].fill(0);
            let _ = to_elf(file);
        }
    }
}
