use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec};

use super::muxer::{MAX_CLIENTS, MAX_UNGREETED};
use super::packet::{HOST_CID, Operation, SHUTDOWN_BOTH, SHUTDOWN_RECEIVE, SHUTDOWN_SEND, TYPE_STREAM};
use super::*;
use crate::virtio::net::mock::{MockDriver, Segment, readable, writable};

const CID: u64 = 42;
const PORT: u32 = 49983;
const GUEST_BUFFER: u32 = 100_000;

/// A device with a guest that the test plays, and a socket for clients.
struct Setup {
    device: VsockDevice,
    mock: MockDriver,
    path: PathBuf,
    _directory: tempfile::TempDir,
    /// What the device has sent, and the test has not looked at yet.
    packets: Vec<(Header, Vec<u8>)>,
}

fn cid() -> GuestCid {
    GuestCid::try_from(CID).unwrap()
}

impl Setup {
    fn new() -> Setup {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("vsock");
        let mut device = VsockDevice::new(cid(), UnixListener::bind(&path).unwrap()).unwrap();
        device.activate(0);
        let mut setup = Setup {
            device,
            mock: MockDriver::with_event_index(&QUEUE_SIZES),
            path,
            _directory: directory,
            packets: Vec::new(),
        };
        setup.offer_buffers(64);
        for _ in 0..8 {
            setup.mock.offer(EVENT, &[writable(4)]);
        }
        setup
    }

    fn offer_buffers(&mut self, count: usize) {
        for _ in 0..count {
            self.mock.offer(RECEIVE, &[writable(4096)]);
        }
    }

    fn notify(&mut self, queue: usize) {
        let device = &mut self.device;
        self.mock.call(|driver| device.queue_notified(queue, driver).unwrap());
    }

    /// As the transport does for unfinished work and after a restore.
    fn kick(&mut self) {
        for queue in [RECEIVE, TRANSMIT, EVENT] {
            self.notify(queue);
        }
    }

    /// Serves what is ready until nothing is, and collects the packets; the guest offers its buffers again.
    fn run(&mut self) {
        for _ in 0..100_000 {
            let ready = ready(&self.device);
            for &token in &ready {
                let device = &mut self.device;
                self.mock.call(|driver| device.host_event(token, driver).unwrap());
            }
            let unfinished = self.device.is_unfinished();
            if unfinished {
                self.kick();
            }
            let used = self.mock.take_used(RECEIVE);
            let progress = !used.is_empty();
            for used in used {
                let (header, payload) = used.bytes.split_first_chunk().unwrap();
                let header = Header::decode(header);
                assert_eq!(payload.len(), header.length as usize);
                self.packets.push((header, payload.to_vec()));
                self.offer_buffers(1);
            }
            if progress {
                self.notify(RECEIVE);
            } else if ready.is_empty() && !unfinished {
                return;
            }
        }
        panic!("the device is never idle");
    }

    fn connect(&mut self) -> UnixStream {
        let mut client = self.half_open();
        client.write_all(format!("CONNECT {PORT}\n").as_bytes()).unwrap();
        client
    }

    fn half_open(&mut self) -> UnixStream {
        let client = UnixStream::connect(&self.path).unwrap();
        client.set_nonblocking(true).unwrap();
        client
    }

    /// A client that the guest has accepted, and its port on the host's side.
    fn accepted(&mut self) -> (UnixStream, u32) {
        let mut client = self.connect();
        self.run();
        let [request] = self.take_packets()[..] else { panic!("one packet expected") };
        assert_eq!(request.operation, Operation::Request);
        assert_eq!(request.destination_port, PORT);
        self.send(packet(request.source_port, Operation::Response), b"");
        let port = request.source_port;
        assert_eq!(read(&mut client), format!("OK {port}\n").as_bytes());
        (client, port)
    }

    fn take_packets(&mut self) -> Vec<Header> {
        std::mem::take(&mut self.packets).into_iter().map(|(header, _)| header).collect()
    }

    /// Operations and flags of what the device has sent.
    fn operations(&mut self) -> Vec<(Operation, u32)> {
        let packets = self.take_packets();
        packets.iter().map(|header| (header.operation, header.flags)).collect()
    }

    /// Sends a packet as the guest and lets the device work.
    fn send(&mut self, header: Header, payload: &[u8]) {
        let header = Header { length: u32::try_from(payload.len()).unwrap(), ..header };
        self.send_raw(&[readable(&header.encode()), readable(payload)]);
        self.run();
    }

