//! The block device with a mock driver, a good one and hostile ones.

use std::fs::File;

use proptest::prelude::*;
use virtio_bindings::virtio_blk::*;
use virtio_bindings::virtio_mmio::*;

use super::{Block, BlockErrors, DiskName};
use crate::disk::{Frozen, GRAIN, LayerStack, LayeredDisk};
use crate::virtio::VirtioDevice;
use crate::virtio::transport::MmioTransport;
use crate::virtio::transport::mock::{
    self, BUFFERS, Buffer, FEATURES, INDIRECT, MEMORY, MockDriver, NEXT, WRITE, readable, writable,
};

const SIZE: u64 = 256 * GRAIN as u64;
const SECTORS: u64 = SIZE / 512;
const NAME: &DiskName = b"forkd-root\0\0\0\0\0\0\0\0\0\0";

/// Where the parts of a request are in guest memory.
const HEADER: u64 = BUFFERS;
const STATUS: u64 = BUFFERS + 0x100;
const DATA: u64 = BUFFERS + 0x1000;

const OK: u8 = VIRTIO_BLK_S_OK.to_le_bytes()[0];
const IOERR: u8 = VIRTIO_BLK_S_IOERR.to_le_bytes()[0];
const UNSUPP: u8 = VIRTIO_BLK_S_UNSUPP.to_le_bytes()[0];
/// What is in the place for the status before.
const UNTOUCHED: u8 = 0x77;

fn file() -> File {
    tempfile::tempfile().unwrap()
}

fn block(limit: u64) -> Block {
    let stack = LayerStack::new(SIZE, None, vec![]).unwrap();
    Block::new(LayeredDisk::with_empty_top(stack, file(), limit).unwrap(), *NAME)
}

fn driver() -> MockDriver<Block> {
    MockDriver::running(block(u64::MAX))
}

fn put_header(driver: &MockDriver<Block>, kind: u32, sector: u64) {
    driver.put(HEADER, &kind.to_le_bytes());
    driver.put(HEADER + 4, &[0; 4]);
    driver.put(HEADER + 8, &sector.to_le_bytes());
    driver.put(STATUS, &[UNTOUCHED]);
}

/// Sends one request with a header and these buffers, and returns its status.
fn send(driver: &mut MockDriver<Block>, kind: u32, sector: u64, buffers: &[Buffer]) -> u8 {
    put_header(driver, kind, sector);
    let mut chain = vec![readable(HEADER, 16)];
    chain.extend_from_slice(buffers);
    chain.push(writable(STATUS, 1));
    let before = driver.used_index(0);
    driver.offer(0, 0, &chain);
    driver.notify(0);
    assert_eq!(driver.transport.fault(), None);
    assert_eq!(driver.used_index(0), before.wrapping_add(1));
    driver.get(STATUS, 1)[0]
}

fn write(driver: &mut MockDriver<Block>, sector: u64, data: &[u8]) -> u8 {
    driver.put(DATA, data);
    let buffer = readable(DATA, u32::try_from(data.len()).unwrap());
    send(driver, VIRTIO_BLK_T_OUT, sector, &[buffer])
}

fn read(driver: &mut MockDriver<Block>, sector: u64, length: usize) -> Vec<u8> {
    driver.put(DATA, &vec![0xee; length]);
    let buffer = writable(DATA, u32::try_from(length).unwrap());
    assert_eq!(send(driver, VIRTIO_BLK_T_IN, sector, &[buffer]), OK);
    driver.get(DATA, length)
}

fn range(driver: &mut MockDriver<Block>, kind: u32, sector: u64, sectors: u32, flags: u32) -> u8 {
    driver.put(DATA, &sector.to_le_bytes());
    driver.put(DATA + 8, &sectors.to_le_bytes());
    driver.put(DATA + 12, &flags.to_le_bytes());
    send(driver, kind, 0, &[readable(DATA, 16)])
}

#[test]
fn what_is_written_is_read_again() {
    let mut driver = driver();
    let data: Vec<u8> = (0..200_704u32).map(|at| (at / 512 * 7 + at).to_le_bytes()[0]).collect();
    assert_eq!(write(&mut driver, 3, &data), OK);
    assert_eq!(read(&mut driver, 3, data.len()), data);
    assert_eq!(read(&mut driver, 0, 1536), [0; 1536]);
    // The used ring says how many bytes the driver may look at, with the status.
    assert_eq!(driver.used(0, driver.used_index(0) - 1), (0, 1537));
    assert_eq!(send(&mut driver, VIRTIO_BLK_T_FLUSH, 0, &[]), OK);

    // The same in small pieces that do not end where sectors do.
    let pieces = [writable(DATA, 100), writable(DATA + 100, 1), writable(DATA + 101, 923)];
    assert_eq!(send(&mut driver, VIRTIO_BLK_T_IN, 3, &pieces), OK);
    assert_eq!(driver.get(DATA, 1024), data[..1024]);
}

