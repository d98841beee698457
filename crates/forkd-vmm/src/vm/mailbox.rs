//! The mailbox: a device for tests and benchmarks, through which the host gives a tiny guest commands.
//!
//! The guest reads the port. If a command has come, it is written to guest memory and the port reads 1; if the vCPU is to
//! pause, it reads 0, and the guest asks again. The guest writes its result to memory and any value to the port.
//!
//! ```text
//! ADDRESS  +0 command   +8 first argument   +16 second argument   +24 result     (u64 each, little-endian)
//! socket   24 bytes to the guest, 8 bytes from it
//! ```

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

/// The port.
pub const PORT: u16 = 0x500;
/// Where the command is in guest memory.
pub const ADDRESS: GuestAddress = GuestAddress(0x6000);
const RESULT: GuestAddress = GuestAddress(0x6018);
const COMMAND_SIZE: usize = 24;

#[derive(Debug)]
pub struct Mailbox {
    socket: OwnedFd,
}

impl Mailbox {
    pub fn new(socket: OwnedFd) -> Mailbox {
        Mailbox { socket }
    }

    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Waits for a command or for `stop`; returns whether a command is in guest memory. A host that is gone sends none.
    pub fn wait(&self, memory: &GuestMemoryMmap, stop: &OwnedFd) -> bool {
        let mut gone = false;
        loop {
            let mut events = vec![PollFd::new(stop, PollFlags::IN)];
            if !gone {
                events.push(PollFd::new(&self.socket, PollFlags::IN));
            }
            // A signal is a kick, and `stop` is readable then.
            let _ = poll(&mut events, None);
            if events[0].revents().contains(PollFlags::IN) {
                return false;
            }
            if events.get(1).is_none_or(|socket| socket.revents().is_empty()) {
                continue;
            }
            let mut command = [0; COMMAND_SIZE];
            match rustix::io::read(self.socket.as_fd(), &mut command) {
                Ok(COMMAND_SIZE) => return memory.write_slice(&command, ADDRESS).is_ok(),
                Ok(0) => gone = true,
                // Half a command is not the guest's business.
                _ => {}
            }
        }
    }

    /// Sends the guest's result to the host.
    pub fn answer(&self, memory: &GuestMemoryMmap) {
        let result: u64 = memory.read_obj(RESULT).unwrap_or(u64::MAX);
        // The host may be gone.
        let _ = rustix::net::send(&self.socket, &result.to_le_bytes(), rustix::net::SendFlags::NOSIGNAL);
    }
}
