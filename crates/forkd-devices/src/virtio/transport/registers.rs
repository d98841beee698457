//! Reads and writes of the registers.

use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_mmio::*;
use virtio_queue::{Queue, QueueT};

use super::{DriverFault, MmioTransport, VirtioDevice};

/// "virt" in little-endian.
const MAGIC: u32 = 0x7472_6976;
const VERSION: u32 = 2;
/// "fork" in little-endian. Drivers only show it.
const VENDOR: u32 = 0x6b72_6f66;
/// The length and the base of a shared memory region that does not exist, in both halves.
const NO_SHARED_MEMORY: u32 = u32::MAX;

const CONFIG: u64 = VIRTIO_MMIO_CONFIG as u64;

impl<D: VirtioDevice> MmioTransport<D> {
    /// The guest reads at an offset in the register window.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        data.fill(0);
        if offset >= CONFIG {
            self.device.read_config(offset - CONFIG, data);
        } else if let (Ok(offset), Ok(word)) = (u32::try_from(offset), <&mut [u8; 4]>::try_from(data)) {
            *word = self.read_register(offset).to_le_bytes();
        }
    }

    /// The guest writes at an offset in the register window.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        if offset >= CONFIG {
            if self.status.has_driver() && !self.status.has_failed() {
                self.device.write_config(offset - CONFIG, data);
            }
        } else if let (Ok(offset), Ok(word)) = (u32::try_from(offset), <[u8; 4]>::try_from(data)) {
            self.write_register(offset, u32::from_le_bytes(word));
        }
    }

    fn read_register(&self, offset: u32) -> u32 {
        match offset {
            VIRTIO_MMIO_MAGIC_VALUE => MAGIC,
            VIRTIO_MMIO_VERSION => VERSION,
            VIRTIO_MMIO_DEVICE_ID => self.device.kind(),
            VIRTIO_MMIO_VENDOR_ID => VENDOR,
            VIRTIO_MMIO_DEVICE_FEATURES => half(self.offered_features(), self.device_features_select),
            VIRTIO_MMIO_QUEUE_NUM_MAX => self.selected_queue().map_or(0, |queue| queue.max_size().into()),
            VIRTIO_MMIO_QUEUE_READY => self.selected_queue().map_or(0, |queue| queue.ready().into()),
            VIRTIO_MMIO_INTERRUPT_STATUS => self.interrupt_status,
            VIRTIO_MMIO_STATUS => self.status.bits(),
            VIRTIO_MMIO_SHM_LEN_LOW
            | VIRTIO_MMIO_SHM_LEN_HIGH
            | VIRTIO_MMIO_SHM_BASE_LOW
            | VIRTIO_MMIO_SHM_BASE_HIGH => NO_SHARED_MEMORY,
            VIRTIO_MMIO_CONFIG_GENERATION => self.config_generation,
            _ => 0,
        }
    }

    fn write_register(&mut self, offset: u32, value: u32) {
        match offset {
            VIRTIO_MMIO_DEVICE_FEATURES_SEL => self.device_features_select = value,
            VIRTIO_MMIO_DRIVER_FEATURES_SEL => self.driver_features_select = value,
            VIRTIO_MMIO_DRIVER_FEATURES => self.choose_features(value),
            VIRTIO_MMIO_QUEUE_SEL => self.queue_select = value,
            VIRTIO_MMIO_QUEUE_NUM => self.set_up_queue(|queue| match u16::try_from(value) {
                Ok(size) => queue.try_set_size(size).map_err(|error| format!("size {size}: {error}")),
                Err(_) => Err(format!("size {value}: too large")),
            }),
            VIRTIO_MMIO_QUEUE_READY => self.set_queue_ready(value),
            VIRTIO_MMIO_QUEUE_NOTIFY => {
                if let Ok(queue) = usize::try_from(value) {
                    self.notify(queue);
                }
            }
            VIRTIO_MMIO_INTERRUPT_ACK => self.interrupt_status &= !value,
            VIRTIO_MMIO_STATUS => self.write_status(value),
            VIRTIO_MMIO_QUEUE_DESC_LOW | VIRTIO_MMIO_QUEUE_DESC_HIGH => self.set_up_queue(|queue| {
                let address = with_half(queue.desc_table(), offset == VIRTIO_MMIO_QUEUE_DESC_HIGH, value);
                let set = queue.try_set_desc_table_address(vm_memory::GuestAddress(address));
                set.map_err(|error| format!("descriptors at {address:#x}: {error}"))
            }),
            VIRTIO_MMIO_QUEUE_AVAIL_LOW | VIRTIO_MMIO_QUEUE_AVAIL_HIGH => self.set_up_queue(|queue| {
                let address = with_half(queue.avail_ring(), offset == VIRTIO_MMIO_QUEUE_AVAIL_HIGH, value);
                let set = queue.try_set_avail_ring_address(vm_memory::GuestAddress(address));
                set.map_err(|error| format!("available ring at {address:#x}: {error}"))
            }),
            VIRTIO_MMIO_QUEUE_USED_LOW | VIRTIO_MMIO_QUEUE_USED_HIGH => self.set_up_queue(|queue| {
                let address = with_half(queue.used_ring(), offset == VIRTIO_MMIO_QUEUE_USED_HIGH, value);
                let set = queue.try_set_used_ring_address(vm_memory::GuestAddress(address));
                set.map_err(|error| format!("used ring at {address:#x}: {error}"))
            }),
            _ => {}
        }
    }

    fn choose_features(&mut self, value: u32) {
        if self.status.chooses_features() && self.driver_features_select < 2 {
            let high = self.driver_features_select == 1;
            self.driver_features = with_half(self.driver_features, high, value);
        }
    }

    fn write_status(&mut self, value: u32) {
        if value == 0 {
            return self.reset();
        }
        let Some(mut next) = self.status.after(value) else {
            return;
        };
        if next.has_features_ok() && !self.status.has_features_ok() && !self.features_are_good() {
            // The driver reads the status back and sees that the bit is not there.
            next = next.without_features_ok();
        }
        let starts = next.is_running() && !self.status.has_driver_ok();
        self.status = next;
        if starts {
            self.start();
        }
    }

    /// Whether the driver chose only what is on offer, and speaks virtio 1.
    pub(super) fn features_are_good(&self) -> bool {
        self.driver_features & !self.offered_features() == 0
            && self.driver_features & (1 << VIRTIO_F_VERSION_1) != 0
    }

    fn selected_queue(&self) -> Option<&Queue> {
        self.queues.get(usize::try_from(self.queue_select).ok()?)
    }

    /// Changes the selected queue, if it is one that may be changed now.
    fn set_up_queue(&mut self, change: impl FnOnce(&mut Queue) -> Result<(), String>) {
        if !self.status.sets_up_queues() {
            return;
        }
        let number = self.queue_select;
        let selected = usize::try_from(number).ok();
        let Some(queue) = selected.and_then(|index| self.queues.get_mut(index)) else {
            return;
        };
        if queue.ready() {
            return;
        }
        if let Err(text) = change(queue) {
            self.fail(DriverFault(format!("queue {number}: {text}")));
        }
    }

    /// A queue becomes ready while queues are set up, and can be taken back at any time.
    fn set_queue_ready(&mut self, value: u32) {
        let ready = value == 1;
        if ready && !self.status.sets_up_queues() {
            return;
        }
        let selected = usize::try_from(self.queue_select).ok();
        if let Some(queue) = selected.and_then(|index| self.queues.get_mut(index)) {
            queue.set_ready(ready);
        }
    }
}

/// One half of a number of 64 bits; there are two.
fn half(number: u64, select: u32) -> u32 {
    let bytes = number.to_le_bytes();
    match (select, bytes) {
        (0, [a, b, c, d, ..]) | (1, [.., a, b, c, d]) => u32::from_le_bytes([a, b, c, d]),
        _ => 0,
    }
}

fn with_half(number: u64, high: bool, value: u32) -> u64 {
    if high {
        (number & u64::from(u32::MAX)) | (u64::from(value) << 32)
    } else {
        (number & !u64::from(u32::MAX)) | u64::from(value)
    }
}
