use std::os::fd::OwnedFd;

use proptest::prelude::*;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::mock::{MockDriver, Segment, readable, writable};
use super::*;

const MAC: [u8; 6] = [0x06, 0, 0xac, 0x10, 0, 2];
const SETTINGS: NetSettings = NetSettings { mac: MAC, mtu: None };

/// A tap whose other end the test holds: one message is one frame.
fn tap() -> (OwnedFd, OwnedFd) {
    rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
        None,
    )
    .unwrap()
}

struct Setup {
    device: NetDevice,
    mock: MockDriver,
    peer: OwnedFd,
}

impl Setup {
    fn new() -> Setup {
        Setup::with_features(u64::MAX)
    }

    fn with_features(features: u64) -> Setup {
        let (tap, peer) = tap();
        let mut device = NetDevice::new(SETTINGS, tap).unwrap();
        device.activate(features);
        Setup { device, mock: MockDriver::with_event_index(&QUEUE_SIZES), peer }
    }

    fn notify(&mut self, queue: usize) -> bool {
        let device = &mut self.device;
        self.mock.call(|driver| device.queue_notified(queue, driver).unwrap())
    }

    fn tap_ready(&mut self) -> bool {
        let device = &mut self.device;
        self.mock.call(|driver| device.host_event(TAP, driver).unwrap())
    }

    /// What the device waits for: readable, writable.
    fn waits_for(&self) -> (bool, bool) {
        let events = self.device.host_events();
        let any = |wish: fn(&HostEvent<'_>) -> bool| events.iter().any(wish);
        (any(|event| event.readable), any(|event| event.writable))
    }

    fn send(&self, frame: &[u8]) {
        assert_eq!(rustix::io::write(&self.peer, frame).unwrap(), frame.len());
    }

    fn sent(&self) -> Option<Vec<u8>> {
        let mut frame = vec![0; MAX_FRAME];
        let length = rustix::io::read(&self.peer, &mut frame).ok()?;
        frame.truncate(length);
        Some(frame)
    }
}

/// A frame of a pattern that shows where each byte belongs.
fn frame_of(length: usize) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..length).map(|at| u8::try_from(at % 251).unwrap()).collect();
    frame[..HEADER].fill(0);
    frame
}

#[test]
fn a_frame_goes_out() {
    let mut setup = Setup::new();
    let frame = frame_of(1514 + HEADER);
    setup.mock.offer(
        TRANSMIT,
        &[readable(&frame[..HEADER]), readable(&frame[HEADER..100]), readable(&frame[100..])],
    );
    assert!(setup.notify(TRANSMIT));
    assert_eq!(setup.sent().unwrap(), frame);
    assert_eq!(setup.mock.take_used(TRANSMIT)[0].length, 0);
    assert_eq!(setup.waits_for(), (true, false));
}

#[test]
fn a_frame_comes_in_over_as_many_buffers_as_it_needs() {
    for (length, room, count) in [(60, 1526, 1), (1526, 1526, 1), (1527, 1526, 2), (MAX_FRAME, 4096, 17)] {
        let mut setup = Setup::new();
        for _ in 0..30 {
            setup.mock.offer(RECEIVE, &[writable(room / 2), writable(room / 2)]);
        }
        let frame = frame_of(length);
        setup.send(&frame);
        assert!(setup.tap_ready());
        let used = setup.mock.take_used(RECEIVE);
        assert_eq!(used.len(), count, "{length} bytes in buffers of {room}");
        let mut received: Vec<u8> = used.into_iter().flat_map(|used| used.bytes).collect();
        assert_eq!(received[10..12], u16::try_from(count).unwrap().to_le_bytes());
        received[10..12].fill(0);
        assert!(received == frame);
    }
}

#[test]
fn a_frame_waits_for_buffers() {
    let mut setup = Setup::new();
    let frame = frame_of(3000);
    setup.send(&frame);
    // Without any buffer it stays in the tap.
    assert!(!setup.tap_ready());
    assert_eq!(setup.waits_for(), (false, false));
    assert!(setup.device.held.is_none());
    assert_eq!(setup.mock.available_event(RECEIVE), 0);
    // With too few it stays in the device, and the driver is asked to notify of the second, not of the first.
    setup.mock.offer(RECEIVE, &[writable(2000)]);
    assert!(!setup.notify(RECEIVE));
    assert_eq!(setup.waits_for(), (false, false));
    assert_eq!(setup.device.held, Some(3000));
    assert_eq!(setup.mock.available_event(RECEIVE), 1);
    assert!(setup.mock.take_used(RECEIVE).is_empty());

    setup.mock.offer(RECEIVE, &[writable(2000)]);
    assert!(setup.notify(RECEIVE));
    let used = setup.mock.take_used(RECEIVE);
    assert_eq!(used.iter().map(|used| used.length).collect::<Vec<_>>(), [2000, 1000]);
    assert_eq!(used[0].bytes[12..], frame[12..2000]);
    assert_eq!(used[1].bytes, frame[2000..]);
}

