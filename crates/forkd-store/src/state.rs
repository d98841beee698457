//! `state.bin`: the VM's state, bytes that only the VMM understands, behind a header that anyone can check.
//!
//! ```text
//!  0        16        20                24               32               64                96
//!  | magic  | version | payload version | payload length | payload blake3 | header checksum | payload …
//!    16       u32       u32               u64              32               32 = blake3 of bytes 0 to 63
//! ```
//!
//! Numbers are little-endian. The magic has the architecture in it. Magic, version and checksum stay where they are in every
//! version, so a flipped bit is told from a newer format. The payload's own version is out here because the decoder
//! must know it before the first byte.

use crate::digest::Digest;

/// The largest state, header included. 32 vCPUs need less than 1 MiB.
pub const MAX_STATE: u64 = 64 << 20;

const MAGIC: &[u8; 16] = b"forkd-vm x86_64\n";
/// What the magic of every architecture begins with.
const FAMILY: &[u8] = b"forkd-vm ";
const VERSION: u32 = 1;

const VERSION_AT: usize = 16;
const PAYLOAD_VERSION_AT: usize = 20;
const PAYLOAD_LENGTH_AT: usize = 24;
const PAYLOAD_DIGEST_AT: usize = 32;
const CHECKSUM_AT: usize = 64;

/// The header of `state.bin`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateHeader {
    /// The VMM's number for the payload's encoding.
    pub payload_version: u32,
    /// Bytes.
    pub payload_length: u64,
    pub payload_digest: Digest,
}

/// The bytes are not a VM's state that can be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    #[error("truncated: {found} bytes, expected at least the header's {}", StateHeader::LENGTH)]
    NoHeader { found: usize },
    #[error("not a VM state: it begins with {found:02x?}, expected {MAGIC:02x?}")]
    Magic { found: [u8; 16] },
    #[error("the state of a VM of another architecture ({found}), expected x86_64")]
    Architecture { found: String },
    #[error("the header is damaged: its checksum is {found}, expected {expected}")]
    Checksum { found: Digest, expected: Digest },
    #[error("format version {found}, expected {VERSION}")]
    Version { found: u32 },
    #[error("a payload of {found} bytes, expected at most {MAX_STATE} with the header")]
    TooLarge { found: u64 },
    #[error("a payload of {found} bytes, expected {expected} (truncated, or something was added)")]
    Length { found: u64, expected: u64 },
    #[error("the payload is damaged: its blake3 digest is {found}, expected {expected}")]
    Payload { found: Digest, expected: Digest },
}

impl StateHeader {
    /// Bytes before the payload.
    pub const LENGTH: usize = 96;

    /// The header for a payload.
    pub fn new(payload_version: u32, payload: &[u8]) -> StateHeader {
        StateHeader {
            payload_version,
            payload_length: payload.len() as u64,
            payload_digest: Digest::of(payload),
        }
    }

    pub fn encode(&self) -> [u8; StateHeader::LENGTH] {
        let mut header = [0; StateHeader::LENGTH];
        header[..VERSION_AT].copy_from_slice(MAGIC);
        header[VERSION_AT..PAYLOAD_VERSION_AT].copy_from_slice(&VERSION.to_le_bytes());
        header[PAYLOAD_VERSION_AT..PAYLOAD_LENGTH_AT].copy_from_slice(&self.payload_version.to_le_bytes());
        header[PAYLOAD_LENGTH_AT..PAYLOAD_DIGEST_AT].copy_from_slice(&self.payload_length.to_le_bytes());
        header[PAYLOAD_DIGEST_AT..CHECKSUM_AT].copy_from_slice(self.payload_digest.as_bytes());
        let checksum = Digest::of(&header[..CHECKSUM_AT]);
        header[CHECKSUM_AT..].copy_from_slice(checksum.as_bytes());
        header
    }

    /// Checks the header at the beginning of `bytes` completely. The payload is not looked at.
    pub fn parse(bytes: &[u8]) -> Result<StateHeader, StateError> {
        let Some(header) = bytes.first_chunk::<{ StateHeader::LENGTH }>() else {
            return Err(StateError::NoHeader { found: bytes.len() });
        };
        check_magic(field(header, 0))?;
        let expected = Digest::from_bytes(field(header, CHECKSUM_AT));
        let found = Digest::of(&header[..CHECKSUM_AT]);
        if found != expected {
            return Err(StateError::Checksum { found, expected });
        }
        let version = u32::from_le_bytes(field(header, VERSION_AT));
        if version != VERSION {
            return Err(StateError::Version { found: version });
        }
        let payload_length = u64::from_le_bytes(field(header, PAYLOAD_LENGTH_AT));
        if payload_length > MAX_STATE - StateHeader::LENGTH as u64 {
            return Err(StateError::TooLarge { found: payload_length });
        }
        Ok(StateHeader {
            payload_version: u32::from_le_bytes(field(header, PAYLOAD_VERSION_AT)),
            payload_length,
            payload_digest: Digest::from_bytes(field(header, PAYLOAD_DIGEST_AT)),
        })
    }

