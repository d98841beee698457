//! The descriptors that go with a command, put in the order that it names; and the files of a VM's own directory.
//!
//! ```text
//!   console.log   what the guest prints
//!   top           what it writes to its disk, unless that is somewhere else
//!   vsock         the socket that leads into it
//! ```

use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;

use forkd_proto::control::{Command, Descriptor, Devices};

use crate::paths::PathError;

/// The name of the console's log in a VM's directory.
pub const SERIAL_LOG: &str = "console.log";
/// The name of the socket that leads into its guest.
pub const VSOCK: &str = "vsock";
/// The name of what it writes to its disk.
pub const TOP: &str = "top";

const ENTROPY: &str = "/dev/urandom";

/// Descriptors by what they are for.
#[derive(Debug, Default)]
pub(crate) struct Named(Vec<(Descriptor, OwnedFd)>);

impl Named {
    pub fn with(mut self, descriptor: Descriptor, file: impl Into<OwnedFd>) -> Named {
        self.0.push((descriptor, file.into()));
        self
    }

    /// In the order that the command names, and those of one name in the order in which they came. What it does not name is
    /// closed; what is missing is noticed by the process.
    pub fn for_command(mut self, command: &Command) -> Vec<OwnedFd> {
        let take = |wanted: Descriptor| {
            let place = self.0.iter().position(|(descriptor, _)| *descriptor == wanted)?;
            Some(self.0.remove(place).1)
        };
        command.descriptors().into_iter().filter_map(take).collect()
    }

    /// What a new VM has for itself, in its directory, which has none of it. The disks' top layers are not among it.
    pub fn of_vm(devices: &Devices, directory: &Path) -> Result<Named, PathError> {
        let mut named = Named::default();
        if devices.serial {
            named = named.with(Descriptor::Serial, create(&directory.join(SERIAL_LOG))?);
        }
        if devices.vsock.is_some() {
            let path = directory.join(VSOCK);
            let listener = UnixListener::bind(&path).map_err(PathError::at("listen at", &path))?;
            named = named.with(Descriptor::Vsock, listener);
        }
        if devices.entropy {
            named = named.with(Descriptor::Entropy, open(Path::new(ENTROPY))?);
        }
        Ok(named)
    }
}

pub(crate) fn open(path: &Path) -> Result<File, PathError> {
    File::open(path).map_err(PathError::at("open", path))
}

/// Makes a file that is not there yet.
pub(crate) fn create(path: &Path) -> Result<File, PathError> {
    let created = OpenOptions::new().read(true).write(true).create_new(true).open(path);
    created.map_err(PathError::at("create", path))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use forkd_proto::control::{Boot, CpuModel, Disk, Vsock};

    use super::*;

    fn boot(devices: Devices) -> Command {
        Command::Boot(Boot {
            vcpus: 1,
            memory_bytes: 1,
            command_line: String::new(),
            initramfs: false,
            cpu: CpuModel::Host,
            devices,
        })
    }

    #[test]
    fn descriptors_come_in_the_order_of_the_command() {
        let directory = tempfile::tempdir().unwrap();
        let devices = Devices {
            serial: true,
            disks: vec![
                Disk { bytes: 1, limit_bytes: 1, base: true, layers: 2, read_only: false },
                Disk { bytes: 1, limit_bytes: 1, base: false, layers: 1, read_only: false },
            ],
            vsock: Some(Vsock { cid: 3 }),
            entropy: true,
            ..Devices::default()
        };
        let file = |name: &str| create(&directory.path().join(name)).unwrap();
        let named = Named::of_vm(&devices, directory.path())
            .unwrap()
            .with(Descriptor::DiskTop, file(TOP))
            .with(Descriptor::DiskTop, file("second top"))
            .with(Descriptor::DiskLayer, file("one"))
            .with(Descriptor::DiskLayer, file("two"))
            .with(Descriptor::DiskLayer, file("three"))
            .with(Descriptor::DiskBase, file("base"))
            .with(Descriptor::Cgroup, file("unused"))
            .with(Descriptor::Kernel, file("kernel"));
        let descriptors = named.for_command(&boot(devices));
        let inodes: Vec<_> =
            descriptors.into_iter().map(|file| File::from(file).metadata().unwrap().ino()).collect();
        let inode = |name: &str| std::fs::metadata(directory.path().join(name)).unwrap().ino();
        let names = ["kernel", SERIAL_LOG, "base", "one", "two", TOP, "three", "second top"];
        assert_eq!(inodes[..names.len()], names.map(inode));
        assert_eq!(inodes.len(), names.len() + 2, "and the socket and the source of entropy");
    }

    #[test]
    fn a_directory_that_is_in_use_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let devices = Devices { vsock: Some(Vsock { cid: 3 }), ..Devices::default() };
        let named = Named::of_vm(&devices, directory.path()).unwrap();
        assert!(named.for_command(&boot(Devices::default())).is_empty());
        let error = Named::of_vm(&devices, directory.path()).unwrap_err();
        assert_eq!(error.path, directory.path().join(VSOCK));
    }
}