#[test]
fn without_mergeable_buffers_a_frame_has_one_chain_or_none() {
    let mut setup = Setup::with_features(!(1 << VIRTIO_NET_F_MRG_RXBUF));
    setup.mock.offer(RECEIVE, &[writable(100), writable(1000)]);
    setup.mock.offer(RECEIVE, &[writable(1000)]);
    setup.send(&frame_of(1101));
    setup.send(&frame_of(1100));
    setup.tap_ready();
    let used = setup.mock.take_used(RECEIVE);
    assert_eq!(used.len(), 1, "the longer frame is dropped");
    assert_eq!(used[0].length, 1100);
    assert_eq!(used[0].bytes[10..12], [1, 0]);
}

#[test]
fn a_frame_that_no_ring_can_hold_is_dropped() {
    let mut setup = Setup::new();
    for _ in 0..256 {
        setup.mock.offer(RECEIVE, &[writable(12)]);
    }
    setup.send(&frame_of(12 * 256 + 1));
    setup.send(&frame_of(12 * 256));
    setup.tap_ready();
    assert_eq!(setup.mock.take_used(RECEIVE).len(), 256);
    assert_eq!(setup.device.held, None);
}

#[test]
fn a_full_tap_leaves_frames_in_the_ring() {
    let mut setup = Setup::new();
    let frame = frame_of(60_000);
    let mut offered = 0;
    while setup.waits_for() != (true, true) {
        setup.mock.offer(TRANSMIT, &[readable(&frame)]);
        offered += 1;
        setup.notify(TRANSMIT);
        assert!(offered < 200, "the socket never fills up");
    }
    assert_eq!(setup.mock.take_used(TRANSMIT).len(), offered - 1);
    let mut sent = 0;
    while sent < offered {
        while let Some(received) = setup.sent() {
            assert!(received == frame);
            sent += 1;
        }
        setup.tap_ready();
    }
    assert_eq!(setup.mock.take_used(TRANSMIT).len(), 1);
    assert!(!setup.waits_for().1);
}

#[test]
fn a_long_queue_is_done_in_turns() {
    let mut setup = Setup::new();
    // Frames that are dropped do not fill the socket and count as work all the same.
    for _ in 0..150 {
        setup.mock.offer(TRANSMIT, &[readable(b"short")]);
    }
    setup.notify(TRANSMIT);
    for (done, more) in [(64, true), (64, true), (22, false)] {
        assert_eq!(setup.mock.take_used(TRANSMIT).len(), done);
        assert_eq!(setup.device.is_unfinished(), more);
        setup.notify(TRANSMIT);
    }
}

#[test]
fn offloads_that_were_not_negotiated_do_not_reach_the_tap() {
    let mut setup = Setup::with_features(1 << VIRTIO_NET_F_CSUM);
    let mut frame = frame_of(100);
    frame[1] = 1;
    setup.mock.offer(TRANSMIT, &[readable(&frame)]);
    setup.mock.offer(TRANSMIT, &[readable(&vec![0; 100_000]), readable(&[0; 100])]);
    setup.notify(TRANSMIT);
    assert_eq!(setup.mock.take_used(TRANSMIT).len(), 2);
    assert!(setup.sent().is_none());
}

#[test]
fn broken_chains_are_faults() {
    let cases: [(usize, &[Segment], &str); 4] = [
        (TRANSMIT, &[writable(100)], "transmit queue: a buffer for the wrong direction"),
        (RECEIVE, &[readable(b"x")], "receive queue: a buffer for the wrong direction"),
        (RECEIVE, &[writable(11)], "receive queue: a buffer without room for a header"),
        (RECEIVE, &[writable(0), writable(0)], "receive queue: a buffer without room for a header"),
    ];
    for (queue, segments, expected) in cases {
        let mut setup = Setup::new();
        setup.send(&frame_of(100));
        setup.mock.offer(queue, segments);
        let device = &mut setup.device;
        setup.mock.call(|driver| {
            let fault = device.queue_notified(queue, driver).unwrap_err();
            assert_eq!(fault.0, expected);
        });
    }
    for (queue, flags) in [(TRANSMIT, 0), (RECEIVE, 2)] {
        let mut setup = Setup::new();
        setup.send(&frame_of(100));
        setup.mock.store(queue, 0, Descriptor::new(u64::MAX - 50, 100, flags, 0));
        setup.mock.offer_head(queue, 0);
        let device = &mut setup.device;
        setup.mock.call(|driver| assert!(device.queue_notified(queue, driver).is_err()));
    }
}