    fn check_payload(&self, payload: &[u8]) -> Result<(), StateError> {
        let length = payload.len() as u64;
        if length != self.payload_length {
            return Err(StateError::Length { found: length, expected: self.payload_length });
        }
        let found = Digest::of(payload);
        if found != self.payload_digest {
            return Err(StateError::Payload { found, expected: self.payload_digest });
        }
        Ok(())
    }
}

fn check_magic(found: [u8; 16]) -> Result<(), StateError> {
    match found.strip_prefix(FAMILY) {
        _ if found == *MAGIC => Ok(()),
        Some(architecture) => {
            Err(StateError::Architecture { found: architecture.escape_ascii().to_string() })
        }
        None => Err(StateError::Magic { found }),
    }
}

/// `N` bytes of a fixed layout. The callers' offsets are constants that lie inside.
pub(crate) fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[at..at + N]);
    field
}

/// A VM's state that was checked.
#[derive(Clone, PartialEq, Eq)]
pub struct VmState {
    version: u32,
    /// The whole file, so that a large payload is not moved.
    file: Vec<u8>,
}

impl VmState {
    /// Checks a whole `state.bin`.
    pub fn parse(file: Vec<u8>) -> Result<VmState, StateError> {
        let header = StateHeader::parse(&file)?;
        header.check_payload(&file[StateHeader::LENGTH..])?;
        Ok(VmState { version: header.payload_version, file })
    }

    /// The number that the VMM gave to the payload's encoding.
    pub fn version(&self) -> u32 {
        self.version
    }

    pub fn payload(&self) -> &[u8] {
        self.file.get(StateHeader::LENGTH..).unwrap_or_default()
    }
}

impl std::fmt::Debug for VmState {
    /// Registers of a guest do not belong in a log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VmState")
            .field("version", &self.version)
            .field("payload_length", &self.payload().len())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(payload: &[u8]) -> Vec<u8> {
        [&StateHeader::new(7, payload).encode()[..], payload].concat()
    }

    /// A header that says what a test wants, with a good checksum.
    fn forged(change: impl FnOnce(&mut [u8])) -> Vec<u8> {
        let mut file = file(b"registers");
        change(&mut file);
        let checksum = Digest::of(&file[..CHECKSUM_AT]);
        file[CHECKSUM_AT..StateHeader::LENGTH].copy_from_slice(checksum.as_bytes());
        file
    }

    #[test]
    fn every_flipped_bit_and_every_truncation_is_refused() {
        let good = file(b"registers, lapic, devices");
        assert!(VmState::parse(good.clone()).is_ok());
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(VmState::parse(bad).is_err(), "bit {bit}");
        }
        for length in 0..good.len() {
            assert!(VmState::parse(good[..length].to_vec()).is_err(), "{length} bytes");
        }
        let longer = [&good[..], b"x"].concat();
        assert!(matches!(VmState::parse(longer), Err(StateError::Length { .. })));
    }

    #[test]
    fn a_refusal_says_what_was_found_and_what_was_expected() {
        let refused = |file: Vec<u8>| VmState::parse(file).unwrap_err().to_string();
        assert_eq!(refused(vec![1; 5]), "truncated: 5 bytes, expected at least the header's 96");
        assert_eq!(
            refused(forged(|file| file[..16].copy_from_slice(b"forkd-vm aarch64"))),
            "the state of a VM of another architecture (aarch64), expected x86_64"
        );
        assert_eq!(refused(forged(|file| file[VERSION_AT] = 2)), "format version 2, expected 1");
        assert_eq!(
            refused(forged(|file| file[PAYLOAD_LENGTH_AT] = 10)),
            "a payload of 9 bytes, expected 10 (truncated, or something was added)"
        );
        let huge = forged(|file| file[PAYLOAD_LENGTH_AT + 7] = 0xff);
        assert!(matches!(VmState::parse(huge), Err(StateError::TooLarge { .. })));
        let mut damaged = file(b"registers");
        damaged[StateHeader::LENGTH] ^= 1;
        assert!(refused(damaged).starts_with("the payload is damaged"));
        let mut foreign = file(b"registers");
        foreign[0] ^= 1;
        assert!(refused(foreign).starts_with("not a VM state"));
    }

    /// The fuzzer begins with a small state. `FORKD_WRITE_SEEDS=1` writes it anew.
    #[test]
    fn the_fuzzer_s_seed_is_a_good_state() {
        let seeds = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/state");
        let seed = seeds.join("registers");
        if std::env::var_os("FORKD_WRITE_SEEDS").is_some() {
            std::fs::create_dir_all(&seeds).unwrap();
            std::fs::write(&seed, file(b"registers")).unwrap();
        }
        let state = VmState::parse(std::fs::read(&seed).unwrap()).unwrap();
        assert_eq!((state.version(), state.payload()), (7, &b"registers"[..]));
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(version: u32, payload in proptest::collection::vec(any::<u8>(), 0..300)) {
            let file = [&StateHeader::new(version, &payload).encode()[..], &payload].concat();
            let state = VmState::parse(file).unwrap();
            prop_assert_eq!(state.version(), version);
            prop_assert_eq!(state.payload(), &payload[..]);
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(VmState::parse(bytes).is_err());
        }
    }
}