#[test]
fn the_disk_has_its_size_and_its_name() {
    let mut driver = driver();
    let field = |at: u64| {
        let mut bytes = [0; 4];
        driver.transport.read(0x100 + at, &mut bytes);
        u32::from_le_bytes(bytes)
    };
    assert_eq!((u64::from(field(0)), field(4)), (SECTORS, 0));
    assert_eq!((field(8), field(12), field(20)), (128 << 10, 126, 512));
    assert_eq!((field(36), field(40), field(44)), (1 << 22, 16, 8));
    assert_eq!((field(48), field(52), field(56)), (1 << 22, 16, 1));
    assert_eq!((field(60), field(0xe00)), (0, 0));
    let mut tail = [0xff; 8];
    driver.transport.read(0x100 + 56, &mut tail);
    assert_eq!(tail, [1, 0, 0, 0, 0, 0, 0, 0]);

    assert_eq!(send(&mut driver, VIRTIO_BLK_T_GET_ID, 0, &[writable(DATA, 20)]), OK);
    assert_eq!(driver.get(DATA, 20), *NAME);
    assert_eq!(send(&mut driver, VIRTIO_BLK_T_GET_ID, 0, &[writable(DATA, 19)]), IOERR);
}

#[test]
fn ranges_are_discarded_and_zeroed() {
    let mut driver = driver();
    write(&mut driver, 0, &[5; 8 * GRAIN]);
    assert_eq!(range(&mut driver, VIRTIO_BLK_T_DISCARD, 8, 8, 0), OK);
    assert_eq!(range(&mut driver, VIRTIO_BLK_T_WRITE_ZEROES, 17, 2, 0), OK);
    assert_eq!(range(&mut driver, VIRTIO_BLK_T_WRITE_ZEROES, 32, 8, 1), OK);
    let data = read(&mut driver, 0, 8 * GRAIN);
    let zero = |sector: usize| data[sector * 512..][..512] == [0; 512];
    let zeroes: Vec<usize> = (0..64).filter(|sector| zero(*sector)).collect();
    let expected: Vec<usize> = (8..16).chain(17..19).chain(32..40).collect();
    assert_eq!(zeroes, expected);

    // Several ranges in one request.
    for (index, sector) in [0u64, 48].into_iter().enumerate() {
        driver.put(DATA + 16 * index as u64, &sector.to_le_bytes());
        driver.put(DATA + 16 * index as u64 + 8, &[8, 0, 0, 0, 0, 0, 0, 0]);
    }
    assert_eq!(send(&mut driver, VIRTIO_BLK_T_DISCARD, 0, &[readable(DATA, 32)]), OK);
    assert_eq!(read(&mut driver, 48, GRAIN), [0; GRAIN]);
}

#[test]
fn huge_and_odd_ranges_are_refused() {
    let mut driver = driver();
    write(&mut driver, 0, &[5; GRAIN]);
    for kind in [VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_WRITE_ZEROES] {
        for (sector, sectors) in [
            (0, u32::MAX),
            (0, (1 << 22) + 1),
            (SECTORS, 1),
            (SECTORS - 1, 2),
            (u64::MAX, 1),
            (u64::MAX / 512, u32::MAX),
        ] {
            assert_eq!(range(&mut driver, kind, sector, sectors, 0), IOERR, "{sector} {sectors}");
        }
        assert_eq!(range(&mut driver, kind, 0, 8, 2), UNSUPP);
        for length in [0, 1, 15, 17, 16 * 17] {
            let status = send(&mut driver, kind, 0, &[readable(DATA, length)]);
            assert_eq!(status, IOERR, "{length}");
        }
    }
    assert_eq!(range(&mut driver, VIRTIO_BLK_T_DISCARD, 0, 8, 1), UNSUPP);
    assert_eq!(read(&mut driver, 0, GRAIN), [5; GRAIN]);
    // The largest that is allowed is just a range.
    let all = u32::try_from(SECTORS).unwrap();
    assert_eq!(range(&mut driver, VIRTIO_BLK_T_DISCARD, 0, all, 0), OK);
    assert_eq!(read(&mut driver, 0, GRAIN), [0; GRAIN]);
}

