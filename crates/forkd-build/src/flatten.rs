//! The layers of a disk as one file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use forkd_devices::disk::{DiskError, GRAIN, Layer, LayerError, LayerStack, LayeredDisk, StackError};

const CHUNK: usize = 256 * GRAIN;

#[derive(Debug, thiserror::Error)]
pub enum FlattenError {
    #[error("cannot {verb} {}", path.display())]
    File { verb: &'static str, path: PathBuf, source: io::Error },
    #[error("{} is not a layer", path.display())]
    Layer { path: PathBuf, source: LayerError },
    #[error("the layers of the disk do not match")]
    Stack(#[from] StackError),
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// Writes what a guest sees of a base and its layers, the oldest first, to a new sparse file.
pub fn flatten(base: &Path, layers: &[PathBuf], to: &Path) -> Result<(), FlattenError> {
    let failed = |verb, path: &Path| {
        let path = path.to_owned();
        move |source| FlattenError::File { verb, path, source }
    };
    let open = |path: &Path| File::open(path).map_err(failed("open", path));
    let mut frozen = Vec::new();
    for path in layers {
        let layer = Layer::open(open(path)?);
        frozen.push(layer.map_err(|source| FlattenError::Layer { path: path.clone(), source })?);
    }
    let file = open(base)?;
    // A disk may be larger than its base.
    let length = file.metadata().map_err(failed("read", base))?.len();
    let size = frozen.last().map_or(length, Layer::size);
    let stack = LayerStack::new(size, Some(file), frozen)?;
    let directory = to.parent().unwrap_or(Path::new("."));
    // Nothing is written to it.
    let top = tempfile::tempfile_in(directory).map_err(failed("make a file in", directory))?;
    let disk = LayeredDisk::with_empty_top(stack, top, 0)?;

    let out = File::create_new(to).map_err(failed("make", to))?;
    out.set_len(size).map_err(failed("make", to))?;
    let mut chunk = vec![0; CHUNK];
    let mut offset = 0;
    while offset < size {
        let wanted = usize::try_from(size - offset).unwrap_or(CHUNK).min(CHUNK);
        let chunk = &mut chunk[..wanted];
        disk.read_at(offset, chunk)?;
        for (number, block) in chunk.chunks(GRAIN).enumerate() {
            if block.iter().any(|byte| *byte != 0) {
                let at = offset + (number * GRAIN) as u64;
                out.write_all_at(block, at).map_err(failed("write", to))?;
            }
        }
        offset += wanted as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const SIZE: usize = 64 * GRAIN;

    #[test]
    fn the_uppermost_wins_and_zeroes_hide_what_is_below() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let base = vec![1; SIZE];
        fs::write(path("base"), &base).unwrap();
        let layer = |name: &str, below: &[&str], write: &dyn Fn(&mut LayeredDisk)| {
            let frozen =
                below.iter().map(|name| Layer::open(File::open(path(name)).unwrap()).unwrap()).collect();
            let stack =
                LayerStack::new(SIZE as u64, Some(File::open(path("base")).unwrap()), frozen).unwrap();
            let top = File::options().create_new(true).read(true).write(true).open(path(name)).unwrap();
            let mut disk = LayeredDisk::with_empty_top(stack, top, SIZE as u64).unwrap();
            write(&mut disk);
            disk.flush().unwrap();
        };
        layer("one", &[], &|disk| {
            disk.write_at(0, &[2; 2 * GRAIN]).unwrap();
            disk.discard(8 * GRAIN as u64, GRAIN as u64).unwrap();
        });
        layer("two", &["one"], &|disk| disk.write_at(GRAIN as u64, &[3; 512]).unwrap());
        flatten(&path("base"), &[path("one"), path("two")], &path("flat")).unwrap();
        let mut expected = base;
        expected[..2 * GRAIN].fill(2);
        expected[GRAIN..GRAIN + 512].fill(3);
        expected[8 * GRAIN..9 * GRAIN].fill(0);
        assert!(fs::read(path("flat")).unwrap() == expected);
        // A disk that is larger than its base.
        let stack =
            LayerStack::new(2 * SIZE as u64, Some(File::open(path("base")).unwrap()), vec![]).unwrap();
        let top = File::options().create_new(true).read(true).write(true).open(path("large")).unwrap();
        let mut disk = LayeredDisk::with_empty_top(stack, top, 2 * SIZE as u64).unwrap();
        disk.write_at(SIZE as u64 + 512, &[4; 512]).unwrap();
        disk.flush().unwrap();
        flatten(&path("base"), &[path("large")], &path("flat2")).unwrap();
        let mut larger = vec![1; SIZE];
        larger.resize(2 * SIZE, 0);
        larger[SIZE + 512..SIZE + 1024].fill(4);
        assert!(fs::read(path("flat2")).unwrap() == larger);
        assert!(flatten(&path("base"), &[path("base")], &path("other")).is_err());
    }
}
