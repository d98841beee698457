//! A driver for tests: rings in guest memory, buffers that it offers and collects.
//!
//! virtio-queue's `MockSplitQueue` fills a ring once and lays the used ring over the end of the available one. Streams of
//! packets need rings that wrap, so this one writes them itself.

use virtio_queue::desc::RawDescriptor;
use virtio_queue::desc::split::{Descriptor, VirtqUsedElem};
use virtio_queue::{Queue, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use crate::virtio::Driver;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
/// Each queue has its rings and the buffers of its descriptors in an area of its own.
const QUEUE_AREA: u64 = 64 << 20;
const AVAILABLE: u64 = 0x8000;
const USED: u64 = 0x10000;
const BUFFERS: u64 = 0x20000;
const BUFFER: u64 = 128 << 10;

pub(in crate::virtio) enum Segment {
    Readable(Vec<u8>),
    Writable(u32),
}

pub(in crate::virtio) fn readable(bytes: &[u8]) -> Segment {
    Segment::Readable(bytes.to_vec())
}

pub(in crate::virtio) fn writable(length: u32) -> Segment {
    Segment::Writable(length)
}

pub(in crate::virtio) struct Used {
    pub head: u16,
    pub length: u32,
    /// What the device has written.
    pub bytes: Vec<u8>,
}

struct MockRing {
    free: Vec<u16>,
    /// The descriptors of each chain that the device has, by head.
    chains: Vec<Vec<(u16, Segment)>>,
    used: u16,
}

pub(in crate::virtio) struct MockDriver {
    pub memory: GuestMemoryMmap,
    pub queues: Vec<Queue>,
    rings: Vec<MockRing>,
}

impl MockDriver {
    pub fn new(sizes: &[u16]) -> MockDriver {
        let ranges: Vec<_> =
            (0..sizes.len() as u64).map(|queue| (GuestAddress(queue * QUEUE_AREA), 40 << 20)).collect();
        let memory = GuestMemoryMmap::from_ranges(&ranges).unwrap();
        let queues = sizes.iter().enumerate().map(|(index, &size)| {
            let mut queue = Queue::new(size).unwrap();
            let base = index as u64 * QUEUE_AREA;
            queue.try_set_desc_table_address(GuestAddress(base)).unwrap();
            queue.try_set_avail_ring_address(GuestAddress(base + AVAILABLE)).unwrap();
            queue.try_set_used_ring_address(GuestAddress(base + USED)).unwrap();
            queue.set_ready(true);
            assert!(queue.is_valid(&memory));
            queue
        });
        let rings = sizes.iter().map(|&size| MockRing {
            free: (0..size).rev().collect(),
            chains: Vec::new(),
            used: 0,
        });
        MockDriver { queues: queues.collect(), rings: rings.collect(), memory }
    }

    pub fn with_event_index(sizes: &[u16]) -> MockDriver {
        let mut mock = MockDriver::new(sizes);
        for queue in &mut mock.queues {
            queue.set_event_idx(true);
        }
        mock
    }

    /// Offers a chain and returns its head. Consecutive segments use consecutive descriptors as long as all are free.
    pub fn offer(&mut self, queue: usize, segments: &[Segment]) -> u16 {
        let base = queue as u64 * QUEUE_AREA;
        let ring = &mut self.rings[queue];
        let indices: Vec<u16> = segments.iter().map(|_| ring.free.pop().unwrap()).collect();
        let mut chain = Vec::new();
        for (at, segment) in segments.iter().enumerate() {
            let address = base + BUFFERS + u64::from(indices[at]) * BUFFER;
            let next = indices.get(at + 1).copied();
            let mut flags = if next.is_some() { NEXT } else { 0 };
            let length = match segment {
                Segment::Readable(bytes) => {
                    self.memory.write_slice(bytes, GuestAddress(address)).unwrap();
                    chain.push((indices[at], readable(bytes)));
                    u32::try_from(bytes.len()).unwrap()
                }
                Segment::Writable(length) => {
                    flags |= WRITE;
                    chain.push((indices[at], writable(*length)));
                    *length
                }
            };
            assert!(u64::from(length) <= BUFFER);
            self.store(queue, indices[at], Descriptor::new(address, length, flags, next.unwrap_or(0)));
        }
        self.rings[queue].chains.push(chain);
        self.offer_head(queue, indices[0]);
        indices[0]
    }

    /// Puts a head into the available ring, whatever it is.
    pub fn offer_head(&mut self, queue: usize, head: u16) {
        let index = self.available_index(queue);
        let at = u64::from(index % self.queues[queue].size()) * 2;
        self.write_available(queue, 4 + at, head);
        self.set_available_index(queue, index.wrapping_add(1));
    }

    /// Collects what the device has given back.
    pub fn take_used(&mut self, queue: usize) -> Vec<Used> {
        let base = queue as u64 * QUEUE_AREA;
        let index: u16 = self.memory.read_obj(GuestAddress(base + USED + 2)).unwrap();
        let mut all = Vec::new();
        while self.rings[queue].used != index {
            let ring = &mut self.rings[queue];
            let at = u64::from(ring.used % self.queues[queue].size()) * 8;
            ring.used = ring.used.wrapping_add(1);
            let element: VirtqUsedElem = self.memory.read_obj(GuestAddress(base + USED + 4 + at)).unwrap();
            let head = u16::try_from(element.id()).unwrap();
            let position = ring.chains.iter().position(|chain| chain[0].0 == head);
            let chain = ring.chains.remove(position.expect("a chain that the device does not have"));
            let mut bytes = Vec::new();
            for (index, segment) in chain.iter().rev() {
                ring.free.push(*index);
                if let Segment::Writable(length) = segment {
                    let mut written = vec![0; *length as usize];
                    let address = base + BUFFERS + u64::from(*index) * BUFFER;
                    self.memory.read_slice(&mut written, GuestAddress(address)).unwrap();
                    written.append(&mut bytes);
                    bytes = written;
                }
            }
            bytes.truncate(element.len() as usize);
            all.push(Used { head, length: element.len(), bytes });
        }
        all
    }

    /// Calls the device and returns whether it wants an interrupt.
    pub fn call(&mut self, call: impl FnOnce(&mut Driver<'_>)) -> bool {
        let mut driver = Driver { memory: &self.memory, queues: &mut self.queues, interrupt: false };
        call(&mut driver);
        driver.interrupt
    }

    pub fn available_index(&self, queue: usize) -> u16 {
        let at = queue as u64 * QUEUE_AREA + AVAILABLE + 2;
        self.memory.read_obj(GuestAddress(at)).unwrap()
    }

    pub fn set_available_index(&mut self, queue: usize, index: u16) {
        self.write_available(queue, 2, index);
    }

    pub fn set_no_interrupt(&mut self, queue: usize) {
        self.write_available(queue, 0, 1);
    }

    pub fn set_used_event(&mut self, queue: usize, index: u16) {
        let at = 4 + 2 * u64::from(self.queues[queue].size());
        self.write_available(queue, at, index);
    }

    /// With the event index: the device wants to hear when the driver adds the chain of this index.
    pub fn available_event(&self, queue: usize) -> u16 {
        let at = USED + 4 + 8 * u64::from(self.queues[queue].size());
        self.memory.read_obj(GuestAddress(queue as u64 * QUEUE_AREA + at)).unwrap()
    }

    /// Makes one descriptor follow another.
    pub fn link(&mut self, queue: usize, from: u16, to: u16) {
        let at = GuestAddress(queue as u64 * QUEUE_AREA + u64::from(from) * 16);
        let descriptor = Descriptor::from(self.memory.read_obj::<RawDescriptor>(at).unwrap());
        let flags = descriptor.flags() | NEXT;
        self.store(queue, from, Descriptor::new(descriptor.addr().0, descriptor.len(), flags, to));
    }

    /// Writes a descriptor as it is.
    pub fn store(&mut self, queue: usize, index: u16, descriptor: Descriptor) {
        let at = GuestAddress(queue as u64 * QUEUE_AREA + u64::from(index) * 16);
        self.memory.write_obj(RawDescriptor::from(descriptor), at).unwrap();
    }

    fn write_available(&mut self, queue: usize, offset: u64, value: u16) {
        let at = GuestAddress(queue as u64 * QUEUE_AREA + AVAILABLE + offset);
        self.memory.write_obj(value, at).unwrap();
    }
}
