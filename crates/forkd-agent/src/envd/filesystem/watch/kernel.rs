//! The kernel's side: a descriptor, the numbers of watched directories, and changes in them.

use std::ffi::OsString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init, remove_watch};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

pub type Inotify = OwnedFd;

/// One event has at most 16 bytes and a name of 256.
const BUFFER: usize = 4096;
/// Changes taken at once, so that a busy directory does not fill the memory before anybody hears of it.
const BATCH: usize = 256;

/// Filesystems that others can write to: NFS, SMB 1 and 2, FUSE, 9p, Ceph.
const SHARED: [u64; 6] = [0x6969, 0xff53_4d42, 0xfe53_4d42, 0x6573_5546, 0x0102_1997, 0x00c3_6400];

/// What the kernel said.
#[derive(Debug)]
pub struct Change {
    pub watch: i32,
    pub flags: ReadFlags,
    pub name: OsString,
}

pub fn open() -> io::Result<AsyncFd<Inotify>> {
    crate::readiness::watch(init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?)
}

pub fn add(inotify: &Inotify, directory: &Path) -> io::Result<i32> {
    let flags = WatchFlags::CREATE
        | WatchFlags::MODIFY
        | WatchFlags::DELETE
        | WatchFlags::MOVED_FROM
        | WatchFlags::MOVED_TO
        | WatchFlags::ATTRIB
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF
        | WatchFlags::ONLYDIR;
    Ok(add_watch(inotify, directory, flags)?)
}

pub fn remove(inotify: &Inotify, watch: i32) {
    // The kernel may have removed it already, with its directory.
    let _ = remove_watch(inotify, watch);
}

/// Waits for changes.
pub async fn read(inotify: &AsyncFd<Inotify>) -> io::Result<Vec<Change>> {
    loop {
        let mut ready = inotify.readable().await?;
        match ready.try_io(|inotify| batch(inotify.get_ref())) {
            Ok(changes) => return changes,
            Err(_would_block) => {}
        }
    }
}

fn batch(inotify: &Inotify) -> io::Result<Vec<Change>> {
    let mut buffer = [MaybeUninit::uninit(); BUFFER];
    let mut reader = Reader::new(inotify, &mut buffer);
    let mut changes = Vec::new();
    // What is in the buffer has left the kernel, so it is taken even beyond the batch.
    while changes.len() < BATCH || !reader.is_buffer_empty() {
        match reader.next() {
            Ok(event) => {
                let name =
                    event.file_name().map(|name| std::ffi::OsStr::from_bytes(name.to_bytes()).to_owned());
                changes.push(Change {
                    watch: event.wd(),
                    flags: event.events(),
                    name: name.unwrap_or_default(),
                });
            }
            Err(Errno::AGAIN) if !changes.is_empty() => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(changes)
}

pub fn is_shared(kind: impl TryInto<u64>) -> bool {
    kind.try_into().is_ok_and(|kind| SHARED.contains(&kind))
}
