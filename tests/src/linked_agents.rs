//! Agents for many guests that have none. One socket accepts for all of them: it is linked in the place of the one that each VM
//! process listens at, as soon as that is there.
//!
//! ```text
//!   sandboxes/ID/ appears ──▶ watched until ID/vsock appears ──▶ link of the agents' socket, renamed over it
//! ```
//!
//! [`crate::fake_agent::FakeAgents`] look through all processes for each socket, which a benchmark of a thousand children cannot
//! afford. These take half a dozen system calls a child, and must be done before its VM runs: a client of the VM process
//! itself waits for a driver that the guest does not have.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::mem::MaybeUninit;
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use forkd_engine::VSOCK;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use rustix::process::setpriority_process;

use crate::engine::process::Failure;
use crate::fake_agent::serve;

/// Clients that are served at once, for each CPU: as many as sandboxes that the engine brings up at once.
const THREADS_PER_CPU: usize = 4;
/// Nobody waits for a CPU for a shorter time.
const HIGHEST: i32 = -20;

/// Plays the agents of all VMs whose directories appear below these, until the process ends. Their socket is `socket`, which must
/// be on the same file system. None of them answers before `ready` returns.
pub fn link_agents(
    directories: &[PathBuf],
    socket: &Path,
    ready: impl FnOnce() + Send + 'static,
) -> Result<(), Failure> {
    let listener = Arc::new(UnixListener::bind(socket)?);
    let mut linker = Linker {
        inotify: inotify::init(CreateFlags::CLOEXEC)?,
        socket: socket.into(),
        link: socket.with_extension("link"),
        directories: HashMap::new(),
        vms: HashMap::new(),
    };
    for directory in directories {
        let watch = inotify::add_watch(
            &linker.inotify,
            directory,
            WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::ONLYDIR,
        )?;
        linker.directories.insert(watch, directory.clone());
    }
    thread::spawn(move || {
        ready();
        let cpus = thread::available_parallelism().map_or(1, NonZero::get);
        for _ in 0..THREADS_PER_CPU * cpus {
            let listener = Arc::clone(&listener);
            thread::spawn(move || accept(&listener));
        }
    });
    thread::spawn(move || {
        // Of this thread alone. Without it, a busy host may let the VM be faster.
        let _ = setpriority_process(None, HIGHEST);
        linker.run().expect("new sandboxes can be watched");
    });
    Ok(())
}

fn accept(listener: &UnixListener) {
    while let Ok((client, _)) = listener.accept() {
        // Clients come and go.
        let _ = serve(client);
    }
}

struct Linker {
    inotify: OwnedFd,
    socket: PathBuf,
    /// A name for a link that is not where it belongs yet.
    link: PathBuf,
    /// Those that VMs' directories appear in, by their watches.
    directories: HashMap<i32, PathBuf>,
    /// VMs' directories whose sockets are not there yet.
    vms: HashMap<i32, PathBuf>,
}

impl Linker {
    fn run(&mut self) -> Result<(), Errno> {
        let inotify = rustix::io::fcntl_dupfd_cloexec(&self.inotify, 0)?;
        let mut buffer = [MaybeUninit::uninit(); 16 << 10];
        let mut events = Reader::new(&inotify, &mut buffer);
        loop {
            let event = match events.next() {
                Err(Errno::INTR) => continue,
                event => event?,
            };
            let Some(name) = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes())) else {
                continue;
            };
            let (watch, is_directory) = (event.wd(), event.events().contains(ReadFlags::ISDIR));
            match self.directories.get(&watch).map(|directory| directory.join(name)) {
                Some(vm) if is_directory => self.appeared(vm),
                None if name == VSOCK => self.bound(watch),
                _ => {}
            }
        }
    }

    /// A VM's directory is there, and perhaps its socket, too.
    fn appeared(&mut self, vm: PathBuf) {
        // It may have gone already.
        let Ok(watch) = inotify::add_watch(&self.inotify, &vm, WatchFlags::CREATE | WatchFlags::ONLYDIR)
        else {
            return;
        };
        let is_bound = fs::symlink_metadata(vm.join(VSOCK)).is_ok();
        self.vms.insert(watch, vm);
        if is_bound {
            self.bound(watch);
        }
    }

    /// A VM's socket is there.
    fn bound(&mut self, watch: i32) {
        let Some(vm) = self.vms.remove(&watch) else { return };
        // Whatever fails has gone with its VM.
        let _ = inotify::remove_watch(&self.inotify, watch);
        let _ = fs::hard_link(&self.socket, &self.link).and_then(|()| fs::rename(&self.link, vm.join(VSOCK)));
        let _ = fs::remove_file(&self.link);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use forkd_proto::agent::IDENTITY_PORT;

    use super::*;

    /// What an agent says to a client that wants to give it an identity.
    fn greeting(socket: &Path) -> Option<String> {
        let mut stream = UnixStream::connect(socket).ok()?;
        stream.set_read_timeout(Some(Duration::from_millis(100))).ok()?;
        writeln!(stream, "CONNECT {IDENTITY_PORT}").ok()?;
        let lines: Vec<String> = BufReader::new(stream).lines().take(2).flatten().collect();
        (!lines.is_empty()).then(|| lines.join(" "))
    }

    fn until_answered(socket: &Path) -> String {
        (0..100).find_map(|_| greeting(socket)).expect("an agent answers")
    }

    #[test]
    fn every_vm_gets_an_agent() {
        let home = tempfile::tempdir().unwrap();
        let vms = home.path().join("sandboxes");
        fs::create_dir(&vms).unwrap();
        let (say, wait) = std::sync::mpsc::channel::<()>();
        let ready = move || wait.recv().unwrap();
        link_agents(std::slice::from_ref(&vms), &home.path().join("agents.sock"), ready).unwrap();
        // One that is bound in its place, and one that comes with its socket.
        let mut listeners = Vec::new();
        for (made, name) in [(vms.join("one"), "one"), (home.path().join("pooled"), "two")] {
            fs::create_dir(&made).unwrap();
            fs::write(made.join("console.log"), "").unwrap();
            listeners.push(UnixListener::bind(made.join(VSOCK)).unwrap());
            let vm = vms.join(name);
            if made != vm {
                fs::rename(&made, &vm).unwrap();
            }
            if name == "one" {
                assert_eq!(greeting(&vm.join(VSOCK)), None, "they are not ready");
                say.send(()).unwrap();
            }
            assert_eq!(until_answered(&vm.join(VSOCK)), "OK 1 {\"version\":1}");
        }
        assert!(!home.path().join("agents.link").exists());
    }
}
