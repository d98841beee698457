//! An interrupt line: an eventfd that KVM turns into an interrupt.

use std::sync::Arc;

use forkd_devices::virtio::transport::Interrupt;
use kvm_ioctls::VmFd;
use vmm_sys_util::eventfd::EventFd;

use super::{DeviceError, event};
use crate::vm::hardware::failed;

#[derive(Debug)]
pub struct Line(EventFd);

impl Line {
    pub fn new(vm: &VmFd, gsi: u32) -> Result<Line, DeviceError> {
        let event = event::new()?;
        vm.register_irqfd(&event, gsi).map_err(failed("KVM_IRQFD"))?;
        Ok(Line(event))
    }

    pub fn shared(self) -> Arc<dyn Interrupt> {
        Arc::new(self)
    }
}

impl Interrupt for Line {
    fn trigger(&self) {
        // The counter is taken by KVM at once and cannot overflow.
        let _ = self.0.write(1);
    }
}
