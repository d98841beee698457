//! Snapshots of an attacker: every blob, frame and digest on the way is right, and what the streams have is not.

use std::os::unix::fs::FileExt;

use forkd_hub::layout;
use forkd_hub::{Outgoing, Role, Silent, Snapshot};
use forkd_proto::causes::with_causes;
use forkd_store::{PAGE_SIZE, PackedFile};
use forkd_tests::engine::process::Failure;
use forkd_tests::engine::ticking;

use crate::travel::{load, number_in, save, world};
use crate::world::World;

/// Bytes of a small stream that a receiver takes.
const MAX_SMALL: usize = 64 << 20;

/// Saves `one` with other contents in the streams of a role, under their own names.
fn forge(from: &World, role: Role, change: &dyn Fn(&mut Vec<u8>)) -> Result<Vec<u8>, Failure> {
    let departure = from.engine.depart(&"one".parse()?)?;
    departure.send(|snapshot| {
        let mut contents = Vec::new();
        for stream in snapshot.streams {
            let mut bytes = vec![0; usize::try_from(stream.source.length()?)?];
            stream.source.read_at(&mut bytes, 0)?;
            if stream.role == role {
                change(&mut bytes);
            }
            contents.push(bytes);
        }
        let streams = snapshot.streams.iter().zip(&contents);
        let streams: Vec<Outgoing<'_>> = streams
            .map(|(stream, source)| Outgoing { source, known: None, remembered: None, ..*stream })
            .collect();
        let mut file = Vec::new();
        layout::write(&mut file, Snapshot { streams: &streams, ..snapshot }, Some("latest"), &Silent)?;
        Ok(file)
    })
}

/// The map of a file with pages of data at its beginning, and holes behind them.
fn map_of(data_pages: usize, pages: usize) -> Result<Vec<u8>, Failure> {
    let file = tempfile::tempfile()?;
    file.write_all_at(&vec![1; data_pages * PAGE_SIZE], 0)?;
    file.set_len((pages * PAGE_SIZE) as u64)?;
    Ok(PackedFile::pack(file)?.map().encode())
}

/// How many pages of its disk layer `one` has.
fn data_pages(from: &World) -> Result<usize, Failure> {
    let departure = from.engine.depart(&"one".parse()?)?;
    departure.send(|snapshot| {
        let disk = snapshot.streams.iter().find(|stream| stream.role == Role::Disk);
        Ok(usize::try_from(disk.ok_or("no disk")?.source.length()?)? / PAGE_SIZE)
    })
}

#[test]
fn each_stream_with_other_contents_is_refused_for_what_it_is() -> Result<(), Failure> {
    let from = world()?;
    let to = World::with_guest(&ticking::elf())?;
    let refuses =
        |what: &str, role: Role, change: &dyn Fn(&mut Vec<u8>), words: &str| -> Result<(), Failure> {
            let error = match load(&to, &forge(&from, role, change)?, None) {
                Ok(_) => return Err(format!("{what}: accepted").into()),
                Err(error) => with_causes(&*error),
            };
            assert!(error.contains(words), "{what}: {error}");
            for below in ["snapshots", "layers", "partial", "arriving"] {
                assert_eq!(to.names(below), [""; 0], "{what}: {below}");
            }
            assert_eq!(to.engine.snapshots().len(), 0, "{what}");
            Ok(())
        };
    let flip = |bytes: &mut Vec<u8>| bytes[0] ^= 1;
    let lengthen = |bytes: &mut Vec<u8>| bytes.push(0);
    let pages = data_pages(&from)?;
    let (wide, few) = (map_of(pages, 1 << 20)?, map_of(pages + 1, 1 << 20)?);

    refuses("a disk", Role::Disk, &flip, "of its disks is damaged: its contents have the digest")?;
    refuses("a longer disk", Role::Disk, &lengthen, "the disk layer ")?;
    refuses("no map of a disk", Role::DiskMap, &|bytes| bytes.clear(), "the map of layer ")?;
    refuses("a damaged map of a disk", Role::DiskMap, &flip, "the map of layer ")?;
    refuses(
        "a map of more pages",
        Role::DiskMap,
        &|bytes| bytes.clone_from(&wide),
        "a map of 1048576 pages",
    )?;
    refuses("a map of other pages", Role::DiskMap, &|bytes| bytes.clone_from(&few), "the disk layer ")?;
    refuses("a map too long", Role::DiskMap, &|bytes| bytes.resize(MAX_SMALL + 1, 0), "expected 67108864")?;
    refuses("a state", Role::State, &flip, "state.bin is damaged")?;
    refuses("a longer state", Role::State, &lengthen, "the stream of ")?;
    refuses("a map of memory", Role::MemoryMap, &flip, "memory.map is damaged")?;
    refuses("a longer map of memory", Role::MemoryMap, &lengthen, "the stream of ")?;
    refuses("memory", Role::Memory, &flip, "the received frames do not match its memory.map")?;
    refuses("longer memory", Role::Memory, &lengthen, "the received frames do not match its memory.map")?;

    // The receiver is well.
    load(&to, &save(&from, "one")?, None)?;
    assert_eq!(number_in(&to, "one")?, 1);
    Ok(())
}
