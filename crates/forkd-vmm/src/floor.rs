//! The floor of a fork: clone a process that holds guest memory, make a KVM VM with an interrupt controller and a vCPU over
//! it, run one instruction that exits. Benchmarks measure it in the same run as the product and report the ratio.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use forkd_memory::{GuestRam, Layout};
use kvm_ioctls::{Kvm, VcpuExit};
use vm_memory::{Bytes, GuestAddress};

use crate::process::clone::{self, Side};
use crate::vm::hardware::{self, Hardware, failed};

/// In real mode: out 0x10, al; hlt
const CODE: [u8; 3] = [0xe6, 0x10, 0xf4];
const CODE_ADDRESS: u64 = 0x1000;

/// Forks `children` processes that keep their VMs until all are there, and returns the milliseconds that took; to the
/// children it returns nothing.
fn measure(children: u32, memory_bytes: u64) -> Result<Option<f64>, Box<dyn std::error::Error>> {
    clone::reap_children_automatically();
    let ram = GuestRam::allocate(Layout::new(memory_bytes)?)?;
    ram.memory().write_slice(&CODE, GuestAddress(CODE_ADDRESS))?;
    let kvm = hardware::open()?;
    let (ready, says_ready) = rustix::pipe::pipe()?;
    let (until_told, tells) = rustix::pipe::pipe()?;
    let begun = Instant::now();
    for _ in 0..children {
        if let Side::Child = clone::clone_process(None)? {
            drop(tells);
            return child(&kvm, &ram, &says_ready, &until_told).map(|()| None);
        }
    }
    drop(says_ready);
    let mut running = 0;
    let mut bytes = [0; 256];
    while running < children as usize {
        match rustix::io::read(&ready, &mut bytes)? {
            0 => return Err(format!("only {running} of {children} children started").into()),
            read => running += read,
        }
    }
    Ok(Some(begun.elapsed().as_secs_f64() * 1e3))
}

fn child(
    kvm: &Arc<Kvm>,
    ram: &GuestRam,
    ready: &OwnedFd,
    until_told: &OwnedFd,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut hardware = Hardware::new(kvm, ram, 1)?;
    let vcpu = hardware.vcpus.first_mut().ok_or("no vCPU")?;
    let mut sregs = vcpu.get_sregs().map_err(failed("KVM_GET_SREGS"))?;
    (sregs.cs.base, sregs.cs.selector) = (0, 0);
    vcpu.set_sregs(&sregs).map_err(failed("KVM_SET_SREGS"))?;
    let mut regs = vcpu.get_regs().map_err(failed("KVM_GET_REGS"))?;
    (regs.rip, regs.rflags) = (CODE_ADDRESS, 2);
    vcpu.set_regs(&regs).map_err(failed("KVM_SET_REGS"))?;
    if !matches!(vcpu.run(), Ok(VcpuExit::IoOut(0x10, _))) {
        return Err("the guest did not run".into());
    }
    rustix::io::write(ready, &[1])?;
    // The pipe closes when the parent has seen everybody.
    rustix::io::read(until_told, &mut [0])?;
    Ok(())
}

/// Prints the floor as a number on stdout.
pub fn print(children: u32, memory_bytes: u64) -> io::Result<()> {
    match measure(children, memory_bytes).map_err(|error| io::Error::other(error.to_string()))? {
        Some(milliseconds) => writeln!(io::stdout(), "{milliseconds}"),
        None => Ok(()),
    }
}
