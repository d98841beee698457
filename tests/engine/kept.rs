//! Snapshots of the tiny guest as each version of the format wrote them: they are loaded for good. `FORKD_WRITE_RECORDS=1` writes those
//! of this version anew; those of older versions can no longer be written.

use std::fs::{self, File};
use std::path::PathBuf;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use forkd_store::{Chain, PAGE_SIZE, PageSource, StateHeader, Store};
use forkd_tests::engine::guest::{FREE_MEMORY, Order};
use forkd_tests::engine::process::{Failure, boot};
use forkd_tests::engine::snapshot::{load, persist};
use serde_json::Value;

const MEMORY: u64 = 8 << 20;
const PAGE: u64 = 4096;
const SUM: u64 = 42;
/// The newest version.
const NEWEST: u32 = 2;
/// What the diff changes: a counter, three pages behind those of the base, and one of these that becomes zero.
const CHANGED: u64 = FREE_MEMORY + 200 * PAGE;
const ZEROED: u64 = FREE_MEMORY + 5 * PAGE;

fn archive(version: u32) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("records/snapshots-{version}.tar.gz"))
}

/// Writes the snapshots `base` and `head`, a diff of it.
fn write(store: &Store) -> Result<(), Failure> {
    let (_process, mut vm) = boot(MEMORY)?;
    vm.mailbox.order(Order::Add, SUM, 0)?;
    vm.mailbox.order(Order::Dirty, FREE_MEMORY, 100)?;
    vm.mailbox.order(Order::Vector, 11, 31)?;
    let mut zygote = vm.freeze()?;
    let base = persist(store, &mut zygote.control, "base", None, Vec::new())?;
    let mut child = zygote.fork()?;
    child.mailbox.order(Order::Add, 1, 0)?;
    child.mailbox.order(Order::Dirty, CHANGED, 3)?;
    child.mailbox.order(Order::Write, ZEROED, 0)?;
    let (mut branch, _) = child.branch()?;
    persist(store, &mut branch.control, "head", Some(&base), Vec::new())?;
    Ok(())
}

/// The rate of the guest's TSC and the first leaf of CPUID, with the vendor: what KVM may not be able to give a guest on another host.
fn host_of(store: &Store, tag: &str) -> Result<(Value, Value), Failure> {
    let bytes = fs::read(store.path(&tag.parse()?).join("state.bin"))?;
    let state: Value = serde_json::from_slice(&bytes[StateHeader::LENGTH..])?;
    Ok((state["vm"]["tsc_khz"].clone(), state["vm"]["vcpus"][0]["cpuid"][0].clone()))
}

fn word(chain: &Chain, address: u64) -> Result<u64, Failure> {
    let mut page = [0; PAGE_SIZE];
    chain.read(address / PAGE, &mut page)?;
    Ok(u64::from_le_bytes(page[..8].try_into()?))
}

#[test]
fn snapshots_of_every_version_are_loaded() -> Result<(), Failure> {
    let here = tempfile::tempdir()?;
    let here = Store::new(here.path());
    write(&here)?;
    if std::env::var_os("FORKD_WRITE_RECORDS").is_some() {
        let mut tar = tar::Builder::new(GzEncoder::new(File::create(archive(NEWEST))?, Compression::best()));
        tar.append_dir_all(".", here.directory())?;
        tar.into_inner()?.finish()?;
    }
    for version in 1..=NEWEST {
        let directory = tempfile::tempdir()?;
        tar::Archive::new(GzDecoder::new(File::open(archive(version))?)).unpack(directory.path())?;
        let store = Store::new(directory.path());
        for (tag, sum, changed, zeroed) in [("base", SUM, 0, SUM), ("head", SUM + 1, SUM + 1, 0)] {
            let chain = Chain::load(&store, &tag.parse()?)?;
            let words =
                [word(&chain, FREE_MEMORY + 99 * PAGE)?, word(&chain, CHANGED)?, word(&chain, ZEROED)?];
            assert_eq!(words, [SUM, changed, zeroed], "{tag} of version {version}");
            let of_this_host = &here.get(&"base".parse()?)?.ok_or("no base")?.sealed.manifest.cpu.features;
            let missing: Vec<_> =
                chain.manifest().cpu.features.iter().filter(|name| !of_this_host.contains(name)).collect();
            if let Some(missing) = missing.first() {
                let refused = load(&store, tag).map(drop).unwrap_err().to_string();
                assert!(refused.contains(missing.as_str()), "{tag} of version {version}: {refused}");
                continue;
            }
            let (_process, mut zygote) = load(&store, tag)?;
            if host_of(&store, tag)? != host_of(&here, "base")? {
                // The rate of its TSC and its registers are those of another host. That it is a zygote is all that can be said here.
                continue;
            }
            let mut child = zygote.fork()?;
            assert_eq!(child.mailbox.order(Order::Add, 0, 0)?, sum, "{tag} of version {version}");
            assert_eq!(child.mailbox.order(Order::Vector, 0, 0)?, SUM);
        }
    }
    Ok(())
}
