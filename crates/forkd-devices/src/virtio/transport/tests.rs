//! The registers and the saved state, with a device that only counts.

use std::sync::Arc;

use proptest::prelude::*;
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_mmio::*;
use virtio_queue::QueueT;
use vm_memory::GuestMemoryMmap;

use super::mock::{self, CountedInterrupt, FEATURES, MockDriver};
use super::{MmioTransport, RestoreError, TransportState};
use crate::virtio::{Driver, DriverFault, VirtioDevice};

const OWN_FEATURE: u64 = 1 << 5;
const OK: u32 = 15;
const NEEDS_RESET: u32 = 64;

/// Two queues; a notification of the second is a fault.
#[derive(Debug, Default)]
struct Counter {
    activated: Option<u64>,
    notified: u32,
    resets: u32,
    config: [u8; 8],
}

impl VirtioDevice for Counter {
    fn kind(&self) -> u32 {
        42
    }

    fn features(&self) -> u64 {
        OWN_FEATURE
    }

    fn queue_sizes(&self) -> &'static [u16] {
        &[64, 16]
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        for (byte, at) in data.iter_mut().zip(offset..) {
            *byte = usize::try_from(at).ok().and_then(|at| self.config.get(at)).copied().unwrap_or(0);
        }
    }

    fn write_config(&mut self, offset: u64, data: &[u8]) {
        for (byte, at) in data.iter().zip(offset..) {
            if let Some(place) = usize::try_from(at).ok().and_then(|at| self.config.get_mut(at)) {
                *place = *byte;
            }
        }
    }

    fn activate(&mut self, features: u64) {
        self.activated = Some(features);
    }

    fn reset(&mut self) {
        self.activated = None;
        self.resets += 1;
    }

    fn queue_notified(&mut self, queue: usize, driver: &mut Driver<'_>) -> Result<(), DriverFault> {
        self.notified += 1;
        driver.interrupt = true;
        match queue {
            0 => Ok(()),
            _ => Err(DriverFault("the second queue".to_owned())),
        }
    }
}

fn running() -> MockDriver<Counter> {
    MockDriver::running(Counter::default())
}

#[test]
fn a_driver_finds_and_starts_the_device() {
    let mut driver = MockDriver::new(Counter::default());
    assert_eq!(driver.read(VIRTIO_MMIO_MAGIC_VALUE).to_le_bytes(), *b"virt");
    assert_eq!(driver.read(VIRTIO_MMIO_VERSION), 2);
    assert_eq!(driver.read(VIRTIO_MMIO_DEVICE_ID), 42);
    let mut offered = 0;
    for half in 0..2 {
        driver.write(VIRTIO_MMIO_DEVICE_FEATURES_SEL, half);
        offered |= u64::from(driver.read(VIRTIO_MMIO_DEVICE_FEATURES)) << (32 * half);
    }
    assert_eq!(offered, OWN_FEATURE | FEATURES);
    driver.write(VIRTIO_MMIO_DEVICE_FEATURES_SEL, 2);
    assert_eq!(driver.read(VIRTIO_MMIO_DEVICE_FEATURES), 0);
    for (queue, size) in [(0, 64), (1, 16), (2, 0)] {
        driver.write(VIRTIO_MMIO_QUEUE_SEL, queue);
        assert_eq!(driver.read(VIRTIO_MMIO_QUEUE_NUM_MAX), size);
    }

    driver.start(offered);
    assert_eq!(driver.read(VIRTIO_MMIO_STATUS), OK);
    assert_eq!(driver.transport.device().activated, Some(OWN_FEATURE));
    driver.notify(0);
    driver.notify(7);
    assert_eq!(driver.transport.device().notified, 1);
}

#[test]
fn an_interrupt_stays_until_it_is_acknowledged() {
    let mut driver = running();
    driver.notify(0);
    assert_eq!((driver.read(VIRTIO_MMIO_INTERRUPT_STATUS), driver.interrupt.count()), (1, 1));
    driver.transport.config_changed();
    assert_eq!((driver.read(VIRTIO_MMIO_INTERRUPT_STATUS), driver.interrupt.count()), (3, 2));
    assert_eq!(driver.read(VIRTIO_MMIO_CONFIG_GENERATION), 1);
    driver.write(VIRTIO_MMIO_INTERRUPT_ACK, 1);
    assert_eq!(driver.read(VIRTIO_MMIO_INTERRUPT_STATUS), 2);
}

