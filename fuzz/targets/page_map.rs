//! Page maps are files that anyone may have written: any bytes are a map or are refused, also with good digests.

#![no_main]

use forkd_store::{Digest, PageMap, RunKind};
use libfuzzer_sys::fuzz_target;

/// Where `memory.map` has its numbers and digests.
const RUN_COUNT: usize = 24;
const MEMORY_PAGES: usize = 32;
const RUNS_DIGEST: usize = 48;
const CHECKSUM: usize = 80;
const RUN: usize = 16;

fuzz_target!(|file: &[u8]| {
    check(file);
    if file.len() >= PageMap::HEADER {
        let mut file = file.to_vec();
        seal(&mut file);
        check(&file);
        // With the right number of runs they are looked at, too.
        file.truncate(file.len() - (file.len() - PageMap::HEADER) % RUN);
        let runs = (file.len() - PageMap::HEADER) / RUN;
        file[RUN_COUNT..MEMORY_PAGES].copy_from_slice(&(runs as u64).to_le_bytes());
        seal(&mut file);
        check(&file);
    }
});

fn seal(file: &mut [u8]) {
    let digest = Digest::of(&file[PageMap::HEADER..]);
    file[RUNS_DIGEST..CHECKSUM].copy_from_slice(digest.as_bytes());
    let digest = Digest::of(&file[..CHECKSUM]);
    file[CHECKSUM..PageMap::HEADER].copy_from_slice(digest.as_bytes());
}

fn check(file: &[u8]) {
    let Ok(map) = PageMap::parse(file) else {
        return;
    };
    assert!(map.encode() == file, "two encodings of one map");
    let (mut end, mut data) = (0, 0);
    for run in map.runs() {
        assert!(run.first >= end && run.count > 0);
        end = run.end();
        data += if run.kind == RunKind::Data { u64::from(run.count) } else { 0 };
    }
    assert!(end <= map.memory_pages() && data == map.data_pages());
}