#[test]
fn requests_that_make_no_sense_get_an_error() {
    let mut driver = driver();
    let sector = |writable| Buffer { address: DATA, length: 512, writable };
    let mut status = |kind, at, buffers: &[Buffer]| send(&mut driver, kind, at, buffers);
    assert_eq!(status(VIRTIO_BLK_T_SCSI_CMD, 0, &[]), UNSUPP);
    assert_eq!(status(99, 0, &[sector(false)]), UNSUPP);
    // Nothing to read or write, half sectors, sectors that are not there.
    for kind in [VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT] {
        let writable = kind == VIRTIO_BLK_T_IN;
        assert_eq!(status(kind, 0, &[]), IOERR);
        let odd = Buffer { length: 511, ..sector(writable) };
        assert_eq!(status(kind, 0, &[odd]), IOERR);
        for at in [SECTORS, u64::MAX, u64::MAX / 512] {
            assert_eq!(status(kind, at, &[sector(writable)]), IOERR);
        }
        // A buffer with the wrong direction.
        assert_eq!(status(kind, 0, &[sector(!writable)]), IOERR);
        assert_eq!(status(kind, 0, &[sector(false), sector(true)]), IOERR);
    }
    assert_eq!(status(VIRTIO_BLK_T_FLUSH, 0, &[sector(true)]), IOERR);
    assert_eq!(driver.transport.device().errors(), Default::default());

    // A request that begins on the disk and ends beyond it writes nothing.
    let beyond = vec![1; 130 << 10];
    assert_eq!(write(&mut driver, SECTORS - 256, &beyond), IOERR);
    assert_eq!(read(&mut driver, SECTORS - 256, 512), [0; 512]);

    // More than a request can have, all in the same memory.
    let buffers = vec![writable(DATA, 2 << 20); 8];
    assert_eq!(send(&mut driver, VIRTIO_BLK_T_IN, 0, &buffers), IOERR);
    // A header that is too short.
    driver.offer(0, 0, &[readable(HEADER, 15), writable(STATUS, 1)]);
    driver.notify(0);
    assert_eq!(driver.get(STATUS, 1), [IOERR]);
}

#[test]
fn a_full_disk_is_an_error_for_the_guest_and_news_for_the_host() {
    let mut driver = MockDriver::running(block(2 * GRAIN as u64));
    assert_eq!(write(&mut driver, 0, &[1; 2 * GRAIN]), OK);
    assert_eq!(write(&mut driver, 16, &[1; 512]), IOERR);
    assert_eq!(driver.transport.device().errors().out_of_space, 1);
    assert_eq!(driver.transport.device().errors().failed, 0);
    assert_eq!(write(&mut driver, 0, &[2; GRAIN]), OK);
    assert_eq!(range(&mut driver, VIRTIO_BLK_T_DISCARD, 0, 8, 0), OK);
    assert_eq!(write(&mut driver, 16, &[1; 512]), OK);
}

#[test]
fn a_disk_that_is_read_only_is_never_written_to() {
    let offered = |block: &Block, bit: u32| block.features() & (1 << bit) != 0;
    let block = block(u64::MAX);
    assert!(!offered(&block, VIRTIO_BLK_F_RO) && offered(&block, VIRTIO_BLK_F_DISCARD));
    let block = block.read_only(true);
    assert!(offered(&block, VIRTIO_BLK_F_RO) && !offered(&block, VIRTIO_BLK_F_DISCARD));
    // A driver that does not care what it was told.
    let mut driver = MockDriver::running(block);
    assert_eq!(write(&mut driver, 0, &[7; 512]), IOERR);
    for kind in [VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_WRITE_ZEROES] {
        assert_eq!(range(&mut driver, kind, 0, 8, 0), IOERR);
    }
    assert_eq!(read(&mut driver, 0, 512), [0; 512]);
    assert_eq!(driver.transport.device().errors(), BlockErrors::default());
    let top = driver.transport.device().disk().prepare_top(file()).unwrap();
    assert_eq!(driver.transport.device_mut().freeze_under(top), Frozen::Nothing);
}