#[test]
fn features_that_are_not_on_offer_are_not_accepted() {
    for features in [FEATURES | 1 << 6, FEATURES & !(1 << VIRTIO_F_VERSION_1), 0] {
        let mut driver = MockDriver::new(Counter::default());
        driver.negotiate(features);
        assert_eq!(driver.read(VIRTIO_MMIO_STATUS), 3, "{features:#x}");
        // Nor can the step be left out.
        driver.write(VIRTIO_MMIO_STATUS, OK);
        assert_eq!(driver.read(VIRTIO_MMIO_STATUS), 3);
        assert_eq!(driver.transport.device().activated, None);
    }
}

#[test]
fn features_and_queues_do_not_change_when_they_are_in_use() {
    let mut driver = running();
    let before = driver.transport.state();
    driver.write(VIRTIO_MMIO_DRIVER_FEATURES, 0);
    driver.write(VIRTIO_MMIO_QUEUE_NUM, 8);
    driver.write(VIRTIO_MMIO_QUEUE_DESC_LOW, 0x5000);
    driver.write(VIRTIO_MMIO_QUEUE_AVAIL_HIGH, 0x5000);
    driver.write(VIRTIO_MMIO_QUEUE_USED_LOW, 0x5000);
    driver.write(VIRTIO_MMIO_QUEUE_READY, 1);
    for status in [1, 3, 7, 11] {
        driver.write(VIRTIO_MMIO_STATUS, status);
    }
    assert_eq!(driver.transport.state(), before);

    // A queue can be taken back, and then its notifications are ignored and it cannot come back.
    driver.write(VIRTIO_MMIO_QUEUE_SEL, 0);
    driver.write(VIRTIO_MMIO_QUEUE_READY, 0);
    assert_eq!(driver.read(VIRTIO_MMIO_QUEUE_READY), 0);
    driver.write(VIRTIO_MMIO_QUEUE_NUM, 8);
    driver.write(VIRTIO_MMIO_QUEUE_READY, 1);
    driver.notify(0);
    assert_eq!(driver.transport.device().notified, 0);
    assert_eq!(driver.transport.state().queues[0].size, before.queues[0].size);
}

#[test]
fn a_ready_queue_keeps_its_size_before_the_driver_is_ready_too() {
    let mut driver = MockDriver::new(Counter::default());
    driver.set_up_queue(0);
    assert!(!driver.transport.state().queues[0].ready, "set up without features");
    driver.negotiate(FEATURES);
    driver.set_up_queue(0);
    driver.write(VIRTIO_MMIO_QUEUE_NUM, 4);
    assert_eq!(driver.transport.state().queues[0].size, 16);
    driver.write(VIRTIO_MMIO_QUEUE_READY, 0);
    driver.write(VIRTIO_MMIO_QUEUE_NUM, 4);
    assert_eq!(driver.transport.state().queues[0].size, 4);
}

#[test]
fn a_queue_that_cannot_be_is_a_fault() {
    let faulty = |register: u32, value: u32| {
        let mut driver = MockDriver::new(Counter::default());
        driver.negotiate(FEATURES);
        driver.set_up_queue(0);
        driver.write(VIRTIO_MMIO_QUEUE_READY, 0);
        driver.write(register, value);
        driver.write(VIRTIO_MMIO_QUEUE_READY, 1);
        driver.write(VIRTIO_MMIO_STATUS, OK);
        assert_eq!(driver.read(VIRTIO_MMIO_STATUS) & NEEDS_RESET, NEEDS_RESET);
        assert_eq!(driver.transport.device().activated, None);
        driver.notify(0);
        assert_eq!(driver.transport.device().notified, 0);
        driver.fault().to_owned()
    };
    assert!(faulty(VIRTIO_MMIO_QUEUE_NUM, 15).starts_with("queue 0: size 15"));
    assert!(faulty(VIRTIO_MMIO_QUEUE_NUM, 128).starts_with("queue 0: size 128"));
    assert!(faulty(VIRTIO_MMIO_QUEUE_NUM, 0x10010).starts_with("queue 0: size 65552"));
    assert!(faulty(VIRTIO_MMIO_QUEUE_DESC_LOW, 0x1008).starts_with("queue 0: descriptors at 0x1008"));
    assert!(faulty(VIRTIO_MMIO_QUEUE_AVAIL_LOW, 0x1001).starts_with("queue 0: available ring at 0x1001"));
    assert!(faulty(VIRTIO_MMIO_QUEUE_USED_LOW, 0x1002).starts_with("queue 0: used ring at 0x1002"));
    for register in [VIRTIO_MMIO_QUEUE_DESC_HIGH, VIRTIO_MMIO_QUEUE_AVAIL_HIGH, VIRTIO_MMIO_QUEUE_USED_HIGH] {
        assert_eq!(faulty(register, 1), "queue 0 is not in the guest's memory");
        assert_eq!(faulty(register, u32::MAX), "queue 0 is not in the guest's memory");
    }
}

