//! The vsock device, with clients that a fuzzer moves.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicU64, Ordering};

use forkd_devices::virtio::vsock::{GuestCid, VsockDevice};

use crate::driver::Subject;

const CID: u64 = 3;
/// Fewer than the listener's queue takes: a client that comes in never waits.
const MAX_CLIENTS: usize = 32;

/// The socket and its clients.
#[derive(Debug)]
pub struct Sockets {
    address: SocketAddr,
    listener: UnixListener,
    clients: Vec<UnixStream>,
    came: usize,
}

fn cid() -> GuestCid {
    GuestCid::try_from(CID).unwrap()
}

impl Subject for Sockets {
    type Device = VsockDevice;

    fn new(_variant: u8) -> (Sockets, VsockDevice) {
        // A name without a file: nothing is left behind. Each input has its own, so no client of another is in the queue.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("forkd-fuzz-{}-{number}", std::process::id());
        let address = SocketAddr::from_abstract_name(name).unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        let device = VsockDevice::new(cid(), listener.try_clone().unwrap()).unwrap();
        (Sockets { address, listener, clients: Vec::new(), came: 0 }, device)
    }

    fn restored(&mut self, device: &mut VsockDevice) -> VsockDevice {
        let listener = self.listener.try_clone().unwrap();
        VsockDevice::restored(&device.save(), cid(), listener).unwrap()
    }

    /// The low three bits say what is done, the others to which client.
    fn act(&mut self, _device: &mut VsockDevice, action: u8, bytes: &[u8]) {
        let count = self.clients.len();
        let at = usize::from(action >> 3) % count.max(1);
        match (action & 7, self.clients.get_mut(at)) {
            (0 | 1, _) if self.came < MAX_CLIENTS => {
                let mut client = UnixStream::connect_addr(&self.address).unwrap();
                client.set_nonblocking(true).unwrap();
                let _ = client.write(bytes);
                self.came += 1;
                self.clients.push(client);
            }
            (2, Some(client)) => {
                let _ = client.write(bytes);
            }
            (3, Some(client)) => {
                let _ = client.write(&vec![0x5a; 1 << 16]);
            }
            (4, Some(client)) => {
                let _ = client.read(&mut [0; 4096]);
            }
            (5, Some(client)) => {
                let _ = client.shutdown(Shutdown::Write);
            }
            (6, Some(client)) => {
                let _ = client.shutdown(Shutdown::Read);
            }
            (7, Some(_)) => drop(self.clients.swap_remove(at)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::{Seed, WRITE};

    const FIRST_PORT: u32 = 1 << 30;
    const RESPONSE: u16 = 2;
    const SHUTDOWN: u16 = 4;
    const DATA: u16 = 5;
    const CREDIT_REQUEST: u16 = 7;

    /// A packet from port 1024 of the guest.
    fn packet(seed: &mut Seed, operation: u16, host_port: u32, flags: u32, payload: &[u8]) {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&CID.to_le_bytes());
        bytes.extend_from_slice(&2u64.to_le_bytes());
        bytes.extend_from_slice(&1024u32.to_le_bytes());
        bytes.extend_from_slice(&host_port.to_le_bytes());
        bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&1u16.to_le_bytes());
        bytes.extend_from_slice(&operation.to_le_bytes());
        bytes.extend_from_slice(&flags.to_le_bytes());
        bytes.extend_from_slice(&0x1_0000u32.to_le_bytes());
        bytes.extend_from_slice(&0u32.to_le_bytes());
        assert_eq!(bytes.len(), 44);
        bytes.extend_from_slice(payload);
        seed.memory(0x4_0000, &bytes);
        seed.chain(1, 0, &[(0x4_0000, bytes.len() as u32, 0)]).notify(1);
    }

    fn buffers(seed: &mut Seed) {
        for index in 0..4 {
            let at = 0x5_0000 + 0x2000 * u32::from(index);
            seed.chain(0, 2 * index, &[(at, 44, WRITE), (at + 0x1000, 0x1000, WRITE)]);
        }
        seed.notify(0);
    }

    /// A client comes, is accepted, and both sides speak.
    fn conversation(seed: &mut Seed, port: u32) {
        buffers(seed);
        seed.host(0, b"CONNECT 1024\nhello").ready(0).ready(1);
        packet(seed, RESPONSE, port, 0, b"");
        seed.ready(1);
        packet(seed, DATA, port, 0, b"hello to you");
        packet(seed, CREDIT_REQUEST, port, 0, b"");
        seed.host(4, b"").host(2, b"more").ready(1);
    }

    #[test]
    fn the_seeds_open_and_close_connections() {
        let mut seed = Seed::running(0);
        conversation(&mut seed, FIRST_PORT);
        packet(&mut seed, SHUTDOWN, FIRST_PORT, 3, b"");
        let used = seed.check::<Sockets>("vsock", "guest-closes");
        assert!(used[0] >= 3 && used[1] == 4, "{used:?}");

        let mut seed = Seed::running(0);
        conversation(&mut seed, FIRST_PORT);
        seed.host(5, b"").ready(1).host(7, b"").ready(1);
        let used = seed.check::<Sockets>("vsock", "client-closes");
        assert!(used[0] >= 3 && used[1] == 3, "{used:?}");

        let mut seed = Seed::running(0);
        seed.chain(2, 0, &[(0x6_0000, 8, WRITE)]).notify(2);
        conversation(&mut seed, FIRST_PORT);
        // The restored device tells the guest, which offers the event's buffer again.
        seed.restore().chain(2, 0, &[(0x6_0000, 8, WRITE)]).notify(2);
        conversation(&mut seed, FIRST_PORT + 1);
        let used = seed.check::<Sockets>("vsock", "restored");
        assert!(used[0] >= 5 && used[1] == 6 && used[2] == 1, "{used:?}");
    }
}