#[test]
fn the_lack_of_room_is_told_once_for_each_top_layer() {
    let limit = GRAIN as u64;
    let mut driver = MockDriver::running(block(limit));
    let told = |driver: &mut MockDriver<Block>| driver.transport.device_mut().take_out_of_space();
    assert_eq!(write(&mut driver, 0, &[1; GRAIN]), OK);
    assert_eq!(told(&mut driver), None);
    for news in [Some(limit), None] {
        assert_eq!(write(&mut driver, 8, &[1; 512]), IOERR);
        assert_eq!(write(&mut driver, 16, &[1; 512]), IOERR);
        assert_eq!(told(&mut driver), news);
    }

    let freeze = |driver: &mut MockDriver<Block>| {
        let block = driver.transport.device_mut();
        let top = block.disk().prepare_top(tempfile::tempfile().unwrap()).unwrap();
        block.freeze_under(top);
    };
    freeze(&mut driver);
    assert_eq!(write(&mut driver, 0, &[1; 512]), OK);
    assert_eq!(told(&mut driver), None);
    assert_eq!(write(&mut driver, 16, &[1; 512]), IOERR);
    // What was not told yet is not forgotten.
    freeze(&mut driver);
    assert_eq!(told(&mut driver), Some(limit));
}

#[test]
fn a_driver_that_cannot_flush_has_its_writes_flushed() {
    let written = |features: u64| {
        let mut driver = MockDriver::new(block(u64::MAX));
        driver.start(features);
        write(&mut driver, 0, &[1; 512]);
        let top = driver.transport.device().disk().top_file().try_clone().unwrap();
        crate::disk::Layer::open(top).unwrap().allocated()
    };
    assert_eq!(written(FEATURES), GRAIN as u64);
    assert_eq!(written(FEATURES | 1 << VIRTIO_BLK_F_FLUSH), 0);
}

/// Sends one broken request and returns the fault.
fn fault(prepare: impl FnOnce(&mut MockDriver<Block>)) -> String {
    let mut driver = driver();
    put_header(&driver, VIRTIO_BLK_T_IN, 0);
    prepare(&mut driver);
    driver.notify(0);
    assert_eq!(driver.read(VIRTIO_MMIO_STATUS), 64 | 15);
    assert_eq!(driver.get(STATUS, 1), [UNTOUCHED]);
    let fault = driver.fault().to_owned();

    // A reset makes it work again.
    driver.start(FEATURES);
    driver.put_available_index(0, 0);
    driver.put(mock::used(0) + 2, &[0; 2]);
    assert_eq!(write(&mut driver, 0, &[1; 512]), OK);
    fault
}

#[test]
fn a_broken_ring_stops_the_device() {
    let (table, inner) = (mock::descriptors(0), BUFFERS + 0x8000);
    let fault_of = |text: &str, fault: String| assert!(fault.contains(text), "{fault}");
    fault_of(
        "broken off",
        fault(|driver| {
            // A loop.
            driver.put_descriptor(table, 0, HEADER, 16, NEXT, 1);
            driver.put_descriptor(table, 1, DATA, 16, NEXT, 0);
            driver.offer_head(0, 0);
        }),
    );
    fault_of(
        "broken off",
        fault(|driver| {
            driver.put_descriptor(table, 0, HEADER, 16, NEXT, 16);
            driver.offer_head(0, 0);
        }),
    );
    fault_of(
        "broken off",
        fault(|driver| {
            // More than four gigabytes.
            driver.put_chain(
                table,
                0,
                &[readable(HEADER, 16), writable(DATA, u32::MAX), writable(STATUS, 1)],
            );
            driver.offer_head(0, 0);
        }),
    );
    fault_of(
        "more than 128",
        fault(|driver| {
            // A loop in an indirect table.
            driver.put_descriptor(table, 0, inner, 16 * 1000, INDIRECT, 0);
            driver.put_descriptor(inner, 0, HEADER, 16, NEXT, 0);
            driver.offer_head(0, 0);
        }),
    );
    fault_of(
        "without a readable",
        fault(|driver| {
            // An indirect table that is itself.
            driver.put_descriptor(table, 0, inner, 16, INDIRECT, 0);
            driver.put_descriptor(inner, 0, inner, 16, INDIRECT, 0);
            driver.offer_head(0, 0);
        }),
    );
    for (address, length) in [(inner, 15), (inner, 0), (MEMORY, 16), (!15, 32), (inner, !15)] {
        fault_of(
            "without a readable",
            fault(|driver| {
                driver.put_descriptor(table, 0, address, length, INDIRECT, 0);
                driver.offer_head(0, 0);
            }),
        );
    }
    fault_of("without a readable", fault(|driver| driver.offer_head(0, 16)));
    fault_of("index", fault(|driver| driver.put_available_index(0, 17)));
    fault_of("without a place", fault(|driver| driver.offer(0, 0, &[readable(HEADER, 16)])));
    fault_of(
        "without a place",
        fault(|driver| {
            driver.offer(0, 0, &[readable(HEADER, 16), writable(STATUS, 0)]);
        }),
    );
    fault_of(
        "after a buffer to write",
        fault(|driver| {
            let chain = [readable(HEADER, 16), writable(STATUS, 1), readable(DATA, 512)];
            driver.offer(0, 0, &chain);
        }),
    );
    for (address, length) in [(MEMORY, 512), (MEMORY - 511, 512), (u64::MAX - 511, 512), (u64::MAX, 1)] {
        fault_of(
            "outside of memory",
            fault(|driver| {
                let chain = [readable(HEADER, 16), writable(address, length), writable(STATUS, 1)];
                driver.offer(0, 0, &chain);
            }),
        );
        fault_of(
            "outside of memory",
            fault(|driver| {
                driver.offer(0, 0, &[readable(address, length), writable(STATUS, 1)]);
            }),
        );
    }
}