    fn send_raw(&mut self, segments: &[Segment]) {
        self.mock.offer(TRANSMIT, segments);
        self.notify(TRANSMIT);
        self.mock.take_used(TRANSMIT);
    }

    fn fault(&mut self, queue: usize) -> String {
        let mut text = String::new();
        let device = &mut self.device;
        self.mock.call(|driver| {
            text = device.queue_notified(queue, driver).unwrap_err().0;
        });
        text
    }
}

/// A packet of the guest for the connection with this port on the host's side.
fn packet(host_port: u32, operation: Operation) -> Header {
    Header {
        source_cid: CID,
        destination_cid: HOST_CID,
        source_port: PORT,
        destination_port: host_port,
        length: 0,
        kind: TYPE_STREAM,
        operation,
        flags: 0,
        buffer_size: GUEST_BUFFER,
        forwarded: 0,
    }
}

/// The tokens whose descriptors are ready. A wish for neither reading nor writing is one for the end.
fn ready(device: &VsockDevice) -> Vec<u32> {
    let events = device.host_events();
    let mut polled: Vec<PollFd<'_>> = events
        .iter()
        .map(|event| {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, event.readable);
            flags.set(PollFlags::OUT, event.writable);
            PollFd::from_borrowed_fd(event.fd, flags)
        })
        .collect();
    rustix::event::poll(&mut polled, Some(&Timespec::default())).unwrap();
    let ready = events.iter().zip(&polled).filter(|(_, polled)| !polled.revents().is_empty());
    ready.map(|(event, _)| event.token).collect()
}

/// What a client can read now.
fn read(client: &mut UnixStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let error = client.read_to_end(&mut bytes).err();
    assert!(error.is_none_or(|error| error.kind() == ErrorKind::WouldBlock));
    bytes
}

/// Whether the client sees the end of the stream.
fn at_end(client: &mut UnixStream) -> bool {
    matches!(client.read(&mut [0]), Ok(0))
}

/// Bytes whose place shows.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| u8::try_from(at % 249).unwrap()).collect()
}

#[test]
fn bytes_flow_both_ways() {
    let mut setup = Setup::new();
    let (mut client, port) = setup.accepted();
    client.write_all(b"ping").unwrap();
    setup.run();
    let (header, payload) = setup.packets.remove(0);
    assert_eq!((header.operation, &payload[..]), (Operation::Data, &b"ping"[..]));
    assert_eq!((header.source_cid, header.destination_cid), (2, CID));
    setup.send(packet(port, Operation::Data), b"pong");
    assert_eq!(read(&mut client), b"pong");
}

#[test]
fn what_follows_the_first_line_is_the_guest_s() {
    let mut setup = Setup::new();
    let mut client = setup.half_open();
    client.write_all(b"CONNECT 8080\nGET / HTTP/1.1\r\n").unwrap();
    setup.run();
    let request = setup.take_packets()[0];
    assert_eq!(request.destination_port, 8080);
    let response = Header { source_port: 8080, ..packet(request.source_port, Operation::Response) };
    setup.send(response, b"");
    assert_eq!(setup.packets[0].1, b"GET / HTTP/1.1\r\n");
}

#[test]
fn more_than_the_guest_s_buffer_waits_for_credit() {
    let mut setup = Setup::new();
    let (mut client, port) = setup.accepted();
    let bytes = pattern(450_000);
    let (mut written, mut received) = (0, Vec::new());
    while received.len() < bytes.len() {
        if let Ok(count) = client.write(&bytes[written..]) {
            written += count;
        }
        setup.run();
        let before = received.len();
        let mut requested = false;
        for (header, payload) in std::mem::take(&mut setup.packets) {
            requested |= header.operation == Operation::CreditRequest;
            received.extend(payload);
        }
        let under_way = received.len() - before;
        assert!(under_way <= GUEST_BUFFER as usize);
        assert_eq!(requested, under_way == GUEST_BUFFER as usize, "credit is asked for when it is used up");
        let update = Header {
            forwarded: u32::try_from(received.len()).unwrap(),
            ..packet(port, Operation::CreditUpdate)
        };
        setup.send(update, b"");
    }
    assert!(received == bytes);
}

