//! Working through a queue, one descriptor chain after the other, within bounds.

use virtio_queue::{DescriptorChain, QueueOwnedT, QueueT};
use vm_memory::GuestMemoryMmap;

use super::{Driver, DriverFault};

pub(super) type Chain<'a> = DescriptorChain<&'a GuestMemoryMmap>;

/// How much one call may do. A driver can lay its buffers over its own rings and so let the device feed itself, with every
/// vCPU stopped. A pause would then wait for ever.
#[derive(Debug, Clone, Copy)]
pub(super) struct Budget {
    pub chains: usize,
    pub bytes: u64,
}

/// What was done with a chain.
#[derive(Debug, Clone, Copy)]
pub(super) struct Done {
    /// Bytes written into the chain's buffers, for the used ring.
    pub written: u32,
    /// What this takes from the budget.
    pub cost: u64,
}

/// Takes chains from a queue and gives them back used, until the queue is empty or the budget is spent. True if there may be
/// more.
pub(super) fn work_through(
    driver: &mut Driver<'_>,
    number: usize,
    mut budget: Budget,
    mut handle: impl FnMut(Chain<'_>) -> Result<Done, DriverFault>,
) -> Result<bool, DriverFault> {
    let broken = |error: virtio_queue::Error| DriverFault(format!("queue {number}: {error}"));
    let memory = driver.memory;
    let Some(queue) = driver.queues.get_mut(number).filter(|queue| queue.ready()) else {
        return Ok(false);
    };
    let mut used = false;
    let unfinished = loop {
        queue.disable_notification(memory).map_err(broken)?;
        // The iterator is made anew for each chain: it checks the ring's index, which the driver may move at any time.
        while budget.chains > 0 && budget.bytes > 0 {
            let Some(chain) = queue.iter(memory).map_err(broken)?.next() else {
                break;
            };
            let head = chain.head_index();
            let done = handle(chain).map_err(|fault| DriverFault(format!("queue {number}: {fault}")))?;
            queue.add_used(memory, head, done.written).map_err(broken)?;
            used = true;
            budget.chains -= 1;
            budget.bytes = budget.bytes.saturating_sub(done.cost);
        }
        if !queue.enable_notification(memory).map_err(broken)? {
            break false;
        }
        if budget.chains == 0 || budget.bytes == 0 {
            break true;
        }
    };
    if used && queue.needs_notification(memory).map_err(broken)? {
        driver.interrupt = true;
    }
    Ok(unfinished)
}

/// Refuses a chain that is longer than `limit`, does not end where it says, or has something to read after something to
/// write. The driver can change the chain after this, so nothing rests on it but a clear message: the code that walks the chain
/// again is bounded and checked again.
pub(super) fn check(chain: Chain<'_>, limit: usize) -> Result<(), DriverFault> {
    let fault = |text: &str| Err(DriverFault(text.to_owned()));
    let mut last = None;
    for (index, descriptor) in chain.enumerate() {
        if index == limit {
            return Err(DriverFault(format!("a chain of more than {limit} descriptors")));
        }
        if !descriptor.is_write_only() && last.is_some_and(|(_, writable)| writable) {
            return fault("a buffer to read from after a buffer to write to");
        }
        last = Some((descriptor.has_next(), descriptor.is_write_only()));
    }
    match last {
        None => fault("a chain without a readable first descriptor"),
        // The iterator ends at a loop, an index outside the table, a bad indirect table and four gigabytes.
        Some((true, _)) => fault("a chain that is broken off"),
        Some((false, _)) => Ok(()),
    }
}
