use proptest::prelude::*;

use super::*;

const GUEST: u64 = 7;
const PORT: u32 = 5000;
const HOST_PORT: u32 = 1 << 30;

fn packet(operation: Operation) -> Header {
    Header {
        source_cid: GUEST,
        destination_cid: HOST_CID,
        source_port: PORT,
        destination_port: HOST_PORT,
        length: 0,
        kind: TYPE_STREAM,
        operation,
        flags: 0,
        buffer_size: 1000,
        forwarded: 0,
    }
}

fn shutdown(flags: u32) -> Header {
    Header { flags, ..packet(Operation::Shutdown) }
}

/// The operations and flags of all packets that wait.
fn packets(connection: &mut Connection) -> Vec<(Operation, u32)> {
    std::iter::from_fn(|| connection.next_packet()).map(|header| (header.operation, header.flags)).collect()
}

fn open() -> Connection {
    let mut connection = Connection::new(GUEST, PORT, HOST_PORT);
    assert_eq!(packets(&mut connection), [(Operation::Request, 0)]);
    connection.packet(&packet(Operation::Response), b"");
    assert_eq!(connection.stage(), Stage::Open);
    connection
}

fn read_all(connection: &mut Connection) -> Vec<u8> {
    let mut bytes = Vec::new();
    while !connection.unread().is_empty() {
        let part = connection.unread().to_vec();
        connection.client_took(part.len());
        bytes.extend(part);
    }
    bytes
}

#[test]
fn a_request_is_addressed_and_carries_the_buffer() {
    let mut connection = Connection::new(GUEST, PORT, HOST_PORT);
    assert_eq!(connection.room(), 0, "nothing is sent before the guest accepts");
    let request = connection.next_packet().unwrap();
    assert_eq!((request.source_cid, request.destination_cid), (2, GUEST));
    assert_eq!((request.source_port, request.destination_port), (HOST_PORT, PORT));
    assert_eq!((request.kind, request.buffer_size), (1, BUFFER));
}

#[test]
fn the_guest_s_buffer_is_never_overrun() {
    let mut connection = open();
    assert_eq!(connection.room(), 1000);
    assert_eq!(connection.data_packet(600).length, 600);
    assert!(!connection.has_packet());
    connection.data_packet(400);
    assert_eq!(connection.room(), 0);
    assert_eq!(packets(&mut connection), [(Operation::CreditRequest, 0)]);
    let update = Header { forwarded: 250, ..packet(Operation::CreditUpdate) };
    connection.packet(&update, b"");
    assert_eq!(connection.room(), 250);
    // An older count that was overtaken does not take credit away.
    connection.packet(&Header { forwarded: 100, ..update }, b"");
    assert_eq!(connection.room(), 250);
    // A guest may shrink its buffer below what is under way.
    connection.packet(&Header { buffer_size: 10, ..update }, b"");
    assert_eq!(connection.room(), 0);
    assert_eq!(connection.stage(), Stage::Open);
}

#[test]
fn counters_wrap() {
    let mut connection = open();
    let mut forwarded = 0u32;
    let step = 900 << 20;
    let update = |connection: &mut Connection, forwarded| {
        let update = Header { forwarded, buffer_size: u32::MAX, ..packet(Operation::CreditUpdate) };
        connection.packet(&update, b"");
    };
    update(&mut connection, 0);
    for _ in 0..20 {
        assert_eq!(connection.room(), 1 << 30);
        connection.data_packet(step);
        forwarded = forwarded.wrapping_add(step);
        update(&mut connection, forwarded);
        assert_eq!(connection.stage(), Stage::Open);
    }
}

#[test]
fn claims_of_bytes_that_were_never_sent_reset_it() {
    let mut connection = open();
    connection.data_packet(10);
    let update = Header { forwarded: 11, ..packet(Operation::CreditUpdate) };
    connection.packet(&update, b"");
    assert_eq!(packets(&mut connection), [(Operation::Reset, 0)]);
    assert_eq!(connection.stage(), Stage::Done);
}

