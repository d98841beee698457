//! One virtqueue during one call of a device, with a driver that may lie.
//!
//! A thin layer over [`Queue`] for what it leaves to its user: a fault instead of silence when the available ring cannot
//! be read, several chains handed back at once, chains that are taken and put back, and the two ways in which a driver
//! says that it wants no interrupt.

use std::sync::atomic::{Ordering, fence};

use virtio_bindings::bindings::virtio_ring::VRING_AVAIL_F_NO_INTERRUPT;
use virtio_queue::desc::split::Descriptor;
use virtio_queue::{DescriptorChain, Queue, QueueOwnedT, QueueT};
use vm_memory::{Address, Bytes, GuestAddress, GuestMemoryMmap};

use crate::virtio::{Driver, DriverFault};

const RING_HEADER: u64 = 4;
const AVAILABLE_ELEMENT: u64 = 2;
const USED_ELEMENT: u64 = 8;

pub(in crate::virtio) type Chain<'a> = DescriptorChain<&'a GuestMemoryMmap>;

pub(in crate::virtio) struct Ring<'a> {
    name: &'static str,
    queue: &'a mut Queue,
    memory: &'a GuestMemoryMmap,
    interrupt: &'a mut bool,
    used_before: u16,
}

impl<'a> Ring<'a> {
    /// The queue of this number; none if the driver has not set it up.
    pub fn open(driver: &'a mut Driver<'_>, index: usize, name: &'static str) -> Option<Ring<'a>> {
        let queue = driver.queues.get_mut(index).filter(|queue| queue.ready())?;
        Some(Ring {
            name,
            used_before: queue.next_used(),
            queue,
            memory: driver.memory,
            interrupt: &mut driver.interrupt,
        })
    }

    pub fn size(&self) -> u16 {
        self.queue.size()
    }

    /// Takes the next chain. If the queue is empty, the driver has been told to notify the device of the next one.
    pub fn next(&mut self) -> Result<Option<Chain<'a>>, DriverFault> {
        // An honest driver can add chains between the look and the request once. One that moves its index back and forth
        // for ever would keep the device here.
        for _ in 0..3 {
            if self.available_index()? != self.queue.next_avail() {
                let mut chains = self.queue.iter(self.memory).map_err(|error| fault(self.name, error))?;
                return match chains.next() {
                    Some(chain) => Ok(Some(chain)),
                    None => Err(fault(self.name, "the available ring cannot be read")),
                };
            }
            let more = self.queue.enable_notification(self.memory);
            if !more.map_err(|error| fault(self.name, error))? {
                return Ok(None);
            }
        }
        Err(self.fault("available index is not monotonic"))
    }

    /// Puts the last chains that were taken back, as if they had not been looked at.
    pub fn put_back(&mut self, count: u16) {
        let next = self.queue.next_avail();
        self.queue.set_next_avail(next.wrapping_sub(count));
    }

    /// Where the driver will put its next chain.
    pub fn available_index(&self) -> Result<u16, DriverFault> {
        let index = self.queue.avail_idx(self.memory, Ordering::Acquire);
        Ok(index.map_err(|error| self.fault(error))?.0)
    }

    /// Asks for a notification of the first chain that the driver adds from `index` on, whatever lies before it.
    pub fn notify_from(&mut self, index: u16) -> Result<(), DriverFault> {
        let next = self.queue.next_avail();
        self.queue.set_next_avail(index);
        let asked = self.queue.enable_notification(self.memory);
        self.queue.set_next_avail(next);
        asked.map(drop).map_err(|error| self.fault(error))
    }

    /// Hands a chain back to the driver, with so many bytes written into it.
    pub fn give(&mut self, head: u16, written: u32) -> Result<(), DriverFault> {
        let given = self.queue.add_used(self.memory, head, written);
        given.map_err(|error| self.fault(error))
    }

    /// Hands several chains back so that the driver sees all of them or none. Linux drops a frame of several buffers if
    /// it sees the first before the last is there.
    pub fn give_together(&mut self, chains: &[(u16, u32)]) -> Result<(), DriverFault> {
        let Some((&(head, written), before)) = chains.split_last() else {
            return Ok(());
        };
        let mut index = self.queue.next_used();
        for &(head, written) in before {
            let at = RING_HEADER + u64::from(index % self.queue.size()) * USED_ELEMENT;
            // The head in the low half, the length in the high one.
            let element = (u64::from(head) | u64::from(written) << 32).to_le();
            self.address(self.queue.used_ring(), at)
                .and_then(|address| self.memory.write_obj(element, address).ok())
                .ok_or_else(|| self.fault("the used ring cannot be written"))?;
            index = index.wrapping_add(1);
        }
        // The driver learns of all elements by the one index that this writes.
        self.queue.set_next_used(index);
        self.give(head, written)
    }

    /// Ends the call: asks for an interrupt if something was given back and the driver wants to hear of it.
    pub fn finish(self) -> Result<(), DriverFault> {
        let (old, new) = (self.used_before, self.queue.next_used());
        if old == new {
            return Ok(());
        }
        // The driver writes its wish and then looks at the used index; this side has written the index and now looks at
        // the wish. One of the two must see the other.
        fence(Ordering::SeqCst);
        let wanted = if self.queue.event_idx_enabled() {
            let event = self.load(RING_HEADER + u64::from(self.queue.size()) * AVAILABLE_ELEMENT)?;
            new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
        } else {
            u32::from(self.load(0)?) & VRING_AVAIL_F_NO_INTERRUPT == 0
        };
        *self.interrupt |= wanted;
        Ok(())
    }

