//! Can this host run sandboxes, and how? Every check tries the thing itself where that leaves no trace.

mod cgroup;
mod kernel;
mod network;
mod quota;
mod software;
mod versions;
mod walls;

use std::path::Path;

use forkd_proto::probe::KvmFinding;
use serde::Serialize;

use crate::{disk, kvm};

/// What building and running the software machine takes, the first time.
pub const MACHINE_DISK: u64 = 3 << 30;

/// Below this, snapshots and disk layers are refused before long; with less than the second, at once.
const STATE_DISK: u64 = 5 << 30;
const STATE_DISK_LEAST: u64 = 1 << 30;

/// How sandboxes run on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// On the host's own KVM.
    Native,
    /// In the software machine.
    Machine,
    /// Not at all.
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Ok,
    /// Works, but not as well as it could.
    Warning,
    Failed,
}

/// Which way of running sandboxes needs what was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Need {
    Native,
    Machine,
    /// Neither fails without it.
    Neither,
}

/// One thing that was looked at.
#[derive(Debug, Clone, Serialize)]
pub struct Check {
    pub name: &'static str,
    pub status: Status,
    pub needed_for: Need,
    /// What was found.
    pub detail: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Check {
    fn new(name: &'static str, needed_for: Need, found: Result<String, Problem>) -> Check {
        match found {
            Ok(detail) => Check { name, status: Status::Ok, needed_for, detail, hint: None },
            Err(Problem { status, detail, hint }) => {
                Check { name, status, needed_for, detail, hint: Some(hint) }
            }
        }
    }
}

/// What is wrong and what to do about it.
struct Problem {
    status: Status,
    detail: String,
    hint: String,
}

impl Problem {
    fn failed(detail: impl Into<String>, hint: impl Into<String>) -> Problem {
        Problem { status: Status::Failed, detail: detail.into(), hint: hint.into() }
    }

