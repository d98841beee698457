//! From the initial RAM disk to the root disk.
//!
//! ```text
//!   /            initramfs: the agent, modules        /            the root disk
//!   /proc /sys /dev                           ──▶     /proc /sys /dev   moved
//!   /newroot     the root disk                        initramfs: emptied, its memory given back
//! ```
//!
//! The agent itself is in the RAM disk. Its file goes, its pages stay for as long as it runs.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;
use rustix::mount::{MountFlags, mount, mount_move};
use rustix::process::{chdir, chroot};

use super::command_line::BootOptions;
use super::mounts::Mount;

const NEW_ROOT: &str = "/newroot";
const DEVICE_LIMIT: Duration = Duration::from_secs(60);
/// The longest that is waited before looking again, should the kernel ever not tell.
const LOOK_AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// What kernels make an initial RAM disk of.
const RAMFS_MAGIC: i64 = 0x8584_58f6;
const TMPFS_MAGIC: i64 = 0x0102_1994;

#[derive(Debug, thiserror::Error)]
pub enum RootError {
    #[error(
        "the root is not an initial RAM disk, and is not emptied: this is a container, or the disk was mounted by the kernel"
    )]
    NotRamDisk,
    #[error("the root disk {} did not appear within {} s; there are: {present}", path.display(), DEVICE_LIMIT.as_secs())]
    Missing { path: PathBuf, present: String },
    #[error("cannot mount the root disk {}: {source}", path.display())]
    Mount { path: PathBuf, source: io::Error },
    #[error("cannot {what}: {source}")]
    Switch { what: &'static str, source: io::Error },
}

/// The old root is emptied, so it must be one that is there for that.
pub fn check_old_root() -> Result<(), RootError> {
    let system = rustix::fs::statfs("/")
        .map_err(|error| RootError::Switch { what: "look at the root", source: error.into() })?;
    if matches!(system.f_type, RAMFS_MAGIC | TMPFS_MAGIC) { Ok(()) } else { Err(RootError::NotRamDisk) }
}

/// Waits for the disk, mounts it, and makes it the root.
pub fn switch(options: &BootOptions, moved: &[Mount]) -> Result<(), RootError> {
    check_old_root()?;
    wait_for(&options.root)?;
    mount_disk(options)?;
    let step = |what| move |source: rustix::io::Errno| RootError::Switch { what, source: source.into() };
    for entry in moved {
        let target = format!("{NEW_ROOT}{}", entry.target);
        fs::create_dir_all(&target)
            .map_err(|source| RootError::Switch { what: "make a directory", source })?;
        mount_move(entry.target, target.as_str()).map_err(step("move a mount"))?;
    }
    chdir(NEW_ROOT).map_err(step("enter the root disk"))?;
    // Before the move, while "/" still is the RAM disk. What cannot be removed costs memory, and nothing else.
    let _ = empty(Path::new("/"));
    mount_move(".", "/").map_err(step("move the root disk"))?;
    chroot(".").map_err(step("change the root"))?;
    chdir("/").map_err(step("enter the root"))
}

/// Sleeps until the kernel makes the device's node.
fn wait_for(device: &Path) -> Result<(), RootError> {
    let watch = |source: rustix::io::Errno| RootError::Switch { what: "watch /dev", source: source.into() };
    let changes =
        inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK).map_err(watch)?;
    let parent = device.parent().unwrap_or(Path::new("/dev"));
    // Watching begins before the first look, so nothing falls between the two.
    inotify::add_watch(&changes, parent, inotify::WatchFlags::CREATE).map_err(watch)?;
    let begun = Instant::now();
    while !device.exists() {
        if begun.elapsed() > DEVICE_LIMIT {
            return Err(RootError::Missing { path: device.to_owned(), present: block_devices() });
        }
        // What happened does not matter, only that something did.
        let _ = poll(&mut [PollFd::new(&changes, PollFlags::IN)], Some(&LOOK_AGAIN));
        let mut events = [0; 4096];
        while rustix::io::read(&changes, &mut events[..]).is_ok_and(|length| length > 0) {}
    }
    Ok(())
}

fn block_devices() -> String {
    let names = fs::read_dir("/sys/class/block").map(|entries| {
        let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.collect::<Vec<_>>().join(" ")
    });
    names.unwrap_or_default()
}

fn mount_disk(options: &BootOptions) -> Result<(), RootError> {
    let fail = |source| RootError::Mount { path: options.root.clone(), source };
    fs::create_dir_all(NEW_ROOT).map_err(fail)?;
    let flags = if options.read_only { MountFlags::RDONLY } else { MountFlags::empty() };
    let data = CString::new(options.flags.as_str()).map_err(|error| fail(error.into()))?;
    mount(&options.root, NEW_ROOT, options.filesystem.as_str(), flags, data.as_c_str())
        .map_err(|error| fail(error.into()))
}

/// Removes everything in a directory that is on the same filesystem as it.
fn empty(directory: &Path) -> io::Result<()> {
    let device = fs::symlink_metadata(directory)?.dev();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let Ok(data) = fs::symlink_metadata(&path) else { continue };
        if data.dev() != device {
            continue;
        }
        // A directory with a mount inside stays, and so do its parents.
        let _ = if data.is_dir() {
            empty(&path).and_then(|()| fs::remove_dir(&path))
        } else {
            fs::remove_file(&path)
        };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_of_this_host_is_not_one_to_empty() {
        assert!(matches!(check_old_root(), Err(RootError::NotRamDisk)));
    }

    #[test]
    fn a_device_is_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let device = directory.path().join("vda");
        let made = device.clone();
        let maker = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            fs::write(made, "").unwrap();
        });
        wait_for(&device).unwrap();
        maker.join().unwrap();
        assert!(device.exists());
    }

    #[test]
    fn a_directory_is_emptied_without_following_links() {
        let directory = tempfile::tempdir().unwrap();
        let outside = directory.path().join("outside");
        fs::create_dir_all(&outside).unwrap();
        fs::write(outside.join("kept"), "").unwrap();
        let inside = directory.path().join("inside");
        fs::create_dir_all(inside.join("a/b/c")).unwrap();
        fs::write(inside.join("a/file"), "").unwrap();
        std::os::unix::fs::symlink(&outside, inside.join("link")).unwrap();
        empty(&inside).unwrap();
        assert_eq!(fs::read_dir(&inside).unwrap().count(), 0);
        assert!(outside.join("kept").exists());
    }
}