#[test]
fn more_than_the_device_s_buffer_flows_with_its_credit() {
    let mut setup = Setup::new();
    let (mut client, port) = setup.accepted();
    let bytes = pattern(2_000_000);
    let (mut sent, mut forwarded, mut received) = (0, 0, Vec::new());
    let mut slow = 0;
    while received.len() < bytes.len() {
        // As a guest does: no more than the room it knows of.
        let room = 256 * 1024 - (sent - forwarded);
        let count = room.min(60_000).min(bytes.len() - sent);
        if count > 0 {
            setup.send(packet(port, Operation::Data), &bytes[sent..sent + count]);
            sent += count;
        } else {
            setup.run();
        }
        for header in setup.take_packets() {
            assert_eq!(header.operation, Operation::CreditUpdate);
            forwarded = header.forwarded as usize;
        }
        // A client that reads now and then.
        slow += 1;
        if slow % 5 == 0 {
            received.extend(read(&mut client));
        }
        assert!(slow < 10_000);
    }
    assert!(received == bytes);
    assert!(setup.device.muxer.memory() < 64 << 10, "an empty buffer is given back");
}

#[test]
fn a_packet_may_lie_in_any_number_of_buffers() {
    let mut setup = Setup::new();
    let (mut client, port) = setup.accepted();
    let mut bytes = Header { length: 10, ..packet(port, Operation::Data) }.encode().to_vec();
    bytes.extend(b"0123456789 and what does not count");
    setup.send_raw(&[readable(&bytes)]);
    let parts: Vec<Segment> = bytes.chunks(7).map(readable).collect();
    setup.send_raw(&parts);
    setup.run();
    assert_eq!(read(&mut client), b"01234567890123456789");
}

#[test]
fn a_receive_buffer_may_have_two_parts() {
    let mut setup = Setup::new();
    setup.mock = MockDriver::with_event_index(&QUEUE_SIZES);
    for _ in 0..8 {
        setup.mock.offer(RECEIVE, &[writable(44), writable(4096)]);
    }
    let (mut client, _) = setup.accepted();
    client.write_all(b"hello").unwrap();
    setup.run();
    assert_eq!(setup.packets[0].1, b"hello");
}

