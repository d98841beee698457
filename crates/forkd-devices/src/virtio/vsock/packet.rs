//! The header of a vsock packet, copied out of guest memory once.
//!
//! ```text
//! 0         8         16         20         24    28     30   32      36          40        44
//! | src_cid | dst_cid | src_port | dst_port | len | type | op | flags | buf_alloc | fwd_cnt | payload …
//! ```
//!
//! Packets to the guest are written with virtio-vsock's `VsockPacket`. Packets from it are read here: that type wants the
//! payload in one descriptor, and a program in the guest that sends with MSG_ZEROCOPY (Linux 6.7) makes packets with more.

use virtio_vsock::packet::PKT_HEADER_SIZE;

/// The context id of the host.
pub(super) const HOST_CID: u64 = 2;

/// The largest payload of a packet, in either direction; Linux never sends more.
pub(super) const MAX_PAYLOAD: u32 = 64 << 10;

pub(super) const TYPE_STREAM: u16 = 1;

/// Flags of a SHUTDOWN: the sender will not receive, or not send, any more.
pub(super) const SHUTDOWN_RECEIVE: u32 = 1;
pub(super) const SHUTDOWN_SEND: u32 = 2;
pub(super) const SHUTDOWN_BOTH: u32 = SHUTDOWN_RECEIVE | SHUTDOWN_SEND;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Request,
    Response,
    Reset,
    Shutdown,
    Data,
    CreditUpdate,
    CreditRequest,
    Unknown(u16),
}

impl From<u16> for Operation {
    fn from(number: u16) -> Operation {
        match number {
            1 => Operation::Request,
            2 => Operation::Response,
            3 => Operation::Reset,
            4 => Operation::Shutdown,
            5 => Operation::Data,
            6 => Operation::CreditUpdate,
            7 => Operation::CreditRequest,
            number => Operation::Unknown(number),
        }
    }
}

impl From<Operation> for u16 {
    fn from(operation: Operation) -> u16 {
        match operation {
            Operation::Request => 1,
            Operation::Response => 2,
            Operation::Reset => 3,
            Operation::Shutdown => 4,
            Operation::Data => 5,
            Operation::CreditUpdate => 6,
            Operation::CreditRequest => 7,
            Operation::Unknown(number) => number,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub source_cid: u64,
    pub destination_cid: u64,
    pub source_port: u32,
    pub destination_port: u32,
    pub length: u32,
    pub kind: u16,
    pub operation: Operation,
    pub flags: u32,
    /// How much the sender can buffer for this connection, in all.
    pub buffer_size: u32,
    /// How many bytes of this connection the sender has taken out of that buffer so far, modulo 2^32.
    pub forwarded: u32,
}

impl Header {
    pub fn decode(bytes: &[u8; PKT_HEADER_SIZE]) -> Header {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let double = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        Header {
            source_cid: double(0),
            destination_cid: double(8),
            source_port: word(16),
            destination_port: word(20),
            length: word(24),
            kind: half(28),
            operation: half(30).into(),
            flags: word(32),
            buffer_size: word(36),
            forwarded: word(40),
        }
    }

    pub fn encode(&self) -> [u8; PKT_HEADER_SIZE] {
        let mut bytes = [0; PKT_HEADER_SIZE];
        bytes[0..8].copy_from_slice(&self.source_cid.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.destination_cid.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.source_port.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.destination_port.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.length.to_le_bytes());
        bytes[28..30].copy_from_slice(&self.kind.to_le_bytes());
        bytes[30..32].copy_from_slice(&u16::from(self.operation).to_le_bytes());
        bytes[32..36].copy_from_slice(&self.flags.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.buffer_size.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.forwarded.to_le_bytes());
        bytes
    }

    /// The reset that answers this packet, whether or not it belongs to a connection.
    pub fn refusal(&self) -> Header {
        Header {
            source_cid: self.destination_cid,
            destination_cid: self.source_cid,
            source_port: self.destination_port,
            destination_port: self.source_port,
            length: 0,
            kind: self.kind,
            operation: Operation::Reset,
            flags: 0,
            buffer_size: 0,
            forwarded: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_are_where_virtio_says() {
        let bytes: [u8; PKT_HEADER_SIZE] = std::array::from_fn(|at| u8::try_from(at).unwrap());
        let header = Header::decode(&bytes);
        assert_eq!(header.source_cid, 0x0706_0504_0302_0100);
        assert_eq!(header.destination_cid, 0x0f0e_0d0c_0b0a_0908);
        assert_eq!(header.source_port, 0x1312_1110);
        assert_eq!(header.destination_port, 0x1716_1514);
        assert_eq!(header.length, 0x1b1a_1918);
        assert_eq!(header.kind, 0x1d1c);
        assert_eq!(header.operation, Operation::Unknown(0x1f1e));
        assert_eq!(header.flags, 0x2322_2120);
        assert_eq!(header.buffer_size, 0x2726_2524);
        assert_eq!(header.forwarded, 0x2b2a_2928);
    }

    proptest! {
        #[test]
        fn headers_round_trip(bytes: [u8; 32], rest: [u8; 12], operation in 0u16..10) {
            let mut header = [0; PKT_HEADER_SIZE];
            header[..32].copy_from_slice(&bytes);
            header[32..].copy_from_slice(&rest);
            header[30..32].copy_from_slice(&operation.to_le_bytes());
            prop_assert_eq!(Header::decode(&header).encode(), header);
        }
    }
}
