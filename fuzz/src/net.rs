//! The network device, with a pair of sockets in place of a tap: both keep frames apart.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;

use forkd_devices::virtio::net::{NetDevice, NetSettings};

use crate::driver::Subject;

/// Times 255, this is longer than any frame.
const LONG: usize = 260;

/// The other end of the tap.
#[derive(Debug)]
pub struct Network {
    wire: UnixDatagram,
    tap: UnixDatagram,
}

impl Network {
    fn tap(&self) -> OwnedFd {
        self.tap.try_clone().unwrap().into()
    }
}

impl Subject for Network {
    type Device = NetDevice;

    fn new(variant: u8) -> (Network, NetDevice) {
        let (wire, tap) = UnixDatagram::pair().unwrap();
        wire.set_nonblocking(true).unwrap();
        tap.set_nonblocking(true).unwrap();
        let network = Network { wire, tap };
        let mtu = (variant & 1 != 0).then_some(1400);
        let settings = NetSettings { mac: [2, 0, 0, 0, 0, 1], mtu };
        let device = NetDevice::new(settings, network.tap()).unwrap();
        (network, device)
    }

    fn restored(&mut self, device: &mut NetDevice) -> NetDevice {
        NetDevice::restored(&device.save(), self.tap()).unwrap()
    }

    /// A frame arrives, as it is or longer; frames are taken off the wire.
    fn act(&mut self, _device: &mut NetDevice, action: u8, bytes: &[u8]) {
        match action % 3 {
            0 => {
                let _ = self.wire.send(bytes);
            }
            1 => {
                let mut frame = bytes.to_vec();
                let length = bytes.first().map_or(0, |byte| usize::from(*byte) * LONG);
                frame.resize(length, 0x5a);
                let _ = self.wire.send(&frame);
            }
            _ => {
                let mut frame = [0; 1];
                while self.wire.recv(&mut frame).is_ok() {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::ALL_FEATURES;
    use crate::seed::{Seed, WRITE};

    /// A header of 12 bytes that asks for nothing, and a frame.
    fn frame() -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend_from_slice(&[0xff; 6]);
        frame.extend_from_slice(&[2, 0, 0, 0, 0, 9, 8, 0]);
        frame.resize(12 + 60, 7);
        frame
    }

    #[test]
    fn the_seeds_move_frames_both_ways() {
        for (name, features) in [("plain", 0), ("mergeable", ALL_FEATURES)] {
            let mut seed = Seed::running(features);
            seed.memory(0x4_0000, &frame());
            seed.chain(1, 0, &[(0x4_0000, 12, 0), (0x4_000c, 60, 0)]).notify(1);
            seed.host(2, b"");
            // A frame in two chains where that is possible.
            seed.host(0, &frame()).chain(0, 0, &[(0x5_0000, 0x40, WRITE), (0x5_0100, 0x8, WRITE)]);
            seed.chain(0, 2, &[(0x5_1000, 0x1000, WRITE)]).notify(0).ready(0);
            seed.restore();
            seed.host(0, &frame()).ready(0).chain(0, 4, &[(0x6_0000, 0x1000, WRITE)]).notify(0);
            assert!(seed.check::<Network>("net", name).iter().all(|used| *used > 0), "{name}");
        }
    }
}