    fn warning(detail: impl Into<String>, hint: impl Into<String>) -> Problem {
        Problem { status: Status::Warning, ..Problem::failed(detail, hint) }
    }
}

/// The answer of `forkd doctor`.
#[derive(Debug, Serialize)]
pub struct Diagnosis {
    pub way: Way,
    /// Why not natively, where that is so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What the tiny guest met; absent when it could not be tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kvm: Option<KvmFinding>,
    pub checks: Vec<Check>,
}

/// Looks at everything. `binaries` is where `forkd-vmm` is, `home` where forkd keeps its files.
pub fn examine(binaries: &Path, home: &Path) -> Diagnosis {
    let probe = kvm::probe(binaries);
    let mut checks = vec![
        Check::new("kvm", Need::Native, kvm_verdict(&probe)),
        Check::new("cgroup", Need::Native, cgroup::check()),
        Check::new("tap", Need::Native, network::check_tap()),
        Check::new("nftables", Need::Native, network::check_nftables()),
        Check::new("drop-log", Need::Native, network::check_drop_log()),
        Check::new("state-space", Need::Native, check_state(home)),
        Check::new("user", Need::Neither, walls::check_user()),
        Check::new("landlock", Need::Neither, walls::check_landlock()),
        Check::new("disk-quota", Need::Neither, quota::check(home)),
        Check::new("kernel-image", Need::Neither, kernel::check()),
        Check::new("versions", Need::Neither, versions::check(binaries)),
        Check::new("disk-space", Need::Machine, check_disk(home)),
        Check::new("qemu", Need::Machine, software::check_qemu()),
    ];
    checks.extend(software::check_tools());
    let (way, reason) = decide(&checks);
    Diagnosis { way, reason, kvm: probe.ok().map(|report| report.kvm), checks }
}

/// Native where nothing that it needs failed, else the machine, else nothing.
fn decide(checks: &[Check]) -> (Way, Option<String>) {
    let failed = |need| {
        let failed = |check: &&Check| check.needed_for == need && check.status == Status::Failed;
        checks.iter().find(failed).map(|check| format!("{}: {}", check.name, check.detail))
    };
    match (failed(Need::Native), failed(Need::Machine)) {
        (None, _) => (Way::Native, None),
        (Some(native), None) => (Way::Machine, Some(native)),
        (Some(native), Some(machine)) => (Way::None, Some(format!("{native}; {machine}"))),
    }
}

fn kvm_verdict(probe: &Result<forkd_proto::probe::ProbeReport, kvm::ProbeError>) -> Result<String, Problem> {
    const MACHINE: &str = "run sandboxes in the software machine: forkd machine init";
    let report = match probe {
        Ok(report) => report,
        Err(error) => return Err(Problem::failed(error.to_string(), "reinstall forkd")),
    };
    match &report.kvm {
        KvmFinding::Good { slowdown, .. } => {
            Ok(format!("good: guest code runs at the host's speed ({slowdown:.1} times as long)"))
        }
        KvmFinding::NoDevice => Err(Problem::failed(
            "no-device: there is no /dev/kvm",
            format!("switch virtualisation on in the firmware and load kvm_intel or kvm_amd; or {MACHINE}"),
        )),
        KvmFinding::NoPermission => Err(Problem::failed(
            "no-permission: this user may not open /dev/kvm",
            "join the device's group (usermod --append --groups kvm USER, then log in again), or run as root",
        )),
        KvmFinding::Emulated { reason, .. } => Err(Problem::failed(
            format!("emulated: /dev/kvm runs small guests through an instruction emulator; {reason}"),
            MACHINE,
        )),
        KvmFinding::Broken { reason } => Err(Problem::failed(
            format!("broken: {reason}"),
            format!("see whether another hypervisor holds the CPU (dmesg | grep -i kvm); or {MACHINE}"),
        )),
    }
}

fn check_disk(home: &Path) -> Result<String, Problem> {
    let purpose = "the machine's first start";
    match disk::require(home, MACHINE_DISK, purpose).and_then(|()| disk::free_bytes(home)) {
        Ok(free) => Ok(format!("{} GiB free in {}", free >> 30, home.display())),
        Err(error) => Err(Problem::failed(
            error.to_string(),
            format!("free some, or set {} to a directory on a larger disk", crate::home::HOME_VARIABLE),
        )),
    }
}

/// Room for snapshots and for what sandboxes write to their disks.
fn check_state(home: &Path) -> Result<String, Problem> {
    match disk::free_bytes(home) {
        Ok(free) => judge_state(free),
        Err(error) => Err(Problem::warning(error.to_string(), "see whether the disk is mounted")),
    }
}

fn judge_state(free: u64) -> Result<String, Problem> {
    let detail = format!("{} MiB free for snapshots and disks", free >> 20);
    let variable = crate::home::HOME_VARIABLE;
    let hint =
        format!("remove snapshots (forkd snapshot rm), or set {variable} to a directory on a larger disk");
    match free {
        STATE_DISK.. => Ok(detail),
        STATE_DISK_LEAST.. => Err(Problem::warning(detail, hint)),
        _ => Err(Problem::failed(detail, hint)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &'static str, needed_for: Need, status: Status) -> Check {
        Check { name, status, needed_for, detail: format!("{name}'s detail"), hint: None }
    }

    #[test]
    fn native_comes_first_and_warnings_do_not_count() {
        let checks = [
            check("kvm", Need::Native, Status::Ok),
            check("cgroup", Need::Native, Status::Warning),
            check("qemu", Need::Machine, Status::Failed),
        ];
        assert_eq!(decide(&checks), (Way::Native, None));
    }

    #[test]
    fn the_machine_comes_second_with_the_reason() {
        let checks = [check("kvm", Need::Native, Status::Failed), check("qemu", Need::Machine, Status::Ok)];
        assert_eq!(decide(&checks), (Way::Machine, Some("kvm: kvm's detail".into())));
    }

    #[test]
    fn nothing_runs_without_either() {
        let checks = [
            check("kvm", Need::Native, Status::Failed),
            check("qemu", Need::Machine, Status::Failed),
            check("kernel-image", Need::Neither, Status::Failed),
        ];
        assert_eq!(decide(&checks), (Way::None, Some("kvm: kvm's detail; qemu: qemu's detail".into())));
    }

    #[test]
    fn little_room_is_told_and_none_is_too_little() {
        let status = |free| judge_state(free).err().map(|problem| problem.status);
        assert_eq!(status(5 << 30), None);
        assert_eq!(status(4 << 30), Some(Status::Warning));
        assert_eq!(status(1 << 29), Some(Status::Failed));
    }

    #[test]
    fn a_missing_probe_is_no_verdict_on_kvm() {
        let empty = tempfile::tempdir().unwrap();
        let diagnosis = examine(empty.path(), empty.path());
        assert!(diagnosis.kvm.is_none());
        assert_eq!(diagnosis.checks[0].status, Status::Failed);
        assert!(diagnosis.checks[0].detail.contains("is missing"), "{}", diagnosis.checks[0].detail);
    }
}
