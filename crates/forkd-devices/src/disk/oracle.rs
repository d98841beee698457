//! The disk against an oracle: a plain vector of bytes for each disk.

use std::fs::File;
use std::os::unix::fs::FileExt;

use proptest::prelude::*;
use rustix::fs::MemfdFlags;

use super::{GRAIN, Layer, LayerStack, LayeredDisk, SECTOR};

const SECTORS: usize = 24 * GRAIN / SECTOR;
const SIZE: usize = SECTORS * SECTOR;
/// The base ends in the middle of a sector.
const BASE: usize = 9 * GRAIN + 700;

#[derive(Debug, Clone)]
enum Step {
    Write {
        first: usize,
        count: usize,
        byte: u8,
    },
    Discard {
        first: usize,
        count: usize,
    },
    Zero {
        first: usize,
        count: usize,
    },
    Freeze,
    Flush,
    /// Flushes, and puts the disk together again from its files.
    Reopen,
    /// Freezes, and makes another disk above the same layers.
    Branch,
    /// The following steps are for another one of the disks.
    Turn(usize),
}

fn any_step() -> impl Strategy<Value = Step> {
    let range = || (0..SECTORS).prop_flat_map(|first| (Just(first), 0..=(SECTORS - first).min(40)));
    prop_oneof![
        8 => (range(), 1u8..).prop_map(|((first, count), byte)| Step::Write { first, count, byte }),
        3 => range().prop_map(|(first, count)| Step::Discard { first, count }),
        3 => range().prop_map(|(first, count)| Step::Zero { first, count }),
        1 => Just(Step::Freeze),
        1 => Just(Step::Flush),
        1 => Just(Step::Reopen),
        1 => Just(Step::Branch),
        2 => any::<usize>().prop_map(Step::Turn),
    ]
}

/// In memory, where syncs cost nothing.
fn file() -> File {
    rustix::fs::memfd_create("layer", MemfdFlags::CLOEXEC).unwrap().into()
}

fn reopen(mut disk: LayeredDisk) -> LayeredDisk {
    disk.flush().unwrap();
    let copy = |file: &File| file.try_clone().unwrap();
    let base = disk.stack().base_file().map(copy);
    let frozen = disk.stack().layer_files().map(copy).collect();
    let (state, top) = (disk.state(), copy(disk.top_file()));
    drop(disk);
    let stack = LayerStack::restore(&state, base, frozen).unwrap();
    LayeredDisk::new(stack, Layer::open(top).unwrap(), state.limit).unwrap()
}

/// The bytes of a write differ from sector to sector and from write to write.
fn pattern(count: usize, byte: u8) -> Vec<u8> {
    (0..count * SECTOR).map(|at| byte.wrapping_add((at / SECTOR).to_le_bytes()[0]).max(1)).collect()
}

fn run(steps: Vec<Step>) {
    let contents = pattern(BASE.div_ceil(SECTOR), 0x80);
    let base = file();
    base.write_all_at(&contents[..BASE], 0).unwrap();
    let mut model = contents[..BASE].to_vec();
    model.resize(SIZE, 0);
    let stack = LayerStack::new(SIZE as u64, Some(base), vec![]).unwrap();
    let disk = LayeredDisk::with_empty_top(stack, file(), u64::MAX).unwrap();
    let mut disks = vec![(disk, model)];
    let mut turn = 0;
    for step in steps {
        let (disk, model) = &mut disks[turn];
        let bytes = |first: usize, count: usize| ((first * SECTOR) as u64, (count * SECTOR) as u64);
        match step {
            Step::Write { first, count, byte } => {
                let data = pattern(count, byte);
                disk.write_at(bytes(first, count).0, &data).unwrap();
                model[first * SECTOR..][..data.len()].copy_from_slice(&data);
            }
            Step::Discard { first, count } => {
                let (offset, length) = bytes(first, count);
                disk.discard(offset, length).unwrap();
                for block in model.chunks_mut(GRAIN).enumerate() {
                    let start = (block.0 * GRAIN) as u64;
                    if offset <= start && start + GRAIN as u64 <= offset + length {
                        block.1.fill(0);
                    }
                }
            }
            Step::Zero { first, count } => {
                let (offset, length) = bytes(first, count);
                disk.write_zeroes(offset, length).unwrap();
                model[first * SECTOR..(first + count) * SECTOR].fill(0);
            }
            Step::Freeze => {
                disk.freeze_top(file()).unwrap();
            }
            Step::Flush => disk.flush().unwrap(),
            Step::Reopen => {
                let (disk, model) = disks.swap_remove(turn);
                disks.push((reopen(disk), model));
                turn = disks.len() - 1;
            }
            Step::Branch => {
                disk.freeze_top(file()).unwrap();
                let branch = LayeredDisk::with_empty_top(disk.stack().clone(), file(), u64::MAX).unwrap();
                let model = model.clone();
                disks.push((branch, model));
            }
            Step::Turn(next) => turn = next % disks.len(),
        }
    }
    // Every disk, not only the one that was written: a write to one must not show in another.
    for (disk, model) in disks {
        let mut whole = vec![0xee; SIZE];
        disk.read_at(0, &mut whole).unwrap();
        assert!(whole == model, "the disk differs from the model");
        let mut sector = [0xee; 3 * SECTOR];
        for first in 0..SECTORS - 2 {
            disk.read_at((first * SECTOR) as u64, &mut sector).unwrap();
            assert!(sector == model[first * SECTOR..(first + 3) * SECTOR], "sector {first}");
        }
        let mut disk = reopen(disk);
        disk.read_at(0, &mut whole).unwrap();
        assert!(whole == model, "the disk differs from the model when opened again");
        disk.flush().unwrap();
    }
}

proptest! {
    #[test]
    fn reads_give_what_was_written(steps in proptest::collection::vec(any_step(), 0..60)) {
        run(steps);
    }
}
