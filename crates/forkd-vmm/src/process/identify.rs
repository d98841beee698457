//! Identify: who this process is, and what its disks are made of. Asked by a daemon that has found the socket again and has
//! only what it wrote down before it died.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

use forkd_devices::disk::LayerStack;
use forkd_proto::control::{Refusal, Reply};
use rustix::process::{PidfdFlags, getpid, pidfd_open};

use super::{Done, Process, ProcessState, failed};

impl Process {
    pub(super) fn identify(&self) -> Result<Done, Refusal> {
        let pid = getpid();
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|errno| failed(&errno))?;
        let disks = self.disks().map_err(|error| failed(&error))?;
        Ok(Done::Reply(Reply::Identified { pid: pid.as_raw_nonzero().get(), disks }, vec![pidfd]))
    }

    fn disks(&self) -> io::Result<Vec<Vec<u64>>> {
        let inode = |file: &File| Ok(file.metadata()?.ino());
        match &self.state {
            ProcessState::Empty => Ok(Vec::new()),
            ProcessState::Running(vm) | ProcessState::Paused(vm) => vm.disk_files(inode),
            ProcessState::Zygote(frozen) => {
                let of_disk = |layers: &LayerStack| layers.layer_files().map(inode).collect();
                frozen.devices.layers.iter().map(of_disk).collect()
            }
        }
    }
}
