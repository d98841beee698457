//! Network namespaces on the host, each with a tap.

#![expect(unsafe_code, reason = "a tap is set up with ioctls")]

use std::fs::{File, OpenOptions};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;
use std::time::Duration;

use rustix::ioctl::{IntegerSetter, Opcode, Setter, ioctl, opcode};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::engine::process::Failure;

/// The addresses of the two ends of every tap.
pub const HOST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
pub const GUEST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const TAP: &str = "tap0";
const PATIENCE: Duration = Duration::from_secs(60);

const SET_INTERFACE: Opcode = opcode::write::<i32>(b'T', 202);
const SET_OFFLOAD: Opcode = opcode::write::<u32>(b'T', 208);
const SET_HEADER_SIZE: Opcode = opcode::write::<i32>(b'T', 216);

/// IFF_TAP, IFF_NO_PI and IFF_VNET_HDR.
const FLAGS: u16 = 0x0002 | 0x1000 | 0x4000;
/// TUN_F_CSUM, TUN_F_TSO4 and TUN_F_TSO6.
const OFFLOADS: usize = 0x01 | 0x02 | 0x04;
const HEADER: i32 = 12;

/// `struct ifreq` as TUNSETIFF takes it.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; 16],
    flags: u16,
    rest: [u8; 22],
}

const _: () = assert!(size_of::<InterfaceRequest>() == 40);

/// A network namespace that goes with its owner.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    handle: File,
}

impl Namespace {
    pub fn new(name: &str) -> Result<Namespace, Failure> {
        let name = format!("forkd-test-{}-{name}", std::process::id());
        ip(&["netns", "add", &name])?;
        let handle = File::open(format!("/run/netns/{name}"))?;
        Ok(Namespace { name, handle })
    }

    /// A new tap in the namespace, with the host's address.
    pub fn tap(&self) -> Result<OwnedFd, Failure> {
        let tap = self.within(make_tap)?;
        ip(&["-n", &self.name, "address", "add", &format!("{HOST}/24"), "dev", TAP])?;
        ip(&["-n", &self.name, "link", "set", TAP, "up"])?;
        Ok(tap)
    }

    /// A connection to the guest behind the tap.
    pub fn connect(&self, port: u16) -> Result<TcpStream, Failure> {
        let address = SocketAddr::from((GUEST, port));
        let stream = self.within(|| Ok(TcpStream::connect_timeout(&address, PATIENCE)?))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(stream)
    }

    /// Asks the guest for an answer to a ping.
    pub fn ping(&self) -> Result<(), Failure> {
        let guest = GUEST.to_string();
        ip(&["netns", "exec", &self.name, "busybox", "ping", "-c", "1", "-W", "30", &guest])
    }

    /// Runs in the namespace. A thread's namespace is its own, so it gets one; sockets that it makes stay where they are.
    fn within<T: Send>(&self, run: impl FnOnce() -> Result<T, Failure> + Send) -> Result<T, Failure> {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                move_into_link_name_space(
                    std::os::fd::AsFd::as_fd(&self.handle),
                    Some(LinkNameSpaceType::Network),
                )?;
                run()
            });
            thread.join().map_err(|_| "a thread in a namespace has panicked")?
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // What cannot be removed is only an empty namespace.
        let _ = ip(&["netns", "delete", &self.name]);
    }
}

fn ip(words: &[&str]) -> Result<(), Failure> {
    let output = Command::new("ip").args(words).output()?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let text = [output.stdout, output.stderr].concat();
            Err(format!("ip {}: {}", words.join(" "), String::from_utf8_lossy(&text)).into())
        }
    }
}

/// A tap as the network device wants it.
fn make_tap() -> Result<OwnedFd, Failure> {
    let non_blocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits())?;
    let tap = OpenOptions::new().read(true).write(true).custom_flags(non_blocking).open("/dev/net/tun")?;
    let mut request = InterfaceRequest { name: [0; 16], flags: FLAGS, rest: [0; 22] };
    request.name[..TAP.len()].copy_from_slice(TAP.as_bytes());
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
