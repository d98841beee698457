//! Whether any process can write to a file.
//!
//! The kernel is asked for a read lease (fcntl(2), `F_SETLEASE`), which is given back at once. It refuses one while the file is
//! open for writing anywhere: by a descriptor of any process, by a shared mapping whose descriptor was closed, by a descriptor on its way
//! in a socket. A file that no process has open for writing, and whose path is out of reach of VM processes, stays as it is.
//!
//! The immutable flag (`FS_IOC_SETFLAGS`) is not used: not every file system has it, not every one that has it refuses writes through
//! descriptors and mappings from before, and a file must lose it again before it can be removed.
#![expect(unsafe_code, reason = "leases have no wrapper")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use rustix::io::Errno;

/// `F_SETSIG`, of which signal is sent when a process wants to write to a file with a lease.
const SET_SIGNAL: libc::c_int = 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writers {
    /// No process has the file open for writing.
    None,
    Some,
    /// The file system has no leases, as those of some networks, or the host's kernel was told to have none.
    Unknown,
}

/// Who can write to a file, which is open for reading.
pub fn writers(file: &File) -> io::Result<Writers> {
    // Who opens the file for writing while there is a lease has its holder signalled, and SIGIO would end this process.
    fcntl(file, SET_SIGNAL, libc::SIGURG)?;
    match fcntl(file, libc::F_SETLEASE, libc::F_RDLCK) {
        Ok(()) => {
            fcntl(file, libc::F_SETLEASE, libc::F_UNLCK)?;
            Ok(Writers::None)
        }
        Err(Errno::AGAIN) => Ok(Writers::Some),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(Writers::Unknown),
        Err(errno) => Err(errno.into()),
    }
}

fn fcntl(file: &File, command: libc::c_int, argument: libc::c_int) -> Result<(), Errno> {
    // SAFETY: the commands of this module take an integer and touch no memory of this process; the descriptor is open as long as
    // `file` is borrowed.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, argument) } {
        -1 => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::fs::OpenOptions;
    use std::io::{IoSlice, IoSliceMut};
    use std::mem::MaybeUninit;
    use std::os::fd::AsFd;
    use std::path::Path;
    use std::ptr;

    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    use rustix::net::{
        AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
        SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
    };

    fn of(path: &Path) -> Writers {
        writers(&File::open(path).unwrap()).unwrap()
    }

    fn writable(path: &Path) -> File {
        OpenOptions::new().read(true).write(true).open(path).unwrap()
    }

    /// On the kinds of file system that tests find everywhere.
    fn files() -> Vec<tempfile::NamedTempFile> {
        let files: Vec<_> =
            ["/var/tmp", "/dev/shm"].map(|place| tempfile::NamedTempFile::new_in(place).unwrap()).into();
        files.iter().for_each(|file| file.as_file().set_len(4096).unwrap());
        files
    }

    #[test]
    fn a_descriptor_is_one_that_can_write() {
        for path in files().into_iter().map(tempfile::NamedTempFile::into_temp_path) {
            assert_eq!(of(&path), Writers::None);
            let reader = File::open(&path).unwrap();
            assert_eq!(of(&path), Writers::None, "readers are not counted");
            let writer = writable(&path);
            let other = writer.try_clone().unwrap();
            drop(writer);
            assert_eq!(of(&path), Writers::Some);
            drop(other);
            assert_eq!(of(&path), Writers::None);
            // All leases are returned: writers are not delayed.
            drop(writable(&path));
            drop(reader);
        }
    }

    #[test]
    fn a_shared_mapping_is_one_without_its_descriptor() {
        for path in files().into_iter().map(tempfile::NamedTempFile::into_temp_path) {
            let writer = writable(&path);
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a new mapping, of which nothing is used but that it exists.
            let mapped =
                unsafe { mmap(ptr::null_mut(), 4096, protection, MapFlags::SHARED, &writer, 0) }.unwrap();
            drop(writer);
            assert_eq!(of(&path), Writers::Some);
            // SAFETY: the mapping of above, to which there are no references.
            unsafe { munmap(mapped, 4096) }.unwrap();
            assert_eq!(of(&path), Writers::None);
        }
    }

    #[test]
    fn a_descriptor_on_its_way_is_one() {
        for path in files().into_iter().map(tempfile::NamedTempFile::into_temp_path) {
            let (sender, receiver) =
                socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
            let writer = writable(&path);
            let descriptors = [writer.as_fd()];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
            sendmsg(&sender, &[IoSlice::new(b"x")], &mut ancillary, SendFlags::empty()).unwrap();
            drop(writer);
            assert_eq!(of(&path), Writers::Some);
            // Received and closed.
            let mut byte = [0];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            recvmsg(&receiver, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::empty())
                .unwrap();
            drop(ancillary);
            assert_eq!(of(&path), Writers::None);
        }
    }
}
