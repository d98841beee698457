//! The host's KVM, tried by a process of its own: a guest that hangs or crashes takes only `forkd-vmm` with it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use forkd_proto::probe::ProbeReport;

use crate::command::{self, CommandError};

/// The binary that runs VMs, and this probe.
pub const VMM: &str = "forkd-vmm";

/// Longer than the slowest host needs by far; a vCPU that is still running then never comes back.
const LIMIT: Duration = Duration::from_secs(30);

/// The probe itself failed, so nothing is known about KVM.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    #[error("{} is missing; it belongs beside the forkd binary", .0.display())]
    NoVmm(PathBuf),
    #[error(transparent)]
    Command(#[from] CommandError),
    #[error("{VMM} probe failed: {0}")]
    Failed(String),
    #[error("{VMM} probe printed an invalid report: {0:?}")]
    Garbled(String),
}

/// Runs the probe of the `forkd-vmm` in `binaries`.
pub fn probe(binaries: &Path) -> Result<ProbeReport, ProbeError> {
    let vmm = binaries.join(VMM);
    if !vmm.is_file() {
        return Err(ProbeError::NoVmm(vmm));
    }
    let outcome = command::run(Command::new(vmm).arg("probe"), "", LIMIT)?;
    if !outcome.status.success() {
        return Err(ProbeError::Failed(outcome.complaint()));
    }
    serde_json::from_str(&outcome.stdout)
        .map_err(|_| ProbeError::Garbled(outcome.stdout.chars().take(200).collect()))
}
