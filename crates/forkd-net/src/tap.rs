//! Taps, as a VM's network device wants them.

#![expect(unsafe_code, reason = "a tap is set up with ioctls")]

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use rustix::ioctl::{IntegerSetter, Ioctl, IoctlOutput, Opcode, Setter, ioctl, opcode};

const DEVICE: &str = "/dev/net/tun";
const SET_INTERFACE: Opcode = opcode::write::<i32>(b'T', 202);
const SET_PERSISTENT: Opcode = opcode::write::<i32>(b'T', 203);
const SET_OFFLOAD: Opcode = opcode::write::<u32>(b'T', 208);
const SET_HEADER_SIZE: Opcode = opcode::write::<i32>(b'T', 216);

const GET_NAMESPACE: Opcode = opcode::none(b'T', 227);

/// IFF_TAP, IFF_NO_PI and IFF_VNET_HDR.
const FLAGS: u16 = 0x0002 | 0x1000 | 0x4000;
/// TUN_F_CSUM, TUN_F_TSO4 and TUN_F_TSO6: what the device offers its guest.
const OFFLOADS: usize = 0x01 | 0x02 | 0x04;
/// The header that virtio puts before every packet.
const HEADER: i32 = 12;
/// IFNAMSIZ.
const NAME: usize = 16;

/// `struct ifreq` as TUNSETIFF takes it.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; NAME],
    flags: u16,
    rest: [u8; 22],
}

const _: () = assert!(size_of::<InterfaceRequest>() == 40);

/// Makes a tap in the calling thread's namespace, or opens one that is not open. It is gone when its last descriptor is
/// closed.
pub fn open(name: &str) -> io::Result<OwnedFd> {
    if name.len() >= NAME {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let non_blocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).map_err(io::Error::other)?;
    let tap = OpenOptions::new().read(true).write(true).custom_flags(non_blocking).open(DEVICE)?;
    let mut request = InterfaceRequest { name: [0; NAME], flags: FLAGS, rest: [0; 22] };
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: TUNSETIFF reads an ifreq, which this is, and writes back no more than its size.
    let interface = unsafe { Setter::<SET_INTERFACE, InterfaceRequest>::new(request) };
    // SAFETY: the argument is of the type that the opcode takes.
    unsafe { ioctl(&tap, interface) }?;
    // SAFETY: TUNSETVNETHDRSZ reads an int.
    let header = unsafe { Setter::<SET_HEADER_SIZE, i32>::new(HEADER) };
    // SAFETY: the argument is of the type that the opcode takes.
    unsafe { ioctl(&tap, header) }?;
    // SAFETY: TUNSETOFFLOAD takes its flags as the argument itself.
    let offloads = unsafe { IntegerSetter::<SET_OFFLOAD>::new_usize(OFFLOADS) };
    // SAFETY: the argument is of the type that the opcode takes.
    unsafe { ioctl(&tap, offloads) }?;
    Ok(tap.into())
}

/// Whether a tap stays when its last descriptor is closed.
pub fn set_persistent(tap: BorrowedFd<'_>, persistent: bool) -> io::Result<()> {
    // SAFETY: TUNSETPERSIST takes its flag as the argument itself.
    let flag = unsafe { IntegerSetter::<SET_PERSISTENT>::new_usize(usize::from(persistent)) };
    // SAFETY: the argument is of the type that the opcode takes.
    Ok(unsafe { ioctl(tap, flag) }?)
}

/// TUNGETDEVNETNS, whose result is a descriptor.
struct GetNamespace;

// SAFETY: the call takes no argument.
unsafe impl Ioctl for GetNamespace {
    type Output = OwnedFd;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        GET_NAMESPACE
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(output: IoctlOutput, _: *mut std::ffi::c_void) -> rustix::io::Result<OwnedFd> {
        // SAFETY: the kernel has just made this descriptor for the caller, and no other code knows it.
        Ok(unsafe { OwnedFd::from_raw_fd(output) })
    }
}

/// The namespace that a tap is in.
pub fn namespace_of(tap: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: the call has no argument that the kernel would read or write.
    Ok(unsafe { ioctl(tap, GetNamespace) }?)
}