#[test]
fn an_indirect_table_is_as_good_as_a_direct_one() {
    let mut driver = driver();
    write(&mut driver, 0, &[9; 512]);
    put_header(&driver, VIRTIO_BLK_T_IN, 0);
    let inner = BUFFERS + 0x8000;
    driver.put_chain(inner, 0, &[readable(HEADER, 16), writable(DATA, 512), writable(STATUS, 1)]);
    driver.put_descriptor(mock::descriptors(0), 3, inner, 48, INDIRECT, 0);
    driver.offer_head(0, 3);
    driver.notify(0);
    assert_eq!(driver.get(STATUS, 1), [OK]);
    assert_eq!(driver.get(DATA, 512), [9; 512]);
}

/// Each request reads the next one, and the ring's index, from the disk: the device would go on for ever without any vCPU.
#[test]
fn a_device_that_feeds_itself_stops_now_and_then() {
    let mut block = block(u64::MAX);
    for sector in 0..SECTORS {
        let mut bytes = [0; 512];
        bytes[..2].copy_from_slice(&u16::try_from(sector + 2).unwrap().to_le_bytes());
        bytes[10..18].copy_from_slice(&(sector + 1).to_le_bytes());
        block.disk_mut().write_at(sector * 512, &bytes).unwrap();
    }
    let mut driver = MockDriver::running(block);
    put_header(&driver, VIRTIO_BLK_T_IN, 0);
    driver.offer(
        0,
        0,
        &[
            readable(HEADER, 16),
            writable(mock::available(0) + 2, 2),
            writable(HEADER, 16),
            writable(DATA, 494),
            writable(STATUS, 1),
        ],
    );
    driver.notify(0);
    assert_eq!(driver.used_index(0), 256);
    assert!(driver.transport.is_unfinished());
    driver.transport.kick();
    assert_eq!(driver.used_index(0), 512);
}

/// A pause waits for one call: whatever makes the host's disk work is the last thing in it.
#[test]
fn flushes_and_large_ranges_end_a_call() {
    let mut driver = driver();
    put_header(&driver, VIRTIO_BLK_T_FLUSH, 0);
    for first in [0, 4, 8] {
        driver.offer(0, first, &[readable(HEADER, 16), writable(STATUS, 1)]);
    }
    driver.notify(0);
    for done in 1..3 {
        assert_eq!(driver.used_index(0), done);
        assert!(driver.transport.is_unfinished());
        driver.transport.kick();
    }
    assert_eq!(driver.used_index(0), 3);

    let mut driver = MockDriver::running(large_block());
    put_header(&driver, VIRTIO_BLK_T_DISCARD, 0);
    driver.put(DATA, &0u64.to_le_bytes());
    driver.put(DATA + 8, &(64u32 << 11).to_le_bytes());
    driver.put(DATA + 12, &0u32.to_le_bytes());
    for first in [0, 4] {
        driver.offer(0, first, &[readable(HEADER, 16), readable(DATA, 16), writable(STATUS, 1)]);
    }
    driver.notify(0);
    assert_eq!((driver.used_index(0), driver.get(STATUS, 1)[0]), (1, OK));
    driver.transport.kick();
    assert_eq!(driver.used_index(0), 2);
}

