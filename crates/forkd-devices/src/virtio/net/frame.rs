//! A frame as it passes between the guest and the tap: a header about offloads, then Ethernet.
//!
//! ```text
//! 0       1          2         4          6            8             10            12
//! | flags | gso_type | hdr_len | gso_size | csum_start | csum_offset | num_buffers | Ethernet …
//! ```

use virtio_bindings::bindings::virtio_net::{
    VIRTIO_NET_F_CSUM, VIRTIO_NET_F_GUEST_CSUM, VIRTIO_NET_F_GUEST_TSO4, VIRTIO_NET_F_GUEST_TSO6,
    VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_HOST_TSO6, VIRTIO_NET_HDR_F_NEEDS_CSUM, VIRTIO_NET_HDR_GSO_NONE,
    VIRTIO_NET_HDR_GSO_TCPV4, VIRTIO_NET_HDR_GSO_TCPV6,
};

/// `struct virtio_net_hdr_v1`, which the tap is set up for as well.
pub(super) const HEADER: usize = 12;

/// The largest frame: a full IP packet, Ethernet and a VLAN tag before it, and the header.
pub(super) const MAX_FRAME: usize = HEADER + 18 + 65_535;

const ETHERNET: usize = 14;
const FLAGS: usize = 0;
const GSO_TYPE: usize = 1;
const CSUM_START: usize = 6;
const CSUM_OFFSET: usize = 8;
const NUM_BUFFERS: usize = 10;

/// Whether the tap gets this frame. The header goes to the host's kernel, which checks it too; what the driver has not
/// negotiated does not get that far.
pub(super) fn may_leave(frame: &[u8], features: u64) -> bool {
    if frame.len() < HEADER + ETHERNET || frame.len() > MAX_FRAME {
        return false;
    }
    let checksum = match u32::from(frame[FLAGS]) {
        0 => true,
        VIRTIO_NET_HDR_F_NEEDS_CSUM => has(features, VIRTIO_NET_F_CSUM),
        _ => false,
    };
    let segments = match u32::from(frame[GSO_TYPE]) {
        VIRTIO_NET_HDR_GSO_NONE => true,
        VIRTIO_NET_HDR_GSO_TCPV4 => has(features, VIRTIO_NET_F_HOST_TSO4),
        VIRTIO_NET_HDR_GSO_TCPV6 => has(features, VIRTIO_NET_F_HOST_TSO6),
        _ => false,
    };
    checksum && segments
}

/// Makes a frame of the tap fit what the driver has negotiated. False if that is not possible: the frame is dropped.
///
/// The offloads of the tap are set once, before there is a driver. A driver without checksums gets them computed here; a
/// driver without segmentation, which no Linux is, loses the frames that need it.
pub(super) fn may_enter(frame: &mut [u8], features: u64) -> bool {
    if frame.len() < HEADER + ETHERNET {
        return false;
    }
    let segments = match u32::from(frame[GSO_TYPE]) {
        VIRTIO_NET_HDR_GSO_NONE => true,
        VIRTIO_NET_HDR_GSO_TCPV4 => has(features, VIRTIO_NET_F_GUEST_TSO4),
        VIRTIO_NET_HDR_GSO_TCPV6 => has(features, VIRTIO_NET_F_GUEST_TSO6),
        _ => false,
    };
    if !segments {
        return false;
    }
    if has(features, VIRTIO_NET_F_GUEST_CSUM) {
        return true;
    }
    let needs_checksum = u32::from(frame[FLAGS]) & VIRTIO_NET_HDR_F_NEEDS_CSUM != 0;
    frame[FLAGS] = 0;
    !needs_checksum || complete_checksum(frame)
}

/// Writes into how many buffers the frame was spread.
pub(super) fn set_buffers(frame: &mut [u8], count: u16) {
    if let Some(field) = frame.get_mut(NUM_BUFFERS..HEADER) {
        field.copy_from_slice(&count.to_le_bytes());
    }
}

fn has(features: u64, bit: u32) -> bool {
    features & (1 << bit) != 0
}