    /// Reads a field of the available ring.
    fn load(&self, offset: u64) -> Result<u16, DriverFault> {
        self.address(self.queue.avail_ring(), offset)
            .and_then(|address| self.memory.load(address, Ordering::Relaxed).ok())
            .map(u16::from_le)
            .ok_or_else(|| self.fault("the available ring cannot be read"))
    }

    fn address(&self, ring: u64, offset: u64) -> Option<GuestAddress> {
        GuestAddress(ring).checked_add(offset)
    }

    pub fn fault(&self, what: impl std::fmt::Display) -> DriverFault {
        fault(self.name, what)
    }

    /// Lists the buffers of a chain and adds up their lengths. All must be writable, or all readable, and no chain is
    /// longer than its queue: a table of 65535 empty descriptors would only waste the device's time.
    pub fn buffers(
        &self,
        chain: Chain<'_>,
        writable: bool,
        list: &mut Vec<Descriptor>,
    ) -> Result<u64, DriverFault> {
        let before = list.len();
        let limit = usize::from(self.queue.size());
        let mut total = 0;
        let mut continues = true;
        for descriptor in chain.take(limit) {
            if descriptor.is_write_only() != writable {
                return Err(self.fault("a buffer for the wrong direction"));
            }
            continues = descriptor.has_next();
            total += u64::from(descriptor.len());
            list.push(descriptor);
        }
        // An iterator that ends at a descriptor with a successor has met a bad index, a bad table or the limit.
        if continues {
            list.truncate(before);
            return Err(self.fault("a broken descriptor chain"));
        }
        Ok(total)
    }
}

fn fault(name: &str, what: impl std::fmt::Display) -> DriverFault {
    DriverFault(format!("{name} queue: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::virtio::net::mock::{MockDriver, readable, writable};

    #[test]
    fn chains_given_together_appear_together() {
        let mut mock = MockDriver::new(&[8]);
        // The used ring wraps in the middle of the second and the third group.
        for _ in 0..3 {
            let heads: Vec<u16> = (0..5).map(|_| mock.offer(0, &[writable(16)])).collect();
            let interrupt = mock.call(|driver| {
                let mut ring = Ring::open(driver, 0, "test").unwrap();
                let mut taken = Vec::new();
                while let Some(chain) = ring.next().unwrap() {
                    taken.push((chain.head_index(), u32::from(chain.head_index()) + 1));
                }
                ring.give_together(&taken).unwrap();
                ring.finish().unwrap();
            });
            assert!(interrupt);
            let used = mock.take_used(0);
            assert_eq!(used.iter().map(|used| used.head).collect::<Vec<_>>(), heads);
            assert!(used.iter().all(|used| used.length == u32::from(used.head) + 1));
        }
    }

    #[test]
    fn the_driver_s_wish_for_interrupts_is_kept() {
        let give_one = |mock: &mut MockDriver| {
            mock.offer(0, &[readable(b"x")]);
            mock.call(|driver| {
                let mut ring = Ring::open(driver, 0, "test").unwrap();
                let chain = ring.next().unwrap().unwrap();
                ring.give(chain.head_index(), 0).unwrap();
                ring.finish().unwrap();
            })
        };
        let mut mock = MockDriver::new(&[8]);
        assert!(give_one(&mut mock));
        mock.set_no_interrupt(0);
        assert!(!give_one(&mut mock));

        let mut mock = MockDriver::with_event_index(&[8]);
        mock.set_used_event(0, 1);
        assert!(!give_one(&mut mock), "the first is not the one that was asked for");
        assert!(give_one(&mut mock));
        assert!(!give_one(&mut mock));
        let nothing = mock.call(|driver| Ring::open(driver, 0, "test").unwrap().finish().unwrap());
        assert!(!nothing);
    }

    #[test]
    fn chains_that_were_put_back_come_again() {
        let mut mock = MockDriver::new(&[8]);
        mock.offer(0, &[readable(b"one")]);
        mock.offer(0, &[readable(b"two")]);
        mock.call(|driver| {
            let mut ring = Ring::open(driver, 0, "test").unwrap();
            let first = ring.next().unwrap().unwrap().head_index();
            ring.next().unwrap().unwrap();
            assert!(ring.next().unwrap().is_none());
            ring.put_back(2);
            assert_eq!(ring.next().unwrap().unwrap().head_index(), first);
        });
    }

    #[test]
    fn broken_rings_and_chains_are_faults() {
        let taken = |mock: &mut MockDriver| {
            let mut result = Ok(0);
            mock.call(|driver| {
                let mut ring = Ring::open(driver, 0, "test").unwrap();
                result = ring.next().and_then(|chain| ring.buffers(chain.unwrap(), false, &mut Vec::new()));
            });
            result.map_err(|fault| fault.0)
        };
        let mut mock = MockDriver::new(&[8]);
        mock.offer(0, &[readable(b"abc"), readable(b"defg")]);
        assert_eq!(taken(&mut mock), Ok(7));
        mock.offer(0, &[readable(b"abc"), writable(4)]);
        assert_eq!(taken(&mut mock).unwrap_err(), "test queue: a buffer for the wrong direction");
        // A chain that runs in a circle.
        let head = mock.offer(0, &[readable(b"abc"), readable(b"defg")]);
        mock.link(0, head + 1, head);
        assert_eq!(taken(&mut mock).unwrap_err(), "test queue: a broken descriptor chain");
        let head = mock.offer(0, &[readable(b"abc")]);
        mock.link(0, head, 8);
        assert_eq!(taken(&mut mock).unwrap_err(), "test queue: a broken descriptor chain");
        mock.offer_head(0, 77);
        assert_eq!(taken(&mut mock).unwrap_err(), "test queue: a broken descriptor chain");
        mock.set_available_index(0, 1000);
        assert!(taken(&mut mock).is_err());
    }
}
