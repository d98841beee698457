//! The block device, on a disk of files in memory: a base, frozen layers and a top that is too small for all of it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

use forkd_devices::disk::{Layer, LayerStack, LayeredDisk};
use forkd_devices::virtio::block::{Block, DiskName};
use rustix::fs::MemfdFlags;

use crate::driver::Subject;

/// Small, because one notification may have every chain move all of it.
const SIZE: u64 = 64 << 10;
/// Ends inside of a block.
const BASE: usize = (48 << 10) + 512;
const LIMIT: u64 = 32 << 10;
const NAME: &DiskName = b"forkd-fuzz\0\0\0\0\0\0\0\0\0\0";
/// Each costs descriptors.
const MAX_LAYERS: usize = 6;

/// Nothing: the disk has all of its files.
#[derive(Debug)]
pub struct Disk;

fn file() -> File {
    rustix::fs::memfd_create("layer", MemfdFlags::CLOEXEC).unwrap().into()
}

/// Nobody writes it, so all inputs share it.
fn base() -> File {
    static BASE_FILE: OnceLock<File> = OnceLock::new();
    let base = BASE_FILE.get_or_init(|| {
        let file = file();
        let bytes: Vec<u8> = (0..BASE).map(|at| (at / 512 + at) as u8).collect();
        file.write_all_at(&bytes, 0).unwrap();
        file
    });
    base.try_clone().unwrap()
}

fn contents(disk: &LayeredDisk) -> Vec<u8> {
    let mut bytes = vec![0; SIZE as usize];
    disk.read_at(0, &mut bytes).unwrap();
    bytes
}

impl Subject for Disk {
    type Device = Block;

    /// Odd variants have no base.
    fn new(variant: u8) -> (Disk, Block) {
        let base = (variant & 1 == 0).then(base);
        let stack = LayerStack::new(SIZE, base, vec![]).unwrap();
        let disk = LayeredDisk::with_empty_top(stack, file(), LIMIT).unwrap();
        (Disk, Block::new(disk, *NAME))
    }

    fn restored(&mut self, device: &mut Block) -> Block {
        device.disk_mut().flush().unwrap();
        let disk = device.disk();
        let (state, stack) = (disk.state(), disk.stack());
        let clone = |file: &File| file.try_clone().unwrap();
        let layers = stack.layer_files().map(clone).collect();
        let stack = LayerStack::restore(&state, stack.base_file().map(clone), layers).unwrap();
        let top = Layer::open(clone(disk.top_file())).unwrap();
        let restored = LayeredDisk::new(stack, top, state.limit).unwrap();
        assert!(restored.state() == state && restored.allocated() == disk.allocated());
        assert!(contents(&restored) == contents(disk), "a restored disk has other contents");
        Block::new(restored, *NAME)
    }

    /// The disk is branched: its top is frozen under a new one.
    fn act(&mut self, device: &mut Block, _action: u8, _bytes: &[u8]) {
        let disk = device.disk_mut();
        if disk.stack().layers() < MAX_LAYERS {
            let before = contents(disk);
            disk.freeze_top(file()).unwrap();
            assert!(contents(disk) == before, "a frozen disk has other contents");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::ALL_FEATURES;
    use crate::seed::{Seed, WRITE};

    const HEADER: u32 = 0x4_0000;
    const DATA: u32 = 0x4_1000;
    const STATUS: u32 = 0x4_0100;

    /// A request with data in this direction.
    fn request(seed: &mut Seed, kind: u8, sector: u8, length: u32, flags: u8) {
        seed.memory(HEADER, &[kind, 0, 0, 0, 0, 0, 0, 0, sector, 0, 0, 0, 0, 0, 0, 0]);
        let all = [(HEADER, 16, 0), (DATA, length, flags), (STATUS, 1, WRITE)];
        if length > 0 {
            seed.chain(0, 0, &all);
        } else {
            seed.chain(0, 0, &[all[0], all[2]]);
        }
        seed.notify(0);
    }

    #[test]
    fn the_seeds_read_and_write() {
        for (name, features) in [("plain", 0), ("all-features", ALL_FEATURES)] {
            let mut seed = Seed::running(features);
            seed.memory(DATA, &[0x11; 200]);
            request(&mut seed, 1, 3, 0x1600, 0);
            request(&mut seed, 0, 0, 0x2000, WRITE);
            seed.restore().host(0, b"");
            request(&mut seed, 1, 8, 0x1000, 0);
            request(&mut seed, 4, 0, 0, 0);
            request(&mut seed, 8, 0, 20, WRITE);
            // Sector 5, 40 sectors, to discard and to zero.
            seed.memory(DATA, &[5, 0, 0, 0, 0, 0, 0, 0, 40, 0, 0, 0, 0, 0, 0, 0]);
            request(&mut seed, 11, 0, 16, 0);
            request(&mut seed, 13, 0, 16, 0);
            request(&mut seed, 0, 0, 0x8000, WRITE);
            assert_eq!(seed.check::<Disk>("block", name), [8], "{name}");
        }
    }
}
