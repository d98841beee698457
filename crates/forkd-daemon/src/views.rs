//! What the engine shows, as the API says it.

use forkd_api::event::What;
use forkd_api::sandbox::{
    EndReason, Ended, KvmStats, Limits, NetworkStats, OnExpiry, Sandbox, SandboxState, SandboxStats,
};
use forkd_api::snapshot::{
    Cpu, Snapshot, SnapshotHistoryEntry, SnapshotKind, SnapshotMemory, SnapshotSize, SnapshotStatus,
};
use forkd_engine as seen;
use forkd_engine::record::{SandboxRecord, Shape};
use forkd_engine::{End, Engine, EngineEvent, HistoryEntry, SandboxView, SnapshotView, StoredSize, Usage};
use forkd_net::Counters;
use forkd_proto::control::CpuModel;
use forkd_store::Tag;

use crate::egress;

pub(crate) fn sandbox(view: &SandboxView) -> Sandbox {
    forkd_proto::passes!();
    let SandboxView { record, state, pid, end } = view;
    Sandbox {
        id: record.id.to_string(),
        snapshot_tag: record.snapshot.to_string(),
        state: sandbox_state(*state),
        created_at_unix: seconds(record.created_unix_ms),
        expires_at_unix: record.expires_unix_ms.map(seconds),
        on_expiry: if record.pauses_at_expiry { OnExpiry::Pause } else { OnExpiry::End },
        wake_on_traffic: record.wake.is_some(),
        vcpus: record.shape.vcpus,
        memory_mib: mib(record.shape.memory_bytes),
        disk_mib: record.shape.devices.root_disk().map_or(0, |disk| mib(disk.limit_bytes)),
        egress: record.network.as_ref().map(|network| egress::show(&network.policy.egress)),
        owner: record.owner.clone(),
        project: record.project.to_string(),
        limits: limits(record),
        pid: (*state != seen::SandboxState::Ended).then_some(*pid),
        branches: record.branches.iter().map(ToString::to_string).collect(),
        metadata: record.metadata.clone(),
        ended: end.as_ref().map(ended),
    }
}

fn limits(record: &SandboxRecord) -> Limits {
    let quota = record.quota.as_ref();
    Limits {
        disk_mib: record.shape.devices.root_disk().map(|disk| mib(disk.limit_bytes)),
        bandwidth_mib: record.network.as_ref().and_then(|network| network.policy.bandwidth).map(mib),
        memory_mib: quota.map(|quota| mib(quota.memory_bytes)),
        cpu_percent: quota.map(|quota| quota.cpu_millis / 10),
        cpu_weight: quota.map(|quota| quota.cpu_weight),
        read_bytes_per_sec: quota.and_then(|quota| quota.io.read_bytes),
        write_bytes_per_sec: quota.and_then(|quota| quota.io.write_bytes),
        io_per_sec: quota.and_then(|quota| quota.io.operations),
    }
}

fn cpu(model: CpuModel) -> Cpu {
    match model {
        CpuModel::Host => Cpu::Host,
        CpuModel::V2 => Cpu::V2,
        CpuModel::V3 => Cpu::V3,
    }
}

/// A snapshot among all that the caller sees.
pub(crate) fn snapshot(
    view: &SnapshotView,
    names: &[Tag],
    public: bool,
    size: StoredSize,
    all: &[SnapshotView],
) -> Snapshot {
    forkd_proto::passes!();
    let SnapshotView { record, status, loaded, error } = view;
    let children = all.iter().filter(|other| other.record.parent.as_ref() == Some(&record.tag));
    Snapshot {
        tag: record.tag.to_string(),
        names: names.iter().map(ToString::to_string).collect(),
        project: record.project.to_string(),
        public,
        status: snapshot_status(*status),
        created_at_unix: seconds(record.created_unix_ms),
        parent: record.parent.as_ref().map(ToString::to_string),
        children: children.map(|child| child.record.tag.to_string()).collect(),
        branched_from: record.branched_from.as_ref().map(ToString::to_string),
        image: record.shape.image.as_ref().map(ToString::to_string),
        vcpus: record.shape.vcpus,
        memory_mib: mib(record.shape.memory_bytes),
        disk_mib: disk_mib(&record.shape),
        cpu: cpu(record.shape.cpu),
        network: record.shape.devices.net.is_some(),
        build_key: record.build_key.as_ref().map(ToString::to_string),
        pause_us: record.pause_us,
        size: SnapshotSize { memory_bytes: size.memory_bytes, disk_bytes: size.disk_bytes },
        resident: size.resident.map(|memory| SnapshotMemory {
            private_bytes: memory.private_bytes,
            shared_bytes: memory.shared_bytes,
        }),
        loaded: *loaded,
        error: error.clone(),
    }
}