/// Computes what the sender has left to its hardware. The field holds the sum of the pseudo header already.
fn complete_checksum(frame: &mut [u8]) -> bool {
    let start = usize::from(u16::from_le_bytes([frame[CSUM_START], frame[CSUM_START + 1]]));
    let offset = usize::from(u16::from_le_bytes([frame[CSUM_OFFSET], frame[CSUM_OFFSET + 1]]));
    let Some(covered) = frame.get_mut(HEADER + start..) else {
        return false;
    };
    if covered.len() < offset + 2 {
        return false;
    }
    // 65 553 bytes of words cannot overflow 32 bits.
    let sum = covered
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)])))
        .sum::<u32>();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    let [high, low, ..] = (!folded << 16).to_be_bytes();
    // In UDP a zero means that there is no checksum; the other zero is as good in any protocol.
    let field = if (high, low) == (0, 0) { [0xff, 0xff] } else { [high, low] };
    covered[offset..offset + 2].copy_from_slice(&field);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALL: u64 = u64::MAX;

    fn frame(flags: u32, gso_type: u32, payload: usize) -> Vec<u8> {
        let mut frame = vec![0; HEADER + payload];
        frame[FLAGS] = u8::try_from(flags).unwrap();
        frame[GSO_TYPE] = u8::try_from(gso_type).unwrap();
        frame
    }

    #[test]
    fn only_negotiated_offloads_leave() {
        assert!(may_leave(&frame(0, 0, 60), 0));
        assert!(!may_leave(&frame(0, 0, 13), ALL), "shorter than Ethernet");
        assert!(!may_leave(&frame(0, 0, MAX_FRAME), ALL));
        for (flags, gso_type, bit) in
            [(1, 0, VIRTIO_NET_F_CSUM), (0, 1, VIRTIO_NET_F_HOST_TSO4), (0, 4, VIRTIO_NET_F_HOST_TSO6)]
        {
            assert!(may_leave(&frame(flags, gso_type, 60), 1 << bit));
            assert!(!may_leave(&frame(flags, gso_type, 60), ALL & !(1 << bit)));
        }
        // UDP fragmentation and segmentation, ECN, an unknown flag.
        for (flags, gso_type) in [(0, 3), (0, 5), (0, 0x81), (2, 0)] {
            assert!(!may_leave(&frame(flags, gso_type, 60), ALL));
        }
    }

    #[test]
    fn a_driver_without_checksums_gets_them_computed() {
        // UDP from 10.0.0.1:1 to 10.0.0.2:2 with "hello"; the field holds the sum of the pseudo header.
        let mut udp = frame(1, 0, 34 + 13);
        udp[CSUM_START] = 34;
        udp[CSUM_OFFSET] = 6;
        let datagram = HEADER + 34;
        udp[datagram..].copy_from_slice(&[0, 1, 0, 2, 0, 13, 0, 0, b'h', b'e', b'l', b'l', b'o']);
        let pseudo: u16 = 0x0a00 + 0x0001 + 0x0a00 + 0x0002 + 17 + 13;
        udp[datagram + 6..datagram + 8].copy_from_slice(&pseudo.to_be_bytes());
        let untouched = udp.clone();

        assert!(may_enter(&mut udp, 0));
        assert_eq!(udp[FLAGS], 0);
        // 0x1421 + 1 + 2 + 13 + "he" + "ll" + "o\0" = 0x15c6b after the pseudo header; folded and inverted.
        let expected = {
            let words = [1u32, 2, 13, 0x6865, 0x6c6c, 0x6f00, u32::from(pseudo)];
            let sum: u32 = words.iter().sum();
            u16::try_from(!((sum & 0xffff) + (sum >> 16)) & 0xffff).unwrap()
        };
        assert_eq!(udp[datagram + 6..datagram + 8], expected.to_be_bytes());

        let mut kept = untouched.clone();
        assert!(may_enter(&mut kept, 1 << VIRTIO_NET_F_GUEST_CSUM));
        assert_eq!(kept, untouched);

        let mut outside = untouched;
        outside[CSUM_START + 1] = 0xff;
        assert!(!may_enter(&mut outside, 0));
    }

    #[test]
    fn segments_need_a_driver_that_takes_them() {
        assert!(!may_enter(&mut frame(0, 1, 60), 0));
        assert!(may_enter(&mut frame(0, 1, 60), 1 << VIRTIO_NET_F_GUEST_TSO4));
        assert!(!may_enter(&mut frame(0, 4, 60), 1 << VIRTIO_NET_F_GUEST_TSO4));
    }

    proptest! {
        /// The sum over what the checksum covers, the checksum included, is all ones.
        #[test]
        fn completed_checksums_add_up(mut bytes in proptest::collection::vec(any::<u8>(), HEADER + ETHERNET..300),
                                      start in 0u16..320, offset in 0u16..320) {
            bytes[FLAGS] = 1;
            bytes[GSO_TYPE] = 0;
            bytes[CSUM_START..CSUM_OFFSET].copy_from_slice(&start.to_le_bytes());
            bytes[CSUM_OFFSET..NUM_BUFFERS].copy_from_slice(&offset.to_le_bytes());
            let (start, offset) = (HEADER + usize::from(start), usize::from(offset));
            let fits = start + offset + 2 <= bytes.len();
            let before = bytes.clone();
            prop_assert_eq!(may_enter(&mut bytes, 0), fits);
            if fits && offset.is_multiple_of(2) {
                let words = |bytes: &[u8]| bytes.chunks(2)
                    .fold(0u64, |sum, pair| sum + u64::from(pair[0]) * 256 + u64::from(*pair.get(1).unwrap_or(&0)));
                let field = u64::from(before[start + offset]) * 256 + u64::from(before[start + offset + 1]);
                // The field's old value was part of the sum that is now complemented in its place.
                let total = words(&bytes[start..]) + field;
                prop_assert_eq!(total % 0xffff, 0);
            }
        }
    }
}
