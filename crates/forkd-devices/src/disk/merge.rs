//! Merge: one layer in the place of several that lie above each other.

use std::fs::File;
use std::io;

use super::GRAIN;
use super::error::{DiskError, LayerError, StackError};
use super::layer::Layer;
use super::map::BlockState;
use super::stack::{check_size, newest};

#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    #[error("there are no layers to merge")]
    Nothing,
    #[error(transparent)]
    Layer(#[from] LayerError),
    #[error(transparent)]
    Size(#[from] StackError),
    #[error("the data of a layer cannot be copied")]
    Copy(#[source] io::Error),
    #[error("the merged layer cannot be brought to stable storage")]
    Flush(#[source] DiskError),
}

/// Makes an empty file one layer of several, the oldest first: a disk reads the same with it in their place. They are flushed
/// and they are not written any more; when this returns, the new one is on stable storage.
pub fn merge(layers: &[Layer], into: File) -> Result<Layer, MergeError> {
    let size = layers.first().ok_or(MergeError::Nothing)?.size();
    for (index, layer) in layers.iter().enumerate() {
        check_size(layer, size, || format!("layer {} of those to merge", index + 1))?;
    }
    let mut merged = Layer::create(into, size)?;
    // A disk is never larger than an address space can count.
    let blocks = usize::try_from(size).unwrap_or(usize::MAX) / GRAIN;
    let mut block = 0;
    while block < blocks {
        let (found, run) = newest(layers.iter(), block, blocks - block);
        match found {
            Some((layer, BlockState::Data)) => {
                merged.copy_data(layer, block, run).map_err(MergeError::Copy)?;
            }
            // Zero, not absent: below may be data.
            Some((_, BlockState::Zero)) => merged.mark_zero(block, run),
            Some((_, BlockState::Absent)) | None => {}
        }
        block += run;
    }
    merged.flush().map_err(MergeError::Flush)?;
    Ok(merged)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{LayerStack, LayeredDisk};
    use proptest::prelude::*;
    use std::os::unix::fs::FileExt;

    const BLOCKS: u64 = 12;
    const SIZE: u64 = BLOCKS * GRAIN as u64;

    fn file() -> File {
        tempfile::tempfile().unwrap()
    }

    #[derive(Debug, Clone)]
    enum Step {
        Write(u64, u8),
        Discard(u64),
        Freeze,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0..BLOCKS, 1..=u8::MAX).prop_map(|(block, byte)| Step::Write(block, byte)),
            1 => (0..BLOCKS).prop_map(Step::Discard),
            2 => Just(Step::Freeze),
        ];
        proptest::collection::vec(step, 1..60)
    }

    fn disk(steps: &[Step]) -> LayeredDisk {
        let base = file();
        base.write_all_at(&[0xbb; 8 * GRAIN], 0).unwrap();
        let stack = LayerStack::new(SIZE, Some(base), vec![]).unwrap();
        let mut disk = LayeredDisk::with_empty_top(stack, file(), u64::MAX).unwrap();
        for step in steps {
            match *step {
                Step::Write(block, byte) => {
                    disk.write_at(block * GRAIN as u64, &[byte; GRAIN]).unwrap();
                }
                Step::Discard(block) => disk.discard(block * GRAIN as u64, GRAIN as u64).unwrap(),
                Step::Freeze => drop(disk.freeze_top(file()).unwrap()),
            }
        }
        disk.flush().unwrap();
        disk
    }

    fn contents(disk: &LayeredDisk) -> Vec<u8> {
        let mut all = vec![0; usize::try_from(SIZE).unwrap()];
        disk.read_at(0, &mut all).unwrap();
        all
    }

    fn open(disk: &LayeredDisk) -> Vec<Layer> {
        let files = disk.stack().layer_files().map(|file| file.try_clone().unwrap());
        files.map(|file| Layer::open(file).unwrap()).collect()
    }

    proptest! {
        /// Whatever was written and whichever layers are merged, the disk reads as before; and again when opened anew.
        #[test]
        fn a_disk_reads_the_same_with_the_merged_layer(steps in steps(), from: u8, to: u8) {
            let mut disk = disk(&steps);
            let count = disk.stack().layers();
            prop_assume!(count > 0);
            let from = usize::from(from) % count;
            let to = from + 1 + usize::from(to) % (count - from);
            let before = contents(&disk);
            let layers = open(&disk);
            let into = file();
            let merged = merge(&layers[from..to], into.try_clone().unwrap()).unwrap();
            disk.replace_layers(from..to, merged).unwrap();
            prop_assert_eq!(disk.stack().layers(), count - (to - from) + 1);
            prop_assert!(contents(&disk) == before, "another disk");
            disk.replace_layers(from..from + 1, Layer::open(into).unwrap()).unwrap();
            prop_assert!(contents(&disk) == before, "another disk when it is opened");
        }
    }

    #[test]
    fn layers_that_do_not_fit_are_refused() {
        assert!(matches!(merge(&[], file()), Err(MergeError::Nothing)));
        let layers = [SIZE, 2 * SIZE].map(|size| Layer::create(file(), size).unwrap());
        assert_eq!(
            merge(&layers, file()).unwrap_err().to_string(),
            "layer 2 of those to merge is for a disk of 98304 bytes; 49152 are expected"
        );
        let mut disk = disk(&[Step::Write(0, 1), Step::Freeze]);
        let one = || Layer::create(file(), SIZE).unwrap();
        for range in [0..2, 1..2, 0..0] {
            let error = disk.replace_layers(range, one()).unwrap_err();
            assert!(matches!(error, StackError::NoSuchLayers { found: 1, .. }), "{error}");
        }
        let other = Layer::create(file(), 2 * SIZE).unwrap();
        assert!(matches!(disk.replace_layers(0..1, other), Err(StackError::Size { .. })));
    }
}
