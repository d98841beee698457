//! The part of a disk that VMs share: the base and the frozen layers.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::GRAIN;
use super::error::{DiskError, LayerError, StackError};
use super::layer::Layer;
use super::map::BlockState;

/// The most frozen layers under one top. Each branch of a running VM adds one, and each costs a descriptor.
pub const MAX_LAYERS: usize = 4096;

/// A disk in saved state. The files travel beside it, as descriptors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskState {
    /// Bytes.
    pub size: u64,
    pub has_base: bool,
    /// How many frozen layers there are.
    pub layers: u32,
    /// The most bytes that the top layer may hold.
    pub limit: u64,
}

#[derive(Debug)]
struct Base {
    file: File,
    length: u64,
}

/// The base and the frozen layers of a disk. A clone shares them.
#[derive(Debug, Clone)]
pub struct LayerStack {
    size: u64,
    base: Option<Arc<Base>>,
    /// The oldest first.
    frozen: Vec<Arc<Layer>>,
}

/// Where blocks come from.
#[derive(Debug)]
pub(super) enum Source<'a> {
    Layer(&'a Layer),
    Base,
    Zero,
}

impl LayerStack {
    /// Puts frozen layers, the oldest first, on a base. Without a base, what no layer has reads as zeroes, as does what
    /// lies beyond the end of the base.
    pub fn new(size: u64, base: Option<File>, frozen: Vec<Layer>) -> Result<LayerStack, StackError> {
        if frozen.len() > MAX_LAYERS {
            return Err(StackError::TooManyLayers { found: frozen.len() });
        }
        for (index, layer) in frozen.iter().enumerate() {
            check_size(layer, size, || format!("frozen layer {}", index + 1))?;
        }
        let base = match base {
            None => None,
            Some(file) => {
                let metadata = file.metadata().map_err(|source| StackError::BaseMetadata { source })?;
                let length = metadata.len();
                if length > size {
                    return Err(StackError::BaseTooLarge { base: length, disk: size });
                }
                Some(Arc::new(Base { file, length }))
            }
        };
        Ok(LayerStack { size, base, frozen: frozen.into_iter().map(Arc::new).collect() })
    }