/// Of a gibibyte.
fn large_block() -> Block {
    let stack = LayerStack::new(1 << 30, None, vec![]).unwrap();
    Block::new(LayeredDisk::with_empty_top(stack, file(), u64::MAX).unwrap(), *NAME)
}

#[test]
fn a_restored_device_goes_on_where_the_first_stopped() {
    let mut driver = driver();
    write(&mut driver, 0, &[1; 512]);
    // Offered, and the notification got lost.
    put_header(&driver, VIRTIO_BLK_T_IN, 0);
    driver.offer(0, 0, &[readable(HEADER, 16), writable(DATA + 512, 512), writable(STATUS, 1)]);

    let transport = driver.transport.state();
    let disk = driver.transport.device_mut().disk_mut();
    disk.freeze_top(file()).unwrap();
    disk.flush().unwrap();
    let frozen = disk.stack().layer_files().map(|file| file.try_clone().unwrap());
    let stack = LayerStack::restore(&disk.state(), None, frozen.collect()).unwrap();
    let block = Block::new(LayeredDisk::with_empty_top(stack, file(), u64::MAX).unwrap(), *NAME);

    let (memory, interrupt) = (driver.memory.clone(), driver.interrupt.clone());
    driver.transport = MmioTransport::restore(block, memory, interrupt, &transport).unwrap();
    driver.transport.kick();
    assert_eq!(driver.get(STATUS, 1), [OK]);
    assert_eq!(driver.get(DATA + 512, 512), [1; 512]);
    assert_eq!(driver.used_index(0), 2);
}

#[test]
fn a_boxed_device_is_the_same() {
    let boxed: Box<dyn VirtioDevice> = Box::new(block(u64::MAX));
    let driver = MockDriver::running(boxed);
    assert_eq!(driver.read(VIRTIO_MMIO_DEVICE_ID), 2);
    assert_eq!(driver.read(VIRTIO_MMIO_CONFIG), u32::try_from(SECTORS).unwrap());
}

fn any_address() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => (0u64..16).prop_map(|at| BUFFERS + at * 256),
        2 => (0u64..64).prop_map(|at| mock::descriptors(0) + at * 16),
        1 => (0u64..64).prop_map(|at| mock::available(0) + at),
        1 => (0u64..64).prop_map(|at| mock::used(0) + at),
        1 => (0u64..32).prop_map(|at| MEMORY - at),
        1 => any::<u64>(),
    ]
}

fn any_length() -> impl Strategy<Value = u32> {
    prop_oneof![Just(16u32), Just(1), Just(512), Just(4096), 0u32..2000, any::<u32>()]
}

fn any_flags() -> impl Strategy<Value = u16> {
    prop_oneof![
        4 => Just(NEXT), 3 => Just(WRITE), 4 => Just(NEXT | WRITE), 1 => Just(0), 1 => Just(INDIRECT),
        1 => any::<u16>(),
    ]
}

proptest! {
    #[test]
    fn no_descriptors_panic(
        table in proptest::collection::vec((any_address(), any_length(), any_flags(), 0u16..18), 16),
        headers in proptest::collection::vec(
            (prop_oneof![0u32..16, any::<u32>()], prop_oneof![0..SECTORS, any::<u64>()]), 16),
        heads in proptest::collection::vec(0u16..18, 1..16),
        index in prop_oneof![8 => 0u16..17, 1 => any::<u16>()],
        rounds in 1usize..4,
    ) {
        let mut driver = driver();
        for (at, (kind, sector)) in headers.into_iter().enumerate() {
            let at = BUFFERS + 256 * at as u64;
            driver.put(at, &kind.to_le_bytes());
            driver.put(at + 8, &sector.to_le_bytes());
        }
        for (index, (address, length, flags, next)) in table.into_iter().enumerate() {
            let index = u16::try_from(index).unwrap();
            driver.put_descriptor(mock::descriptors(0), index, address, length, flags, next);
        }
        for head in heads {
            driver.offer_head(0, head);
        }
        if index > 0 {
            driver.put_available_index(0, index);
        }
        for _ in 0..rounds {
            driver.notify(0);
            driver.transport.kick();
        }
        // Whatever happened, what is saved can be restored.
        let (memory, interrupt) = (driver.memory.clone(), driver.interrupt.clone());
        let state = driver.transport.state();
        prop_assert!(MmioTransport::restore(block(u64::MAX), memory, interrupt, &state).is_ok());
    }
}