#[test]
fn more_than_the_buffer_resets_it() {
    let mut connection = open();
    let part = vec![7; 64 << 10];
    for _ in 0..4 {
        connection.packet(&packet(Operation::Data), &part);
    }
    assert_eq!(connection.stage(), Stage::Open);
    connection.packet(&packet(Operation::Data), b"x");
    assert_eq!(connection.stage(), Stage::Resetting);
    assert_eq!(connection.buffer_capacity(), 0);
    connection.packet(&packet(Operation::Data), &part);
    assert_eq!(packets(&mut connection), [(Operation::Reset, 0)]);
    assert_eq!(connection.stage(), Stage::Done);
}

#[test]
fn the_guest_learns_of_room_before_it_runs_out() {
    let mut connection = open();
    let part = vec![7; 64 << 10];
    connection.packet(&packet(Operation::Data), &part);
    read_all(&mut connection);
    assert!(!connection.has_packet(), "it has plenty of room as far as it knows");
    connection.packet(&packet(Operation::Data), &part);
    connection.packet(&packet(Operation::Data), &part);
    assert!(!connection.has_packet(), "nothing new to tell");
    connection.client_took(1);
    let update = connection.next_packet().unwrap();
    assert_eq!(update.operation, Operation::CreditUpdate);
    assert_eq!(update.forwarded, (64 << 10) + 1);
    // A request is always answered.
    connection.packet(&packet(Operation::CreditRequest), b"");
    assert_eq!(packets(&mut connection), [(Operation::CreditUpdate, 0)]);
}

#[test]
fn a_refusal_ends_it() {
    let mut connection = Connection::new(GUEST, PORT, HOST_PORT);
    packets(&mut connection);
    connection.packet(&packet(Operation::Reset), b"");
    assert_eq!(connection.stage(), Stage::Done);
    assert!(!connection.has_packet());
}

#[test]
fn half_closes_leave_the_other_half() {
    let mut connection = open();
    connection.client_sends_no_more();
    connection.client_sends_no_more();
    assert_eq!(packets(&mut connection), [(Operation::Shutdown, SHUTDOWN_SEND)]);
    assert_eq!(connection.room(), 0);
    connection.packet(&packet(Operation::Data), b"answer");
    assert!(!connection.client_at_end());
    connection.packet(&shutdown(SHUTDOWN_SEND), b"");
    assert_eq!(connection.stage(), Stage::Open);
    assert!(!connection.client_at_end(), "the answer comes first");
    assert_eq!(read_all(&mut connection), b"answer");
    assert!(connection.client_at_end());
    connection.packet(&packet(Operation::Data), b"more");
    assert_eq!(packets(&mut connection), [(Operation::Reset, 0)], "data after its end");
}

#[test]
fn a_guest_that_closes_gets_its_reset_at_once_and_the_client_its_bytes() {
    let mut connection = open();
    connection.packet(&packet(Operation::Data), b"last words");
    connection.packet(&shutdown(SHUTDOWN_RECEIVE), b"");
    assert!(connection.guest_reads_no_more());
    assert_eq!(connection.room(), 0);
    connection.packet(&shutdown(SHUTDOWN_SEND), b"");
    assert_eq!(packets(&mut connection), [(Operation::Reset, 0)]);
    assert_eq!(connection.stage(), Stage::Draining);
    assert_eq!(read_all(&mut connection), b"last words");
    assert_eq!(connection.stage(), Stage::Done);

    let mut connection = open();
    connection.packet(&packet(Operation::Data), b"last words");
    connection.packet(&packet(Operation::Reset), b"");
    assert_eq!(connection.stage(), Stage::Draining);
    assert_eq!(packets(&mut connection), []);
    connection.client_reads_no_more();
    assert_eq!(connection.stage(), Stage::Done);
}

#[test]
fn a_client_that_goes_is_announced_and_the_guest_may_finish() {
    let mut connection = open();
    connection.packet(&packet(Operation::Data), b"unread");
    connection.client_reads_no_more();
    connection.packet(&packet(Operation::Data), b"under way");
    assert_eq!(connection.room(), 1000, "what the client has sent still goes to the guest");
    connection.client_sends_no_more();
    assert_eq!(connection.stage(), Stage::Closing);
    assert_eq!(packets(&mut connection), [(Operation::Shutdown, SHUTDOWN_BOTH)]);
    connection.packet(&packet(Operation::Data), b"under way too");
    assert_eq!(connection.unread(), b"");
    connection.packet(&shutdown(SHUTDOWN_BOTH), b"");
    assert_eq!(packets(&mut connection), [(Operation::Reset, 0)]);
    assert_eq!(connection.stage(), Stage::Done);
}