#[test]
fn after_a_fault_the_device_waits_for_a_reset() {
    let mut driver = running();
    driver.notify(1);
    assert_eq!(driver.fault(), "the second queue");
    assert_eq!(driver.read(VIRTIO_MMIO_STATUS), OK | NEEDS_RESET);
    assert_eq!(driver.read(VIRTIO_MMIO_INTERRUPT_STATUS), 3);
    driver.notify(0);
    driver.transport.host_event(0);
    driver.write(VIRTIO_MMIO_STATUS, OK);
    assert_eq!(driver.transport.device().notified, 1);
    assert!(!driver.transport.is_running());

    let resets = driver.transport.device().resets;
    driver.write(VIRTIO_MMIO_STATUS, 0);
    assert_eq!(driver.transport.device().resets, resets + 1);
    assert_eq!(driver.transport.fault(), None);
    driver.start(FEATURES);
    driver.notify(0);
    assert_eq!(driver.transport.device().notified, 2);
}

#[test]
fn a_driver_that_gives_up_stops_the_device() {
    let mut driver = running();
    driver.write(VIRTIO_MMIO_STATUS, 128 | OK);
    driver.notify(0);
    assert_eq!(driver.transport.device().notified, 0);
}

#[test]
fn registers_are_words_and_the_configuration_is_bytes() {
    let mut driver = running();
    let mut byte = [0xff];
    driver.transport.read(0, &mut byte);
    assert_eq!(byte, [0]);
    let mut long = [0xff; 8];
    driver.transport.read(0, &mut long);
    assert_eq!(long, [0; 8]);
    driver.transport.write(VIRTIO_MMIO_STATUS.into(), &[0]);
    assert!(driver.transport.is_running());

    driver.transport.write(0x102, &[7, 8]);
    driver.transport.write(u64::MAX, &[9]);
    let mut config = [0xff; 16];
    driver.transport.read(0x100, &mut config);
    assert_eq!(config, [0, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
}

fn restore(memory: GuestMemoryMmap, state: &TransportState) -> Result<MmioTransport<Counter>, RestoreError> {
    let interrupt = Arc::new(CountedInterrupt::default());
    MmioTransport::restore(Counter::default(), memory, interrupt, state)
}

#[test]
fn a_restored_transport_is_the_same_and_takes_up_what_was_on_its_way() {
    let mut driver = running();
    driver.notify(0);
    let saved = serde_json::to_string(&driver.transport.state()).unwrap();
    let state: TransportState = serde_json::from_str(&saved).unwrap();
    let interrupt = Arc::new(CountedInterrupt::default());
    let mut restored =
        MmioTransport::restore(Counter::default(), driver.memory.clone(), interrupt.clone(), &state).unwrap();
    assert_eq!(restored.state(), state);
    assert_eq!(restored.device().activated, Some(OWN_FEATURE));
    assert_eq!(interrupt.count(), 0);
    restored.queues[1].set_ready(false);
    restored.kick();
    assert_eq!(restored.device().notified, 1);
    assert_eq!(interrupt.count(), 2);
}

#[test]
fn a_fault_survives_saving() {
    let mut driver = running();
    driver.notify(1);
    let restored = restore(driver.memory.clone(), &driver.transport.state()).unwrap();
    assert_eq!(restored.fault(), driver.transport.fault());
    assert!(!restored.is_running());
}

#[test]
fn saved_state_with_one_wrong_field_is_refused() {
    let driver = running();
    let good = driver.transport.state();
    restore(driver.memory.clone(), &good).unwrap();
    let broken = |change: &dyn Fn(&mut TransportState)| {
        let mut state = good.clone();
        change(&mut state);
        restore(driver.memory.clone(), &state).unwrap_err()
    };
    use RestoreError as E;
    for status in [4, 8, 7, 14, 31, 0x100 | 15] {
        assert!(matches!(broken(&|state| state.status = status), E::Status(_)), "{status}");
    }
    assert!(matches!(broken(&|state| state.status = 3), E::ReadyTooEarly { queue: 0 }));
    assert!(matches!(broken(&|state| state.status |= NEEDS_RESET), E::Fault));
    assert!(matches!(broken(&|state| state.fault = Some("?".into())), E::Fault));
    assert!(matches!(broken(&|state| state.driver_features |= 1), E::Features { .. }));
    assert!(matches!(broken(&|state| state.driver_features = OWN_FEATURE), E::Features { .. }));
    assert!(matches!(broken(&|state| state.interrupt_status = 4), E::InterruptStatus(4)));
    assert!(matches!(broken(&|state| state.queues.truncate(1)), E::QueueCount { found: 1, expected: 2 }));
    assert!(matches!(broken(&|state| state.queues[1].max_size = 32), E::QueueMaximum { queue: 1, .. }));
    for size in [0, 3, 32] {
        assert!(matches!(broken(&|state| state.queues[1].size = size), E::Queue { queue: 1, .. }), "{size}");
    }
    assert!(matches!(broken(&|state| state.queues[0].event_idx = false), E::EventIdx { queue: 0 }));
    assert!(matches!(broken(&|state| state.queues[0].next_avail = 17), E::Positions { queue: 0, .. }));
    assert!(matches!(broken(&|state| state.queues[0].next_used = 1), E::Positions { queue: 0, .. }));
    type Address = fn(&mut TransportState) -> &mut u64;
    let addresses: [Address; 3] = [
        |state| &mut state.queues[0].desc_table,
        |state| &mut state.queues[0].avail_ring,
        |state| &mut state.queues[0].used_ring,
    ];
    for address in addresses {
        assert!(matches!(broken(&|state| *address(state) |= 1), E::Queue { queue: 0, .. }));
        for outside in [mock::MEMORY, mock::MEMORY - 16, !15] {
            let error = broken(&|state| *address(state) = outside);
            assert!(matches!(error, E::OutsideMemory { queue: 0 }), "{outside:#x}: {error}");
        }
    }
    let fault = "x".repeat(2000);
    assert!(matches!(
        broken(&|state| {
            state.status |= NEEDS_RESET;
            state.fault = Some(fault.clone());
        }),
        E::Fault
    ));
}

proptest! {
    /// Whatever is written to the registers, the transport lives, and its state can be restored.
    #[test]
    fn no_registers_panic(
        writes in proptest::collection::vec(
            (prop_oneof![(0u64..0x30).prop_map(|register| register * 4), any::<u64>()],
             prop_oneof![(0u32..0x90).prop_map(|value| value.to_le_bytes().to_vec()),
                         (0u32..0x90).prop_map(|value| (value << 12).to_le_bytes().to_vec()),
                         proptest::collection::vec(any::<u8>(), 0..9)]),
            0..80),
        handshake in 0usize..3,
    ) {
        let mut driver = MockDriver::new(Counter::default());
        match handshake {
            0 => {}
            1 => driver.negotiate(FEATURES),
            _ => driver.start(FEATURES),
        }
        for (offset, data) in writes {
            driver.transport.write(offset, &data);
            let mut read = vec![0; data.len()];
            driver.transport.read(offset, &mut read);
        }
        let state = driver.transport.state();
        let restored = restore(driver.memory.clone(), &state).unwrap();
        prop_assert_eq!(restored.state(), state);
    }
}