/// A snapshot in a history, without its relatives.
pub(crate) fn history_entry(entry: &HistoryEntry) -> SnapshotHistoryEntry {
    let SnapshotView { record, status, .. } = &entry.view;
    SnapshotHistoryEntry {
        tag: record.tag.to_string(),
        names: entry.names.iter().map(ToString::to_string).collect(),
        status: snapshot_status(*status),
        kind: match entry.kind {
            seen::SnapshotKind::Full => SnapshotKind::Full,
            seen::SnapshotKind::Diff => SnapshotKind::Diff,
        },
        depth: entry.depth,
        created_at_unix: seconds(record.created_unix_ms),
        parent: None,
        dependents: Vec::new(),
        own_bytes: entry.own_bytes,
        shared_bytes: entry.shared_bytes,
    }
}

pub(crate) fn stats(usage: Usage, traffic: Option<Counters>) -> SandboxStats {
    let Usage { cpu_us, memory, memory_shared_with, disk_bytes, process_faults, kvm } = usage;
    let kvm = kvm.map(|kvm| KvmStats { exits: kvm.exits, page_faults: kvm.page_faults });
    let network = traffic.map(|traffic| NetworkStats {
        sent_bytes: traffic.sent.bytes,
        sent_packets: traffic.sent.packets,
        received_bytes: traffic.received.bytes,
        received_packets: traffic.received.packets,
        refused_packets: traffic.refused.packets,
        over_limit_packets: traffic.over_limit.packets,
        spoofed_packets: traffic.spoofed.packets,
    });
    SandboxStats {
        cpu_us,
        memory_private_bytes: memory.private_bytes,
        memory_shared_bytes: memory.shared_bytes,
        memory_shared_with: memory_shared_with.map(|tag| tag.to_string()),
        disk_bytes,
        process_faults,
        kvm,
        network,
    }
}

/// An event, if it is one that callers are told.
pub(crate) fn event(engine: &Engine, event: EngineEvent) -> Option<What> {
    Some(match event {
        EngineEvent::Sandbox(id, state) => {
            let end = match state {
                seen::SandboxState::Ended => engine.sandbox(id.as_str()).ok().and_then(|it| it.view().end),
                _ => None,
            };
            let ended = end.as_ref().map(ended);
            What::Sandbox { id: id.to_string(), state: sandbox_state(state), ended }
        }
        EngineEvent::SandboxRemoved(id) => What::SandboxRemoved { id: id.to_string() },
        EngineEvent::Panicked(id) => What::Panicked { id: id.to_string() },
        EngineEvent::OutOfDisk(id, limit_bytes) => What::OutOfDisk { id: id.to_string(), limit_bytes },
        EngineEvent::Busy(id, contexts) => What::Busy { id: id.to_string(), contexts },
        EngineEvent::Dropped(id, dropped) => egress::dropped(id.to_string(), dropped),
        EngineEvent::RolledBack(id, tag) => What::RolledBack { id: id.to_string(), tag: tag.to_string() },
        EngineEvent::Snapshot(tag, status) => {
            What::Snapshot { tag: tag.to_string(), status: snapshot_status(status) }
        }
        EngineEvent::SnapshotRemoved(tag) => What::SnapshotRemoved { tag: tag.to_string() },
        EngineEvent::Loaded(_) | EngineEvent::Evicted(_) => return None,
    })
}

pub(crate) fn sandbox_state(state: seen::SandboxState) -> SandboxState {
    match state {
        seen::SandboxState::Starting => SandboxState::Starting,
        seen::SandboxState::Running => SandboxState::Running,
        seen::SandboxState::Paused => SandboxState::Paused,
        seen::SandboxState::Ended => SandboxState::Ended,
    }
}

fn snapshot_status(status: seen::SnapshotStatus) -> SnapshotStatus {
    match status {
        seen::SnapshotStatus::Live => SnapshotStatus::Live,
        seen::SnapshotStatus::Persisting => SnapshotStatus::Persisting,
        seen::SnapshotStatus::Ready => SnapshotStatus::Ready,
        seen::SnapshotStatus::Failed => SnapshotStatus::Failed,
    }
}

fn ended(end: &End) -> Ended {
    let reason = match end.reason {
        seen::EndReason::Shutdown => EndReason::Shutdown,
        seen::EndReason::Reset => EndReason::Reset,
        seen::EndReason::KernelPanic => EndReason::KernelPanic,
        seen::EndReason::Failed => EndReason::Failed,
        seen::EndReason::Killed => EndReason::Killed,
        seen::EndReason::OutOfMemory => EndReason::OutOfMemory,
        seen::EndReason::Expired => EndReason::Expired,
    };
    Ended { reason, detail: end.detail.clone(), at_unix: seconds(end.at_unix_ms) }
}

fn seconds(unix_ms: u64) -> u64 {
    unix_ms / 1000
}

fn mib(bytes: u64) -> u64 {
    bytes >> 20
}

fn disk_mib(shape: &Shape) -> u64 {
    shape.devices.root_disk().map_or(0, |disk| mib(disk.bytes))
}