#[test]
fn a_client_that_goes_before_the_answer() {
    let mut unheard = Connection::new(GUEST, PORT, HOST_PORT);
    unheard.client_reads_no_more();
    assert_eq!(unheard.stage(), Stage::Done, "the guest never needs to hear of it");
    let mut heard = Connection::new(GUEST, PORT, HOST_PORT);
    packets(&mut heard);
    heard.client_reads_no_more();
    assert_eq!(packets(&mut heard), [(Operation::Reset, 0)]);
    assert_eq!(heard.stage(), Stage::Done);
}

#[test]
fn packets_out_of_turn_reset_it() {
    for operation in [Operation::Request, Operation::Response, Operation::Unknown(0)] {
        let mut connection = open();
        connection.packet(&packet(operation), b"");
        assert_eq!(connection.stage(), Stage::Resetting, "{operation:?}");
    }
    for operation in [Operation::Request, Operation::Data, Operation::Shutdown] {
        let mut connection = Connection::new(GUEST, PORT, HOST_PORT);
        packets(&mut connection);
        connection.packet(&packet(operation), b"");
        assert_eq!(connection.stage(), Stage::Resetting, "{operation:?}");
    }
    let mut guessed = Connection::new(GUEST, PORT, HOST_PORT);
    guessed.packet(&packet(Operation::Response), b"");
    assert_eq!(guessed.stage(), Stage::Done, "an answer to what was not asked yet");
}

#[derive(Debug, Clone)]
enum Step {
    Packet { operation: u16, flags: u32, buffer_size: u32, forwarded: u32, payload: usize },
    Output,
    Data(u32),
    Took(usize),
    SendsNoMore,
    ReadsNoMore,
    Abort,
}

fn step() -> impl Strategy<Value = Step> {
    let number = prop_oneof![0u32..2000, any::<u32>()];
    prop_oneof![
        6 => (0u16..9, 0u32..8, number.clone(), number, 0usize..70_000).prop_map(
            |(operation, flags, buffer_size, forwarded, payload)| Step::Packet {
                operation, flags, buffer_size, forwarded, payload
            }
        ),
        6 => Just(Step::Packet { operation: 5, flags: 0, buffer_size: 5000, forwarded: 0, payload: 3000 }),
        4 => Just(Step::Output),
        2 => any::<u32>().prop_map(Step::Data),
        4 => (0usize..100_000).prop_map(Step::Took),
        1 => Just(Step::SendsNoMore),
        1 => Just(Step::ReadsNoMore),
        1 => Just(Step::Abort),
    ]
}

proptest! {
    /// Whatever happens in whatever order: the buffer keeps to its size, a finished connection stays finished and says
    /// nothing, and the guest is not sent more than it has room for.
    #[test]
    fn no_order_of_events_breaks_it(start_open: bool, steps in proptest::collection::vec(step(), 0..60)) {
        let mut connection = if start_open { open() } else { Connection::new(GUEST, PORT, HOST_PORT) };
        for step in steps {
            let done = connection.stage() == Stage::Done;
            match step {
                Step::Packet { operation, flags, buffer_size, forwarded, payload } => {
                    let header = Header { flags, buffer_size, forwarded, ..packet(operation.into()) };
                    connection.packet(&header, &vec![1; payload]);
                }
                Step::Output => drop(connection.next_packet()),
                Step::Data(length) => {
                    let room = connection.room();
                    if room > 0 {
                        connection.data_packet(length.min(room));
                    }
                }
                Step::Took(count) => connection.client_took(count.min(connection.unread().len())),
                Step::SendsNoMore => connection.client_sends_no_more(),
                Step::ReadsNoMore => connection.client_reads_no_more(),
                Step::Abort => connection.abort(),
            }
            prop_assert!(connection.buffer.len() <= BUFFER as usize);
            prop_assert!(connection.outstanding() <= MAX_WINDOW);
            prop_assert!(!done || connection.stage() == Stage::Done);
            if connection.stage() == Stage::Done {
                prop_assert!(!connection.has_packet() && connection.room() == 0 && connection.unread().is_empty());
            }
        }
    }
}