#[test]
fn a_tap_that_is_gone_is_not_waited_for() {
    let mut setup = Setup::new();
    setup.mock.offer(RECEIVE, &[writable(2000)]);
    let (_, unconnected) = tap();
    drop(std::mem::replace(&mut setup.peer, unconnected));
    setup.tap_ready();
    assert_eq!(setup.waits_for(), (false, false));
    setup.mock.offer(TRANSMIT, &[readable(&frame_of(100))]);
    setup.notify(TRANSMIT);
    assert_eq!(setup.mock.take_used(TRANSMIT).len(), 1);
}

#[test]
fn the_configuration_has_the_mac_the_link_and_the_mtu() {
    let mtu = Some(1400);
    let device = NetDevice::new(NetSettings { mac: MAC, mtu }, tap().0).unwrap();
    let mut config = [0xff; 14];
    device.read_config(0, &mut config);
    assert_eq!(config, [0x06, 0, 0xac, 0x10, 0, 2, 1, 0, 0, 0, 0x78, 0x05, 0, 0]);
    let mut far = [0xff; 2];
    device.read_config(u64::MAX, &mut far[..1]);
    device.read_config(5, &mut far[1..]);
    assert_eq!(far, [0, 2]);
    assert_ne!(device.features() & 1 << VIRTIO_NET_F_MTU, 0);
}

#[test]
fn saved_and_restored() {
    let mut setup = Setup::new();
    setup.mock.offer(RECEIVE, &[writable(100)]);
    setup.send(&frame_of(3000));
    setup.tap_ready();
    setup.mock.offer(TRANSMIT, &[readable(&frame_of(80))]);
    let state = setup.device.save();
    assert_eq!(setup.device.held, Some(3000), "saving does not disturb the device");
    let text = serde_json::to_string(&state).unwrap();
    let state: NetState = serde_json::from_str(&text).unwrap();

    let (new_tap, peer) = tap();
    setup.device = NetDevice::restored(&state, new_tap).unwrap();
    setup.peer = peer;
    assert_eq!(setup.device.save(), state);
    // As the transport does after a restore.
    setup.notify(RECEIVE);
    setup.notify(TRANSMIT);
    assert_eq!(setup.sent().unwrap(), frame_of(80));
    assert_eq!(setup.waits_for(), (true, false));
    // The chain that was too short for the frame in the source is the copy's now.
    setup.send(&frame_of(90));
    setup.tap_ready();
    assert_eq!(setup.mock.take_used(RECEIVE)[0].length, 90);
}

#[test]
fn bad_state_is_refused() {
    let (good, _) = tap();
    let state = NetDevice::new(SETTINGS, good).unwrap().save();
    let refused = |change: fn(&mut NetState)| {
        let mut state = state.clone();
        change(&mut state);
        NetDevice::restored(&state, tap().0).unwrap_err()
    };
    assert!(NetDevice::restored(&state, tap().0).unwrap().host_events().is_empty());
    assert!(matches!(refused(|state| state.settings.mac[0] = 1), NetError::Mac(_)));
    assert!(matches!(refused(|state| state.settings.mac = [0; 6]), NetError::Mac(_)));
    assert_eq!(refused(|state| state.settings.mtu = Some(67)), NetError::Mtu(67));
    assert_eq!(refused(|state| state.features = Some(1 << 10)), NetError::Features(1 << 10));
}

#[test]
fn a_reset_forgets_the_frame_and_the_driver() {
    let mut setup = Setup::new();
    setup.mock.offer(RECEIVE, &[writable(100)]);
    setup.send(&frame_of(3000));
    setup.tap_ready();
    setup.device.reset();
    assert!(setup.device.host_events().is_empty());
    assert_eq!(setup.device.save().features, None);
    assert_eq!(setup.device.held, None);
    assert!(!setup.notify(TRANSMIT));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is in the rings, there is a result and a bounded buffer.
    #[test]
    fn no_rings_panic(descriptors in proptest::collection::vec((0u64..0x60000, 0u32..80_000, 0u16..8, 0u16..10), 8),
                      heads in proptest::collection::vec(0u16..9, 0..12),
                      frames in proptest::collection::vec(0usize..5000, 0..4)) {
        let mut setup = Setup::new();
        setup.mock = MockDriver::with_event_index(&[8, 8]);
        for frame in frames {
            setup.send(&vec![0; frame + 1]);
        }
        for queue in [RECEIVE, TRANSMIT] {
            for (index, &(address, length, flags, next)) in (0u16..).zip(&descriptors) {
                let flags = if queue == RECEIVE { flags | 2 } else { flags & !2 };
                setup.mock.store(queue, index, Descriptor::new(address, length, flags, next));
            }
            for &head in &heads {
                setup.mock.offer_head(queue, head);
            }
            let device = &mut setup.device;
            setup.mock.call(|driver| {
                let _ = device.queue_notified(queue, driver);
                let _ = device.host_event(TAP, driver);
            });
        }
        prop_assert!(setup.device.outgoing.capacity() <= 2 * MAX_FRAME);
        prop_assert!(setup.device.incoming.capacity() <= 2 * MAX_FRAME);
    }
}
