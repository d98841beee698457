//! An engine with the guest that halts: no image, no agent, a disk that begins empty.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forkd_engine::record::Shape;
use forkd_engine::{
    Engine, EngineError, Limits, NetworkOrder, Networking, NewSandboxes, NewSnapshot, Recovered, Settings,
    Source,
};
use forkd_image::images::ImageStore;
use forkd_proto::control::{CpuModel, Devices, Disk};
use forkd_store::TagError;
use tokio::runtime::Runtime;

use super::process::Failure;
use crate::binaries;

/// How long anything with this guest may take.
pub const PATIENCE: Duration = Duration::from_secs(60);
pub const MEMORY: u64 = 64 << 20;

const LIMITS: Limits =
    Limits { sandboxes: 250, memory_bytes: 1 << 40, zygote_bytes: 1 << 40, free_disk_bytes: 1 << 20 };

/// An engine in a directory, and what it has found there. It ends with the runtime as a killed daemon ends.
pub fn start(root: &Path) -> Result<(Runtime, Engine, Recovered), Failure> {
    start_with(root, LIMITS.zygote_bytes)
}

/// The same with a budget for the processes of snapshots.
pub fn start_with(root: &Path, zygote_bytes: u64) -> Result<(Runtime, Engine, Recovered), Failure> {
    start_networked(root, zygote_bytes, Networking::None)
}

/// The same with networks, or without.
pub fn start_networked(
    root: &Path,
    zygote_bytes: u64,
    networking: Networking,
) -> Result<(Runtime, Engine, Recovered), Failure> {
    start_program("forkd-vmm", root, zygote_bytes, networking)
}

/// The same with another program for VM processes.
pub fn start_program(
    program: &str,
    root: &Path,
    zygote_bytes: u64,
    networking: Networking,
) -> Result<(Runtime, Engine, Recovered), Failure> {
    start_of(Settings {
        program: binaries::directory().join(program),
        limits: Limits { zygote_bytes, ..LIMITS },
        networking,
        ..settings(root)
    })
}

/// The same, made of these.
pub fn start_of(settings: Settings) -> Result<(Runtime, Engine, Recovered), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (engine, recovered) = runtime.block_on(Engine::start(settings))?;
    Ok((runtime, engine, recovered))
}

/// What an engine in a directory is made of that has no networks and no cgroups.
pub fn settings(root: &Path) -> Settings {
    Settings {
        program: binaries::directory().join("forkd-vmm"),
        root: root.into(),
        images: ImageStore::new(root),
        limits: LIMITS,
        networking: Networking::None,
        cgroup: None,
        users: Default::default(),
        // What a snapshot does by itself is for tests of just that.
        prefault: false,
    }
}

/// A snapshot of the guest, to be made. Its kernel is a file of `guest::elf`.
pub fn new_snapshot(tag: &str, kernel: PathBuf) -> Result<NewSnapshot, TagError> {
    let disk = Disk { bytes: 16 << 20, limit_bytes: 16 << 20, base: false, layers: 0, read_only: false };
    let devices = Devices { serial: true, disks: vec![disk], ..Devices::default() };
    Ok(NewSnapshot {
        tag: tag.parse()?,
        kernel,
        initramfs: None,
        command_line: String::new(),
        shape: Shape {
            vcpus: 1,
            memory_bytes: MEMORY,
            cpu: CpuModel::Host,
            devices,
            image: None,
            agent_version: 1,
        },
        config: Default::default(),
        limit: PATIENCE,
        build_key: None,
    })
}

/// Sandboxes to be made, with nothing but what all have.
pub fn request(source: Source, count: u32) -> NewSandboxes {
    let (metadata, env) = (BTreeMap::new(), BTreeMap::new());
    NewSandboxes {
        source,
        count,
        partial: false,
        ttl: None,
        on_expiry: Default::default(),
        wake_on_traffic: false,
        metadata,
        about: serde_json::Map::new(),
        env,
        account: None,
        network: NetworkOrder::default(),
        limits: Default::default(),
        counted: false,
        owner: None,
    }
}

/// Ends every VM, which nobody else would, and removes every snapshot.
pub async fn remove_everything(engine: &Engine) -> Result<(), EngineError> {
    for view in engine.sandboxes() {
        engine.sandbox(view.id().as_str())?.remove().await?;
    }
    for view in engine.snapshots() {
        match engine.remove_snapshot(view.record.tag.as_str(), true).await {
            // One may have gone with its parent.
            Ok(_) | Err(EngineError::NoSnapshot(_)) => {}
            Err(error) => return Err(error),
        }
    }
    engine.cleared().await;
    Ok(())
}

/// Names in a directory of an engine's, by its path from the engine's root or from what ends with the host.
pub fn names(root: &Path, below: &str) -> Vec<String> {
    let entries = fs::read_dir(run_directory(root).join(below)).or_else(|_| fs::read_dir(root.join(below)));
    let names = entries.into_iter().flatten().flatten();
    let mut names: Vec<String> = names.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// The directory of what ends with the host.
pub fn run_directory(root: &Path) -> PathBuf {
    let runs = fs::read_dir(root.join("run"));
    runs.ok().and_then(|mut runs| runs.next()?.ok()).map_or_else(|| root.into(), |run| run.path())
}

/// Whether a process is there and not merely waiting to be collected.
pub fn lives(pid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    status.rsplit(')').next().is_some_and(|rest| !rest.trim_start().starts_with('Z') && !rest.is_empty())
}

/// VMs with a console below an engine's root, whoever knows of them: by what their processes have open.
pub fn vms(root: &Path) -> Vec<i32> {
    let of_process = |entry: fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse::<i32>().ok()?;
        let links = fs::read_dir(entry.path().join("fd")).ok()?.flatten();
        let mut open = links.filter_map(|link| fs::read_link(link.path()).ok());
        let program = fs::read_link(entry.path().join("exe")).ok()?;
        let is_vm = program.to_string_lossy().contains("forkd-vmm");
        // The console's log is also one of a sandbox whose directory was removed.
        let is_console =
            |path: PathBuf| path.starts_with(root) && path.to_string_lossy().contains("console.log");
        (is_vm && open.any(is_console)).then_some(pid)
    };
    let mut pids: Vec<i32> =
        fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(of_process).collect();
    pids.sort_unstable();
    pids
}
