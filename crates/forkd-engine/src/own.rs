//! What is one VM's own, in a directory of its own: console, top layer, vsock.
//!
//! ```text
//!   console.log   what the guest prints
//!   top           what it writes to its disk
//!   vsock         the socket that leads into it
//! ```

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use forkd_proto::control::{Command, Descriptor};

/// The name of the console's log in a VM's directory.
pub const CONSOLE: &str = "console.log";
pub(crate) const VSOCK: &str = "vsock";
const TOP: &str = "top";

const ENTROPY: &str = "/dev/urandom";

#[derive(Debug, thiserror::Error)]
#[error("cannot open {}", path.display())]
pub struct FileError {
    pub path: PathBuf,
    pub source: io::Error,
}

impl FileError {
    pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> FileError {
        move |source| FileError { path: path.into(), source }
    }
}

/// Descriptors that no other VM has.
#[derive(Debug)]
pub(crate) struct Own {
    /// Where the host connects to the guest.
    pub socket: PathBuf,
    descriptors: Vec<(Descriptor, OwnedFd)>,
}

impl Own {
    /// Makes the files of a new VM in its directory, which has none of them.
    pub fn create(directory: &Path) -> Result<Own, FileError> {
        let socket = directory.join(VSOCK);
        let listener = UnixListener::bind(&socket).map_err(FileError::at(&socket))?;
        let descriptors = vec![
            (Descriptor::Console, create(&directory.join(CONSOLE))?.into()),
            (Descriptor::DiskTop, create(&directory.join(TOP))?.into()),
            (Descriptor::Vsock, listener.into()),
            (Descriptor::Entropy, open(Path::new(ENTROPY))?.into()),
        ];
        Ok(Own { socket, descriptors })
    }

    /// What comes with a command, in the order that it names. What it does not name is closed.
    pub fn descriptors<const N: usize>(
        self,
        command: &Command,
        more: [(Descriptor, OwnedFd); N],
    ) -> Vec<OwnedFd> {
        let mut all: Vec<_> = self.descriptors.into_iter().chain(more).collect();
        let take = |wanted: Descriptor| {
            let place = all.iter().position(|(descriptor, _)| *descriptor == wanted)?;
            Some(all.swap_remove(place).1)
        };
        command.descriptors().into_iter().filter_map(take).collect()
    }
}

pub(crate) fn open(path: &Path) -> Result<File, FileError> {
    File::open(path).map_err(FileError::at(path))
}

fn create(path: &Path) -> Result<File, FileError> {
    OpenOptions::new().read(true).write(true).create_new(true).open(path).map_err(FileError::at(path))
}

#[cfg(test)]
mod tests {
    use forkd_proto::control::{Devices, Disk, Fork, Vsock};

    use super::*;

    fn fork(devices: Devices) -> Command {
        Command::Fork(Fork { cgroup: false, successor: false, devices })
    }

    #[test]
    fn descriptors_come_in_the_order_of_the_command() {
        let directory = tempfile::tempdir().unwrap();
        let own = Own::create(directory.path()).unwrap();
        let devices = Devices {
            console: true,
            disk: Some(Disk { bytes: 1, limit_bytes: 1, base: true }),
            vsock: Some(Vsock { cid: 3 }),
            entropy: true,
            ..Devices::default()
        };
        let command = fork(devices);
        let control: OwnedFd = File::open("/dev/null").unwrap().into();
        let descriptors = own.descriptors(&command, [(Descriptor::Control, control)]);
        let kinds: Vec<_> = descriptors
            .iter()
            .map(|descriptor| rustix::fs::fstat(descriptor).unwrap())
            .map(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode))
            .collect();
        use rustix::fs::FileType::{CharacterDevice, RegularFile, Socket};
        assert_eq!(kinds, [CharacterDevice, RegularFile, RegularFile, Socket, CharacterDevice]);
    }

    #[test]
    fn a_directory_that_is_in_use_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let own = Own::create(directory.path()).unwrap();
        assert!(own.descriptors(&fork(Devices::default()), []).is_empty());
        let error = Own::create(directory.path()).unwrap_err();
        assert_eq!(error.path, directory.path().join(VSOCK));
    }
}