    /// Puts together what [`LayerStack::state`] described, from the same files: they must have been flushed.
    pub fn restore(
        state: &DiskState,
        base: Option<File>,
        frozen: Vec<File>,
    ) -> Result<LayerStack, StackError> {
        match (&base, state.has_base) {
            (None, true) => return Err(StackError::NoBase),
            (Some(_), false) => return Err(StackError::UnexpectedBase),
            _ => {}
        }
        if usize::try_from(state.layers) != Ok(frozen.len()) {
            return Err(StackError::LayerCount { found: frozen.len(), expected: state.layers });
        }
        let open = |(index, file)| {
            Layer::open(file).map_err(|source| StackError::Frozen { number: index + 1, source })
        };
        let frozen: Result<Vec<Layer>, StackError> = frozen.into_iter().enumerate().map(open).collect();
        LayerStack::new(state.size, base, frozen?)
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    pub fn layers(&self) -> usize {
        self.frozen.len()
    }

    pub fn base_file(&self) -> Option<&File> {
        self.base.as_ref().map(|base| &base.file)
    }

    /// The files of the frozen layers, the oldest first. Before they are opened anew they must be flushed or completed.
    pub fn layer_files(&self) -> impl Iterator<Item = &File> {
        self.frozen.iter().map(|layer| layer.file())
    }

    /// Brings the frozen layers to stable storage and makes their files complete.
    pub fn flush(&self) -> Result<(), DiskError> {
        self.frozen.iter().try_for_each(|layer| layer.settle())
    }

    /// Makes the files of the frozen layers complete, for others to open. Not brought to stable storage.
    pub fn complete(&self) -> Result<(), DiskError> {
        self.frozen.iter().try_for_each(|layer| layer.complete())
    }

    pub(super) fn state(&self, limit: u64) -> DiskState {
        DiskState {
            size: self.size,
            has_base: self.base.is_some(),
            // At most MAX_LAYERS.
            layers: u32::try_from(self.frozen.len()).unwrap_or(u32::MAX),
            limit,
        }
    }

    /// Puts one layer in the place of several, which [`merge`](super::merge) has made of them; or in the place of itself, from another
    /// descriptor.
    pub fn replace(&mut self, layers: Range<usize>, mut merged: Layer) -> Result<(), StackError> {
        let found = self.frozen.len();
        let Some(replaced) = self.frozen.get(layers.clone()).filter(|replaced| !replaced.is_empty()) else {
            return Err(StackError::NoSuchLayers { layers, found });
        };
        check_size(&merged, self.size, || "the merged layer".to_owned())?;
        merged.succeed(replaced);
        self.frozen.splice(layers, [Arc::new(merged)]);
        Ok(())
    }

    pub(super) fn push(&mut self, layer: Layer) {
        self.frozen.push(Arc::new(layer));
    }

    /// Where the block `first` comes from below the top, and how many blocks from there on, up to `limit`, come from the
    /// same place.
    pub(super) fn source(&self, first: usize, limit: usize) -> (Source<'_>, usize) {
        let (found, run) = newest(self.frozen.iter().map(|layer| &**layer), first, limit);
        match (found, &self.base) {
            (Some((layer, BlockState::Data)), _) => (Source::Layer(layer), run),
            (Some(_), _) => (Source::Zero, run),
            (None, Some(base)) if ((first * GRAIN) as u64) < base.length => (Source::Base, run),
            (None, _) => (Source::Zero, run),
        }
    }

    pub(super) fn read_base(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let length = self.base.as_ref().map_or(0, |base| base.length);
        let there = length.saturating_sub(offset).min(buffer.len() as u64);
        // At most the length of the buffer.
        let there = usize::try_from(there).unwrap_or(buffer.len());
        let (inside, beyond) = buffer.split_at_mut(there);
        beyond.fill(0);
        match &self.base {
            Some(base) => base.file.read_exact_at(inside, offset),
            None => Ok(()),
        }
    }
}

/// The newest of some layers, the oldest first, that knows the block `first`, with what it knows; and how many blocks from there
/// on, up to `limit`, are the same.
pub(super) fn newest<'a>(
    layers: impl DoubleEndedIterator<Item = &'a Layer>,
    first: usize,
    mut limit: usize,
) -> (Option<(&'a Layer, BlockState)>, usize) {
    for layer in layers.rev() {
        let (state, run) = layer.run(first, limit);
        limit = run;
        if state != BlockState::Absent {
            return (Some((layer, state)), limit);
        }
    }
    (None, limit)
}

pub(super) fn check_size(
    layer: &Layer,
    expected: u64,
    which: impl FnOnce() -> String,
) -> Result<(), StackError> {
    let found = layer.size();
    if found == expected { Ok(()) } else { Err(StackError::Size { which: which(), found, expected }) }
}

impl From<LayerError> for StackError {
    fn from(source: LayerError) -> StackError {
        StackError::Top { source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 16 * GRAIN as u64;

    fn layer(size: u64) -> Layer {
        Layer::create(tempfile::tempfile().unwrap(), size).unwrap()
    }

    fn base(length: u64) -> Option<File> {
        let file = tempfile::tempfile().unwrap();
        file.set_len(length).unwrap();
        Some(file)
    }

    #[test]
    fn files_that_do_not_fit_together_are_refused() {
        let error = LayerStack::new(SIZE, None, vec![layer(SIZE), layer(2 * SIZE)]).unwrap_err();
        assert_eq!(error.to_string(), "frozen layer 2 is for a disk of 131072 bytes; 65536 are expected");
        let error = LayerStack::new(SIZE, base(SIZE + 1), vec![]).unwrap_err();
        assert_eq!(error.to_string(), "the base image has 65537 bytes, more than the disk of 65536");
    }

    #[test]
    fn a_completed_layer_is_replaced_by_its_file_and_flushed_later() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut written = Layer::create(file.reopen().unwrap(), SIZE).unwrap();
        written.write_data(0, &[7; GRAIN]).unwrap();
        written.mark_data(0, 1);
        let mut stack = LayerStack::new(SIZE, None, vec![]).unwrap();
        stack.push(written);
        let again = || Layer::open(File::open(file.path()).unwrap()).unwrap();
        assert_eq!(again().state(0), BlockState::Absent, "its map is in memory");
        stack.complete().unwrap();
        assert_eq!(again().state(0), BlockState::Data);
        assert!(stack.replace(0..2, again()).is_err());
        assert!(stack.replace(0..0, again()).is_err());
        stack.replace(0..1, again()).unwrap();
        assert!(!stack.frozen[0].is_settled(), "nothing was synced yet");
        stack.flush().unwrap();
        assert!(stack.frozen[0].is_settled());
    }

    #[test]
    fn saved_state_is_compared_with_the_files() {
        let mut stack = LayerStack::new(SIZE, base(SIZE), vec![]).unwrap();
        stack.push(layer(SIZE));
        stack.flush().unwrap();
        let state = stack.state(1 << 20);
        let files = || -> Vec<File> { stack.layer_files().map(|file| file.try_clone().unwrap()).collect() };
        let restored = LayerStack::restore(&state, base(SIZE), files()).unwrap();
        assert_eq!(restored.state(1 << 20), state);

        let refused = |state: &DiskState, base, files| LayerStack::restore(state, base, files).unwrap_err();
        assert!(matches!(refused(&state, None, files()), StackError::NoBase));
        assert!(matches!(
            refused(&state, base(SIZE), vec![]),
            StackError::LayerCount { found: 0, expected: 1 }
        ));
        let broken = |change: &dyn Fn(&mut DiskState)| {
            let mut state = state.clone();
            change(&mut state);
            refused(&state, base(SIZE), files())
        };
        assert!(matches!(broken(&|state| state.has_base = false), StackError::UnexpectedBase));
        assert!(matches!(broken(&|state| state.layers = 2), StackError::LayerCount { .. }));
        assert!(matches!(broken(&|state| state.size += 4096), StackError::Size { .. }));
        let error = refused(&state, base(SIZE), vec![tempfile::tempfile().unwrap()]);
        assert!(matches!(error, StackError::Frozen { number: 1, .. }), "{error}");
    }
}
