//! Snapshots of the tiny guest as each version of the format wrote them: they are loaded for good. `FORKD_WRITE_RECORDS=1` writes those
//! of this version anew; those of older versions can no longer be written. They have a CPU of x86-64-v2, so that every host loads them.
//! Those of version 1 have all features of the host that wrote them: a host without one of these refuses them.

use std::fs::File;
use std::path::PathBuf;
use std::process::Command;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use forkd_proto::control::CpuModel;
use forkd_proto::host_cpu::{GuestCpu, HostCpu, Lacking};
use forkd_store::{Chain, PAGE_SIZE, PageSource, Store};
use forkd_tests::binaries;
use forkd_tests::engine::guest::{FREE_MEMORY, Order};
use forkd_tests::engine::process::{Failure, boot_on};
use forkd_tests::engine::snapshot::{load, persist};

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

/// What a snapshot of an x86-64-v2 guest needs: the level's features, and what every KVM has. Nested PVM has no global pages (pge), so
/// these are written without them: in a machine whose CPU is `EPYC,-pge`.
const PORTABLE: &str = "\
    fpu vme de pse tsc msr pae mce cx8 sep mtrr mca cmov pat pse36 clflush mmx fxsr sse sse2 ht \
    sse3 ssse3 cx16 sse4_1 sse4_2 popcnt lahf_lm syscall nx lm \
    40000001.0.eax.0 40000001.0.eax.1 40000001.0.eax.3 40000001.0.eax.24";

/// Writes the snapshots `base` and `head`, a diff of it.
fn write(store: &Store, cpu: CpuModel) -> Result<(), Failure> {
    let (_process, mut vm) = boot_on(cpu, MEMORY)?;
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

/// What this host can give a guest.
fn host() -> Result<HostCpu, Failure> {
    let output = Command::new(binaries::directory().join("forkd-vmm")).arg("cpu").output()?;
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Whether this host can run the guest of a snapshot.
fn fits(host: &HostCpu, chain: &Chain) -> Result<(), Lacking> {
    let cpu = &chain.manifest().cpu;
    host.check(GuestCpu {
        vendor: cpu.vendor.as_deref(),
        features: &cpu.features,
        tsc_khz: cpu.tsc_khz,
        state_version: chain.state().version(),
    })
}

fn word(chain: &Chain, address: u64) -> Result<u64, Failure> {
    let mut page = [0; PAGE_SIZE];
    chain.read(address / PAGE, &mut page)?;
    Ok(u64::from_le_bytes(page[..8].try_into()?))
}

#[test]
fn snapshots_of_every_version_are_loaded() -> Result<(), Failure> {
    let host = host()?;
    if std::env::var_os("FORKD_WRITE_RECORDS").is_some() {
        let directory = tempfile::tempdir()?;
        write(&Store::new(directory.path()), CpuModel::V2)?;
        let mut tar = tar::Builder::new(GzEncoder::new(File::create(archive(NEWEST))?, Compression::best()));
        tar.append_dir_all(".", directory.path())?;
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
            let needed = &chain.manifest().cpu.features;
            let is_portable =
                needed.iter().all(|name| PORTABLE.split_whitespace().any(|known| known == name));
            assert!(is_portable || version == 1, "{tag} of version {version} needs {needed:?}");
            let fit = fits(&host, &chain);
            if let Err(Lacking::Features(missing)) = &fit {
                let refused = load(&store, tag).map(drop).unwrap_err().to_string();
                assert!(refused.contains(&missing[0]), "{tag} of version {version}: {refused}");
                continue;
            }
            let (_process, mut zygote) = load(&store, tag)?;
            if fit.is_err() {
                // The rate of its TSC or its vendor are those of another host: that it is a zygote is all that can be said here.
                continue;
            }
            let mut child = zygote.fork()?;
            assert_eq!(child.mailbox.order(Order::Add, 0, 0)?, sum, "{tag} of version {version}");
            assert_eq!(child.mailbox.order(Order::Vector, 0, 0)?, SUM);
        }
    }
    Ok(())
}