#[test]
fn half_closes() {
    let mut setup = Setup::new();
    let (mut client, port) = setup.accepted();
    client.write_all(b"question").unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    setup.run();
    assert_eq!(setup.operations(), [(Operation::Data, 0), (Operation::Shutdown, SHUTDOWN_SEND)]);
    setup.send(packet(port, Operation::Data), b"answer");
    assert_eq!(read(&mut client), b"answer");
    let end = Header { flags: SHUTDOWN_BOTH, ..packet(port, Operation::Shutdown) };
    setup.send(end, b"");
    assert!(at_end(&mut client));
    assert_eq!(setup.operations(), [(Operation::Reset, 0)]);
    assert_eq!(setup.device.muxer.client_count(), 0);

    // The other way round: the guest stops sending, and still reads.
    let (mut client, port) = setup.accepted();
    let end = Header { flags: SHUTDOWN_SEND, ..packet(port, Operation::Shutdown) };
    setup.send(end, b"");
    assert!(at_end(&mut client));
    client.write_all(b"still here").unwrap();
    setup.run();
    assert_eq!(setup.packets.remove(0).1, b"still here");
    let deaf = Header { flags: SHUTDOWN_RECEIVE, ..packet(port, Operation::Shutdown) };
    setup.send(deaf, b"");
    assert_eq!(client.write(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
}

#[test]
fn a_client_that_goes_away_is_noticed_without_traffic() {
    let mut setup = Setup::new();
    let (client, port) = setup.accepted();
    drop(client);
    setup.run();
    assert_eq!(setup.operations(), [(Operation::Shutdown, SHUTDOWN_BOTH)]);
    let end = Header { flags: SHUTDOWN_BOTH, ..packet(port, Operation::Shutdown) };
    setup.send(end, b"");
    assert_eq!(setup.operations(), [(Operation::Reset, 0)]);

    // Also after it has closed one direction, when nothing is read from it any more.
    let (client, _) = setup.accepted();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    setup.run();
    assert_eq!(setup.operations(), [(Operation::Shutdown, SHUTDOWN_SEND)]);
    drop(client);
    setup.run();
    assert_eq!(setup.operations(), [(Operation::Shutdown, SHUTDOWN_BOTH)]);
}

#[test]
fn a_client_s_last_bytes_arrive_although_it_is_gone_and_the_guest_is_slow() {
    let mut setup = Setup::new();
    let (mut client, port) = setup.accepted();
    // More than the guest has room for; the rest stays in the socket of a client that has left.
    let bytes = pattern(GUEST_BUFFER as usize + 20_000);
    client.write_all(&bytes).unwrap();
    setup.run();
    drop(client);
    setup.run();
    let mut received: Vec<u8> = setup.packets.drain(..).flat_map(|(_, payload)| payload).collect();
    assert_eq!(received.len(), GUEST_BUFFER as usize);
    let update = Header { forwarded: GUEST_BUFFER, ..packet(port, Operation::CreditUpdate) };
    setup.send(update, b"");
    let last = setup.packets.last().unwrap().0;
    assert_eq!((last.operation, last.flags), (Operation::Shutdown, SHUTDOWN_BOTH));
    received.extend(setup.packets.drain(..).flat_map(|(_, payload)| payload));
    assert!(received == bytes);
}

#[test]
fn the_guest_refuses_or_resets() {
    let mut setup = Setup::new();
    let mut refused = setup.connect();
    setup.run();
    let port = setup.take_packets()[0].source_port;
    setup.send(packet(port, Operation::Reset), b"");
    assert!(at_end(&mut refused), "closed without OK");

    let (mut client, port) = setup.accepted();
    setup.send(packet(port, Operation::Data), b"last");
    setup.send(packet(port, Operation::Reset), b"");
    assert_eq!(read(&mut client), b"last");
    assert!(at_end(&mut client));
    assert_eq!(setup.device.muxer.client_count(), 0);
    assert_eq!(setup.operations(), []);
}

#[test]
fn requests_of_the_guest_are_refused_and_a_flood_of_them_is_bounded() {
    let mut setup = Setup::new();
    setup.send(packet(1234, Operation::Request), b"");
    let [reset] = setup.take_packets()[..] else { panic!("one packet expected") };
    assert_eq!(reset.operation, Operation::Reset);
    assert_eq!((reset.source_port, reset.destination_port), (1234, PORT));

    // A guest without receive buffers.
    setup.mock = MockDriver::with_event_index(&QUEUE_SIZES);
    for port in 0..5000 {
        setup.send_raw(&[readable(&packet(port, Operation::Request).encode())]);
    }
    assert!(setup.device.muxer.memory() < 32 << 10);
    setup.offer_buffers(64);
    setup.notify(RECEIVE);
    setup.run();
    assert_eq!(setup.take_packets().len(), 128);
}

#[test]
fn packets_of_no_connection() {
    let mut setup = Setup::new();
    let (mut client, port) = setup.accepted();
    let data = packet(port, Operation::Data);
    // Answered by a reset: an unknown port on either side, another kind of socket, another context.
    let strangers = [
        Header { destination_port: port + 1, ..data },
        Header { source_port: PORT + 1, ..data },
        Header { kind: 2, ..data },
        Header { destination_cid: 99, ..data },
    ];
    for stranger in strangers {
        setup.send(stranger, b"x");
        let [reset] = setup.take_packets()[..] else { panic!("one packet expected") };
        assert_eq!(reset, stranger.refusal());
    }
    // Not answered: a reset, and a sender that is not this guest.
    setup.send(packet(port + 1, Operation::Reset), b"");
    setup.send(Header { source_cid: 43, ..data }, b"x");
    assert_eq!(setup.operations(), []);
    assert_eq!(read(&mut client), b"", "none of it reached the client");
    setup.send(data, b"mine");
    assert_eq!(read(&mut client), b"mine");
}

#[test]
fn wrong_lengths_reset_the_connection() {
    for (length, payload) in [(11, 10), ((64 << 10) + 1, (64 << 10) + 1), (u32::MAX, 0)] {
        let mut setup = Setup::new();
        let (mut client, port) = setup.accepted();
        let header = Header { length, ..packet(port, Operation::Data) };
        setup.send_raw(&[readable(&header.encode()), readable(&pattern(payload))]);
        setup.run();
        assert_eq!(setup.operations(), [(Operation::Reset, 0)]);
        assert!(at_end(&mut client));
    }
}

#[test]
fn a_guest_that_ignores_credit_is_reset() {
    let mut setup = Setup::new();
    let (mut client, port) = setup.accepted();
    let (_other, _) = setup.accepted();
    let part = pattern(64 << 10);
    // The socket takes some, then the buffer fills up.
    for _ in 0..20 {
        setup.send(packet(port, Operation::Data), &part);
    }
    let operations = setup.operations();
    assert!(operations.contains(&(Operation::Reset, 0)), "{operations:?}");
    assert!(!read(&mut client).is_empty());
    assert!(at_end(&mut client));
    assert_eq!(setup.device.muxer.client_count(), 1);

    let (mut client, port) = setup.accepted();
    let update = Header { forwarded: 1, ..packet(port, Operation::CreditUpdate) };
    setup.send(update, b"");
    assert_eq!(setup.operations(), [(Operation::Reset, 0)]);
    assert!(at_end(&mut client));
}

#[test]
fn broken_chains_are_faults() {
    let mut setup = Setup::new();
    setup.mock.offer(TRANSMIT, &[readable(&[0; 43])]);
    assert_eq!(setup.fault(TRANSMIT), "transmit queue: a packet shorter than its header");
    let mut setup = Setup::new();
    setup.mock.offer(TRANSMIT, &[writable(44)]);
    assert_eq!(setup.fault(TRANSMIT), "transmit queue: a buffer for the wrong direction");
    let buffers: [&[Segment]; 4] =
        [&[writable(43)], &[writable(44)], &[writable(44), writable(0)], &[readable(&[0; 100])]];
    for segments in buffers {
        let mut setup = Setup::new();
        setup.mock = MockDriver::with_event_index(&QUEUE_SIZES);
        setup.send_raw(&[readable(&packet(1, Operation::Request).encode())]);
        setup.mock.offer(RECEIVE, segments);
        assert!(setup.fault(RECEIVE).starts_with("receive queue: "));
    }
    let mut setup = Setup::new();
    setup.mock.set_available_index(TRANSMIT, 500);
    assert!(setup.fault(TRANSMIT).starts_with("transmit queue: "));
}

#[test]
fn a_client_that_never_finishes_its_line_makes_way() {
    let mut setup = Setup::new();
    let mut silent = setup.half_open();
    silent.write_all(b"CONNECT 1").unwrap();
    setup.run();
    assert_eq!(setup.device.muxer.client_count(), 1);
    let (mut connected, _) = setup.accepted();
    let others: Vec<UnixStream> = (0..MAX_UNGREETED)
        .map(|_| {
            let other = setup.half_open();
            setup.run();
            other
        })
        .collect();
    assert_eq!(setup.device.muxer.client_count(), MAX_UNGREETED + 1);
    assert!(at_end(&mut silent));
    assert_eq!(read(&mut connected), b"");
    assert!(!at_end(&mut connected), "a finished one stays");
    drop(others);
    setup.run();
    assert_eq!(setup.device.muxer.client_count(), 1);
}

#[test]
fn a_client_that_gives_up_waiting_for_the_guest_is_forgotten() {
    let mut setup = Setup::new();
    // All of them wait, however many there are at a time.
    let mut clients: Vec<UnixStream> = (0..2 * MAX_UNGREETED)
        .map(|_| {
            let client = setup.connect();
            setup.run();
            client
        })
        .collect();
    assert!(setup.operations().iter().all(|&packet| packet == (Operation::Request, 0)));
    assert!(!clients.iter_mut().any(at_end));
    drop(clients);
    setup.run();
    assert_eq!(setup.operations(), [(Operation::Reset, 0); 2 * MAX_UNGREETED]);
    assert_eq!(setup.device.muxer.client_count(), 0);
}

#[test]
fn a_line_that_is_none_is_closed() {
    let mut setup = Setup::new();
    for bad in ["GET / HTTP/1.1\r\n", &"C".repeat(100)] {
        let mut client = setup.half_open();
        client.write_all(bad.as_bytes()).unwrap();
        setup.run();
        // Closed with unread bytes, a Unix socket may say so.
        let end = client.read(&mut [0]);
        assert!(matches!(end, Ok(0)) || end.unwrap_err().kind() == ErrorKind::ConnectionReset);
    }
    assert_eq!(setup.device.muxer.client_count(), 0);
    assert_eq!(setup.operations(), []);
}

#[test]
fn connections_take_turns() {
    let mut setup = Setup::new();
    let mut clients: Vec<(UnixStream, u32)> = (0..3).map(|_| setup.accepted()).collect();
    for (client, _) in &mut clients {
        client.write_all(&pattern(20_000)).unwrap();
    }
    // All three are in line when the guest offers buffers.
    setup.mock = MockDriver::with_event_index(&QUEUE_SIZES);
    setup.run();
    setup.offer_buffers(20);
    setup.notify(RECEIVE);
    setup.run();
    let order: Vec<u32> = setup.take_packets().iter().map(|header| header.source_port).collect();
    assert_eq!(order.len(), 15);
    for turn in order.chunks(3) {
        let mut ports = turn.to_vec();
        ports.sort_unstable();
        assert_eq!(ports, clients.iter().map(|(_, port)| *port).collect::<Vec<_>>());
    }
}

#[test]
fn long_queues_are_done_in_turns() {
    let mut setup = Setup::new();
    for _ in 0..100 {
        let stranger = Header { source_cid: 3, ..packet(1, Operation::Data) };
        setup.mock.offer(TRANSMIT, &[readable(&stranger.encode())]);
    }
    setup.notify(TRANSMIT);
    assert_eq!(setup.mock.take_used(TRANSMIT).len(), 64);
    assert!(setup.device.is_unfinished());
    setup.notify(TRANSMIT);
    assert_eq!(setup.mock.take_used(TRANSMIT).len(), 36);
    assert!(!setup.device.is_unfinished());
}

/// The device is not served while nothing can be done: a loop that waits for its descriptors would spin.
#[test]
fn a_guest_without_buffers_keeps_nobody_busy() {
    let mut setup = Setup::new();
    let (mut client, _) = setup.accepted();
    setup.mock = MockDriver::with_event_index(&QUEUE_SIZES);
    client.write_all(b"waits").unwrap();
    let waiting = setup.connect();
    setup.run();
    drop(client);
    drop(waiting);
    setup.run();
    assert_eq!(setup.operations(), []);
    setup.offer_buffers(8);
    setup.notify(RECEIVE);
    setup.run();
    assert_eq!(setup.packets[0].1, b"waits");
    let last = setup.packets.last().unwrap().0;
    assert_eq!((last.operation, last.flags), (Operation::Shutdown, SHUTDOWN_BOTH));
}

#[test]
fn clients_come_and_go_without_a_trace() {
    let mut setup = Setup::new();
    setup.mock = MockDriver::with_event_index(&QUEUE_SIZES);
    for _ in 0..2000 {
        let client = setup.connect();
        setup.run();
        drop(client);
        setup.run();
    }
    assert_eq!(setup.device.muxer.client_count(), 0);
    assert!(setup.device.muxer.memory() < 8 << 10);
}

#[test]
fn a_full_table_gives_up_those_that_only_the_guest_keeps() {
    let mut setup = Setup::new();
    let mut clients = Vec::new();
    for _ in 0..MAX_CLIENTS {
        clients.push(setup.accepted().0);
    }
    let mut late = setup.connect();
    setup.run();
    assert_eq!(setup.operations(), [], "one too many waits at the door");
    // The guest does not answer the shutdown, but the place is needed.
    drop(clients.pop());
    setup.run();
    let operations: Vec<Operation> = setup.operations().iter().map(|(operation, _)| *operation).collect();
    assert_eq!(operations[0], Operation::Shutdown);
    assert!(operations.contains(&Operation::Reset));
    assert!(operations.contains(&Operation::Request));
    assert_eq!(setup.device.muxer.client_count(), MAX_CLIENTS);
    assert!(!at_end(&mut late));
}

#[test]
fn the_configuration_is_the_cid() {
    let setup = Setup::new();
    let mut config = [0xff; 10];
    setup.device.read_config(0, &mut config);
    assert_eq!(config, [42, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    setup.device.read_config(u64::MAX, &mut config);
    assert_eq!(config, [0; 10]);
}

/// The device of a copy, with a listener of its own.
fn restored(setup: &Setup, state: &VsockState, new_cid: u64) -> (VsockDevice, PathBuf) {
    let path = setup._directory.path().join(format!("vsock-{new_cid}"));
    let listener = UnixListener::bind(&path).unwrap();
    let new_cid = GuestCid::try_from(new_cid).unwrap();
    (VsockDevice::restored(state, new_cid, listener).unwrap(), path)
}

#[test]
fn saving_does_not_disturb_and_the_copy_begins_with_a_reset() {
    let mut setup = Setup::new();
    let (mut client, port) = setup.accepted();
    let text = serde_json::to_string(&setup.device.save()).unwrap();
    let state: VsockState = serde_json::from_str(&text).unwrap();
    let (copy, path) = restored(&setup, &state, 77);

    client.write_all(b"still").unwrap();
    setup.send(packet(port, Operation::Data), b"here");
    assert_eq!(setup.packets.remove(0).1, b"still");
    assert_eq!(read(&mut client), b"here");

    // From here on the guest is the copy's.
    let source = std::mem::replace(&mut setup.device, copy);
    setup.path = path;
    let late = setup.connect();
    let mut config = [0; 8];
    setup.device.read_config(0, &mut config);
    assert_eq!(config[0], 77);
    setup.kick();
    setup.run();
    let events = setup.mock.take_used(EVENT);
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].bytes, [0; 4]);
    assert_eq!(setup.operations(), [], "no client before the guest is ready for it");
    assert_eq!(setup.mock.available_event(EVENT), 8, "the device wants to hear of the answer");

    // What the guest still sends on the old connection has no receiver.
    setup.send(packet(port, Operation::Data), b"ghost");
    assert_eq!(setup.operations(), []);

    setup.mock.offer(EVENT, &[writable(4)]);
    setup.notify(EVENT);
    setup.run();
    let [request] = setup.take_packets()[..] else { panic!("one packet expected") };
    assert_eq!(request.operation, Operation::Request);
    assert_eq!(request.destination_cid, 77);
    assert!(request.source_port > port, "ports go on where the source was");
    assert!(setup.mock.take_used(EVENT).is_empty(), "one reset only");
    drop((late, source));
}

#[test]
fn a_reset_waits_for_a_buffer_and_is_passed_on() {
    let setup = Setup::new();
    let (copy, _) = restored(&setup, &setup.device.save(), 50);
    let mut second = Setup::new();
    second.mock = MockDriver::with_event_index(&QUEUE_SIZES);
    second.device = copy;
    second.kick();
    assert!(second.mock.take_used(EVENT).is_empty());
    second.mock.offer(EVENT, &[writable(3)]);
    assert_eq!(second.fault(EVENT), "event queue: a buffer without room for an event");

    // A copy of a copy that has not told its guest yet.
    let (copy, _) = restored(&setup, &second.device.save(), 51);
    second.mock = MockDriver::with_event_index(&QUEUE_SIZES);
    second.mock.offer(EVENT, &[writable(4)]);
    second.device = copy;
    second.kick();
    assert_eq!(second.mock.take_used(EVENT).len(), 1);
}

#[test]
fn packets_of_old_connections_get_no_answer_before_the_reset() {
    let mut setup = Setup::new();
    let (_client, port) = setup.accepted();
    // What the guest had queued when it was branched, and its copy finds in the queue.
    let data = Header { length: 5, ..packet(port, Operation::Data) };
    let (copy, _) = restored(&setup, &setup.device.save(), CID);
    setup.device = copy;
    setup.send_raw(&[readable(&data.encode()), readable(b"bytes")]);
    setup.run();
    assert_eq!(setup.mock.take_used(EVENT).len(), 1, "the reset");
    setup.send(packet(port, Operation::CreditRequest), b"");
    assert_eq!(setup.operations(), []);
    // The guest may ask for a connection, and is refused as ever.
    setup.send(packet(1234, Operation::Request), b"");
    assert_eq!(setup.operations(), [(Operation::Reset, 0)]);
    setup.mock.offer(EVENT, &[writable(4)]);
    setup.notify(EVENT);
    setup.send(packet(port, Operation::CreditRequest), b"");
    assert_eq!(setup.operations(), [(Operation::Reset, 0)]);
}

#[test]
fn a_device_without_a_driver_is_restored_without_a_reset() {
    let mut setup = Setup::new();
    setup.device.reset();
    assert!(setup.device.host_events().is_empty());
    let (mut copy, _) = restored(&setup, &setup.device.save(), 50);
    assert!(copy.host_events().is_empty());
    copy.activate(0);
    setup.device = copy;
    setup.run();
    assert!(setup.mock.take_used(EVENT).is_empty());
}

#[test]
fn a_reset_ends_all_clients() {
    let mut setup = Setup::new();
    let (mut client, _) = setup.accepted();
    setup.device.reset();
    assert!(at_end(&mut client));
    assert_eq!(setup.device.muxer.client_count(), 0);
}

#[test]
fn bad_state_is_refused() {
    let setup = Setup::new();
    let good = setup.device.save();
    let refused = |state: VsockState| {
        let path = setup._directory.path().join("refused");
        let _ = std::fs::remove_file(&path);
        VsockDevice::restored(&state, cid(), UnixListener::bind(path).unwrap()).unwrap_err()
    };
    for cid in [0, 2, 0xffff_ffff, u64::MAX] {
        let error = refused(VsockState { cid, ..good.clone() });
        assert!(matches!(error, VsockError::Cid(bad) if bad == cid));
    }
    for next_port in [0, 1, (1 << 30) - 1, 1 << 31, u32::MAX] {
        let error = refused(VsockState { next_port, ..good.clone() });
        assert!(matches!(error, VsockError::Port(_)));
    }
}

#[derive(Debug, Clone)]
enum Step {
    /// For one of the first connections, or for anyone.
    Packet {
        known: bool,
        header: [u8; 32],
        operation: u16,
        credit: (u32, u32),
        payload: usize,
        lie: bool,
    },
    Connect,
    ClientWrites(usize),
    ClientReads,
    ClientDrops,
    Run,
}

fn step() -> impl Strategy<Value = Step> {
    let credit =
        (prop_oneof![Just(GUEST_BUFFER), any::<u32>()], prop_oneof![Just(0u32), 0u32..3000, any::<u32>()]);
    prop_oneof![
        8 => (any::<bool>(), any::<[u8; 32]>(), 0u16..9, credit, 0usize..70_000, any::<bool>()).prop_map(
            |(known, header, operation, credit, payload, lie)| Step::Packet {
                known, header, operation, credit, payload, lie: lie && payload % 3 == 0
            }
        ),
        3 => Just(Step::Connect),
        2 => (1usize..50_000).prop_map(Step::ClientWrites),
        1 => Just(Step::ClientReads),
        1 => Just(Step::ClientDrops),
        3 => Just(Step::Run),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Random packets between random clients: no panic, no spinning (`run` would not return), bounded memory.
    #[test]
    fn random_guests_cost_bounded_memory(steps in proptest::collection::vec(step(), 1..80)) {
        let mut setup = Setup::new();
        let mut clients: Vec<UnixStream> = Vec::new();
        let first = setup.device.save().next_port;
        for step in steps {
            match step {
                Step::Packet { known, header, operation, credit, payload, lie } => {
                    let mut bytes = [0; PKT_HEADER_SIZE];
                    bytes[..32].copy_from_slice(&header);
                    let mut header = Header::decode(&bytes);
                    header.operation = operation.into();
                    header.length = u32::try_from(payload).unwrap() + u32::from(lie);
                    if known {
                        let newest = setup.device.save().next_port;
                        let port = first + header.destination_port % (newest - first + 1);
                        header = Header { length: header.length, flags: header.source_port % 4, ..packet(port, operation.into()) };
                    }
                    (header.buffer_size, header.forwarded) = credit;
                    setup.send_raw(&[readable(&header.encode()), readable(&pattern(payload))]);
                }
                Step::Connect => clients.push(setup.connect()),
                Step::ClientWrites(count) => {
                    for client in &mut clients {
                        let _ = client.write(&pattern(count));
                    }
                }
                Step::ClientReads => clients.iter_mut().for_each(|client| {
                    let _ = client.read_to_end(&mut Vec::new());
                }),
                Step::ClientDrops => drop(clients.pop()),
                Step::Run => setup.run(),
            }
            setup.packets.clear();
            let count = setup.device.muxer.client_count();
            prop_assert!(count <= clients.len() + 64);
            prop_assert!(setup.device.muxer.memory() <= count * (256 << 10) + (64 << 10));
            prop_assert!(setup.device.scratch.capacity() <= 256 << 10);
        }
        setup.run();
    }

    /// Whatever is in the rings, there is a result.
    #[test]
    fn no_rings_panic(descriptors in proptest::collection::vec((0u64..0x60000, 0u32..80_000, 0u16..8, 0u16..10), 8),
                      heads in proptest::collection::vec(0u16..9, 0..8)) {
        let mut setup = Setup::new();
        setup.mock = MockDriver::with_event_index(&[8, 8, 8]);
        setup.device.transport_reset = TransportReset::Due;
        for queue in [EVENT, TRANSMIT, RECEIVE] {
            for (index, &(address, length, flags, next)) in (0u16..).zip(&descriptors) {
                let flags = if queue == TRANSMIT { flags & !2 } else { flags | 2 };
                setup.mock.store(queue, index, Descriptor::new(address, length, flags, next));
            }
            for &head in &heads {
                setup.mock.offer_head(queue, head);
            }
            let device = &mut setup.device;
            setup.mock.call(|driver| drop(device.queue_notified(queue, driver)));
        }
    }
}
