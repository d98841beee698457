//! cgroups (v2) of VM processes: what each may use of the host, kept by the kernel.
//!
//! ```text
//!   ROOT/                     no process is in it; its controllers are given to what is below
//!   ├── sandbox-ID/           the VM process, from its first instruction on
//!   ├── sandbox-ID.2/         the same VM process after its first branch; sandbox-ID is the branch's from then on
//!   ├── zygote-TAG/           the parent while it boots, and what it is frozen to
//!   ├── writer-TAG/           who writes a snapshot to disk: see `writer.rs`
//!   └── build-PID/            the VM process of a build's guest, before it has a VM
//! ```
//!
//! A limit that cannot be set is an error: a sandbox without its limits is not made. Memory is charged to the cgroup of the
//! process that touches it first, and stays charged to it. So what children share with their zygote is the zygote's, once; each
//! pays for what it writes. At a branch, all pages become the zygote's and the sandbox pays for those that it writes next:
//! the zygote keeps the cgroup, and the sandbox's process moves to a new one.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use crate::blocking::in_place;
use crate::limits::writer::WRITER;

const CONTROLLERS: [&str; 4] = ["memory", "cpu", "io", "pids"];
/// Before the number of a build's process.
const BUILD: &str = "build-";
/// A period of `cpu.max`, in microseconds: the kernel's own.
const PERIOD_US: u64 = 100_000;
/// What a cgroup may use beyond what is charged to it, where that is above its limit already.
const HEADROOM_BYTES: u64 = 16 << 20;
/// What a branch may use beyond what it keeps: it is written to disk, through the page cache.
const WRITING_BYTES: u64 = 64 << 20;
/// `PF_KTHREAD` of the kernel's task flags.
const KERNEL_THREAD: u64 = 0x0020_0000;
/// How often a cgroup is tried to be removed that a process is still leaving.
const TRIES: u32 = 100;
const BETWEEN: Duration = Duration::from_millis(20);

/// What a process may use, with all that it makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// Of the host's memory: what the guest writes, and what that costs the VM process and the kernel.
    pub memory_bytes: u64,
    /// Thousandths of a CPU.
    pub cpu_millis: u64,
    /// Its share where CPUs are short, against 100 of another.
    pub cpu_weight: u16,
    /// Processes and threads.
    pub pids: u32,
    /// Of the device that disks are on.
    pub io: IoQuota,
}

/// What a process may read and write each second. `None` is unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IoQuota {
    pub read_bytes: Option<u64>,
    pub write_bytes: Option<u64>,
    pub operations: Option<u64>,
}

/// The memory of a cgroup was not enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfMemory {
    pub limit_bytes: u64,
    pub peak_bytes: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    #[error("cannot {verb} the cgroup {}", path.display())]
    At { verb: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot set {} to {value:?}", path.display())]
    Limit { path: PathBuf, value: String, source: io::Error },
    #[error("the cgroup {} lacks the controllers {}", path.display(), missing.join(", "))]
    Controllers { path: PathBuf, missing: Vec<&'static str> },
    #[error("cannot limit I/O of {}: it is not on a block device", path.display())]
    NoDevice { path: PathBuf },
}

impl CgroupError {
    fn at(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CgroupError {
        move |source| CgroupError::At { verb, path: path.into(), source }
    }
}

/// The cgroup of all of forkd's.
#[derive(Debug, Clone)]
pub struct Cgroups {
    root: PathBuf,
    /// The device that disks are on, as the kernel names it, if it can be limited.
    device: Option<String>,
    disks: PathBuf,
}

impl Cgroups {
    /// Makes the cgroup and has it give its controllers to those below. `disks` is where layers of disks are.
    pub fn prepare(root: &Path, disks: &Path) -> Result<Cgroups, CgroupError> {
        create(root)?;
        // A parent that gives nothing on is asked to: the root cgroup does not by default.
        if let Some(parent) = root.parent() {
            let _ = fs::write(parent.join("cgroup.subtree_control"), enable());
        }
        let given =
            fs::read_to_string(root.join("cgroup.controllers")).map_err(CgroupError::at("look at", root))?;
        let given: Vec<&str> = given.split_whitespace().collect();
        let missing: Vec<_> = CONTROLLERS.into_iter().filter(|name| !given.contains(name)).collect();
        if !missing.is_empty() {
            return Err(CgroupError::Controllers { path: root.into(), missing });
        }
        set(&root.join("cgroup.subtree_control"), &enable())?;
        open_to_jails(root).map_err(CgroupError::at("open", root))?;
        Ok(Cgroups { root: root.into(), device: device_of(disks), disks: disks.into() })
    }

    /// Makes a cgroup with these limits, or gives them to the one that is there, and opens it.
    pub fn make(&self, name: &str, quota: &Quota) -> Result<OwnedFd, CgroupError> {
        in_place(|| {
            let path = self.root.join(name);
            create(&path)?;
            let limited = self.limit(&path, quota);
            if limited.is_err() {
                let _ = fs::remove_dir(&path);
            }
            limited?;
            open_to_jails(&path).map_err(CgroupError::at("open", &path))?;
            let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
            rustix::fs::open(&path, flags, Mode::empty())
                .map_err(|errno| CgroupError::at("open", &path)(errno.into()))
        })
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Gives a cgroup that is there these limits.
    pub fn set_limits(&self, name: &str, quota: &Quota) -> Result<(), CgroupError> {
        in_place(|| self.limit(&self.root.join(name), quota))
    }

    /// Gives a cgroup that a branch keeps these limits, or as much memory as it needs.
    pub fn set_limits_of_branch(&self, name: &str, quota: &Quota) -> Result<(), CgroupError> {
        in_place(|| {
            let path = self.root.join(name);
            let charged = number(&path.join("memory.current")).unwrap_or(0);
            let memory_bytes = quota.memory_bytes.max(charged.saturating_add(WRITING_BYTES));
            self.limit(&path, &Quota { memory_bytes, ..*quota })
        })
    }

    fn limit(&self, path: &Path, quota: &Quota) -> Result<(), CgroupError> {
        set(&path.join("memory.max"), &memory_limit(path, quota).to_string())?;
        // A kernel without swap has nothing to limit.
        let swap = path.join("memory.swap.max");
        if swap.exists() {
            set(&swap, "0")?;
        }
        // A VM without one of its threads is of no use.
        set(&path.join("memory.oom.group"), "1")?;
        let quota_us = quota.cpu_millis.saturating_mul(PERIOD_US) / 1000;
        set(&path.join("cpu.max"), &format!("{quota_us} {PERIOD_US}"))?;
        set(&path.join("cpu.weight"), &quota.cpu_weight.to_string())?;
        set(&path.join("pids.max"), &quota.pids.to_string())?;
        let limited = || fs::read_to_string(path.join("io.max")).is_ok_and(|text| !text.trim().is_empty());
        if quota.io == IoQuota::default() && !limited() {
            return Ok(());
        }
        let device =
            self.device.as_ref().ok_or_else(|| CgroupError::NoDevice { path: self.disks.clone() })?;
        set(&path.join("io.max"), &format!("{device} {}", quota.io.line()))
    }

    /// Moves a process that has done nothing yet.
    pub fn enter(&self, name: &str, pid: i32) -> Result<(), CgroupError> {
        in_place(|| set(&self.root.join(name).join("cgroup.procs"), &pid.to_string()))
    }

    /// Allows a cgroup more memory for a while. [`Cgroups::set_limits`] ends that.
    pub fn raise_memory(&self, name: &str, bytes: u64) -> Result<(), CgroupError> {
        in_place(|| set(&self.root.join(name).join("memory.max"), &bytes.to_string()))
    }

    /// Gives the limit of memory back to a cgroup that was allowed more for a while, if it uses no more than that by now.
    pub fn restore_memory(&self, name: &str, quota: &Quota) {
        in_place(|| {
            let path = self.root.join(name);
            let limit = number(&path.join("memory.max"));
            if limit.is_some_and(|limit| limit != memory_limit(&path, quota)) {
                // The next sweep tries again.
                let _ = set(&path.join("memory.max"), &memory_limit(&path, quota).to_string());
            }
        });
    }

    /// Moves a process that runs, with the threads that the kernel has started for its VM: up to Linux 6.12, KVM's thread for
    /// large pages is a process of its own in the cgroup of its creator, and would keep that from being removed. What is
    /// charged stays charged to `from`. The kernel waits for forks and exits of all processes: not to be called in a pause.
    pub fn move_process(&self, from: &str, to: &str, pid: i32) -> Result<(), CgroupError> {
        self.enter(to, pid)?;
        self.move_kernel_threads(from, to);
        Ok(())
    }

    /// Moves threads of the kernel. One that cannot be moved delays the removal of `from` until its VM has ended.
    pub fn move_kernel_threads(&self, from: &str, to: &str) {
        let listed = fs::read_to_string(self.root.join(from).join("cgroup.procs")).unwrap_or_default();
        let pids = listed.lines().filter_map(|line| line.trim().parse::<i32>().ok());
        for pid in pids.filter(|pid| *pid > 0 && is_kernel_thread(*pid)) {
            let _ = self.enter(to, pid);
        }
    }

    /// The cgroup of a process, if it is one of these.
    pub fn name_of(&self, pid: i32) -> Option<String> {
        in_place(|| {
            let said = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
            let name = last_name(&said).filter(|name| is_ours(name))?;
            let listed = fs::read_to_string(self.root.join(name).join("cgroup.procs")).ok()?;
            // Another daemon's cgroup may have the same name.
            listed.lines().any(|line| line.trim().parse() == Ok(pid)).then(|| name.to_owned())
        })
    }

    /// Ends whatever is in a cgroup: a process that was taken over may have made others.
    pub fn kill(&self, name: &str) {
        // Kernels before 5.14 cannot, and there may be no such cgroup.
        let _ = in_place(|| fs::write(self.root.join(name).join("cgroup.kill"), "1"));
    }

    /// Removes a cgroup whose process has ended or is about to. What cannot be removed now is removed by a sweep.
    pub async fn remove(&self, name: &str) {
        for _ in 0..TRIES {
            match in_place(|| fs::remove_dir(self.root.join(name))) {
                // The kernel's own threads of a VM leave a moment after it.
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    tokio::time::sleep(BETWEEN).await;
                }
                _ => return,
            }
        }
    }

    /// Removes the unused ones of these. Returns how many. `successor` is the cgroup that the VM process has moved to which a cgroup
    /// was made for: the kernel's threads follow it.
    pub fn sweep(
        &self,
        names: Vec<String>,
        is_used: impl Fn(&str) -> bool,
        successor: impl Fn(&str) -> Option<String>,
    ) -> usize {
        let remove = |name: &String| {
            if name.starts_with(WRITER) {
                // The task that it wrote for has ended or cancelled it.
                self.kill(name);
            }
            // One with a process is not removed by this.
            let removed = fs::remove_dir(self.root.join(name));
            removed.is_ok()
                || successor(name).is_some_and(|successor| {
                    self.move_kernel_threads(name, &successor);
                    fs::remove_dir(self.root.join(name)).is_ok()
                })
        };
        names.into_iter().filter(|name| is_ours(name) && !is_used(name)).filter(remove).count()
    }

    /// All that there are, also those of others.
    pub fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        let directories = entries.filter(|entry| entry.path().is_dir());
        directories.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    /// Whether the kernel has killed what was there for want of memory.
    pub fn out_of_memory(&self, name: &str) -> Option<OutOfMemory> {
        in_place(|| {
            let path = self.root.join(name);
            let kills = keyed(&fs::read_to_string(path.join("memory.events")).ok()?, "oom_kill")?;
            (kills > 0).then(|| OutOfMemory {
                limit_bytes: number(&path.join("memory.max")).unwrap_or(0),
                peak_bytes: number(&path.join("memory.peak")).unwrap_or(0),
            })
        })
    }

    /// CPU time of all that ever was there, in microseconds.
    pub fn cpu_us(&self, name: &str) -> Option<u64> {
        let said = in_place(|| fs::read_to_string(self.root.join(name).join("cpu.stat")));
        keyed(&said.ok()?, "usage_usec")
    }
}

/// The cgroup of one process, which is removed after it.
#[derive(Debug)]
pub struct Leaf {
    cgroups: Cgroups,
    name: String,
}

impl Leaf {
    /// Puts the process of a build's guest into a cgroup of its own, before it has done anything.
    pub fn of_build(cgroups: &Cgroups, pid: u32, quota: &Quota) -> Result<Leaf, CgroupError> {
        let name = format!("{BUILD}{pid}");
        cgroups.make(&name, quota)?;
        // From here on it is removed, whatever happens.
        let leaf = Leaf { cgroups: cgroups.clone(), name };
        let processes = leaf.cgroups.root.join(&leaf.name).join("cgroup.procs");
        set(&processes, &pid.to_string())?;
        Ok(leaf)
    }
}

impl Drop for Leaf {
    /// Waits for a process that was told to end. One that does not is left to a sweep, and the cgroup with it.
    fn drop(&mut self) {
        in_place(|| {
            for _ in 0..TRIES {
                match fs::remove_dir(self.cgroups.root.join(&self.name)) {
                    Err(error) if error.kind() == io::ErrorKind::ResourceBusy => std::thread::sleep(BETWEEN),
                    _ => return,
                }
            }
        });
    }
}

/// Whether the process that a build's cgroup was made for is still there.
pub(crate) fn is_of_running_build(name: &str) -> bool {
    let pid = name.strip_prefix(BUILD).and_then(|pid| pid.parse::<u32>().ok());
    pid.is_some_and(|pid| Path::new("/proc").join(pid.to_string()).exists())
}

impl IoQuota {
    fn line(self) -> String {
        let limits = [
            ("rbps", self.read_bytes),
            ("wbps", self.write_bytes),
            ("riops", self.operations),
            ("wiops", self.operations),
        ];
        let words = limits.map(|(name, limit)| match limit {
            Some(limit) => format!("{name}={limit}"),
            None => format!("{name}=max"),
        });
        words.join(" ")
    }
}

/// Lets VM processes clone into a cgroup, whatever user ids they have: the kernel wants them to be able to write here and in the
/// cgroup that both sides have in common, that of all of forkd's. It is no way in for anybody else: what they have in common
/// with it is further up. VM processes do not need it: they have no paths.
fn open_to_jails(path: &Path) -> io::Result<()> {
    match fs::set_permissions(path.join("cgroup.procs"), fs::Permissions::from_mode(0o666)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        changed => changed,
    }
}

fn enable() -> String {
    CONTROLLERS.map(|name| format!("+{name}")).join(" ")
}

fn is_ours(name: &str) -> bool {
    ["sandbox-", "zygote-", WRITER, BUILD].iter().any(|first| name.starts_with(first))
}

/// Makes a cgroup, unless it is there.
fn create(path: &Path) -> Result<(), CgroupError> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(CgroupError::at("make", path)(error))
        }
        _ => Ok(()),
    }
}

pub(super) fn set(path: &Path, value: &str) -> Result<(), CgroupError> {
    // Not made if it is not there: a limit that the kernel does not know cannot be set.
    let written =
        File::options().write(true).open(path).and_then(|mut file| file.write_all(value.as_bytes()));
    written.map_err(|source| CgroupError::Limit { path: path.into(), value: value.into(), source })
}

/// What a cgroup may use: what its quota says, but not less than it uses already. The kernel would end a process for that.
fn memory_limit(path: &Path, quota: &Quota) -> u64 {
    match number(&path.join("memory.current")) {
        Some(charged) if charged > quota.memory_bytes => charged.saturating_add(HEADROOM_BYTES),
        _ => quota.memory_bytes,
    }
}

/// The number in a file.
fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The last name of the cgroup v2 path in `/proc/PID/cgroup`.
fn last_name(said: &str) -> Option<&str> {
    let path = said.lines().find_map(|line| line.strip_prefix("0::"))?;
    path.rsplit('/').next().filter(|name| !name.is_empty())
}

fn is_kernel_thread(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    task_flags(&stat).is_some_and(|flags| flags & KERNEL_THREAD != 0)
}

/// The 9th field of `/proc/PID/stat`, counted behind the name, which may have spaces.
pub(crate) fn task_flags(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(6)?.parse().ok()
}

/// The number behind a word, in lines of both.
fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

/// The whole disk that a directory is on: the kernel limits no partitions. `None` for file systems without a device of their
/// own.
fn device_of(directory: &Path) -> Option<String> {
    let device = fs::metadata(directory).ok()?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let node = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    let whole = match node.join("partition").exists() {
        true => fs::canonicalize(&node).ok()?.parent()?.to_path_buf(),
        false => node,
    };
    Some(fs::read_to_string(whole.join("dev")).ok()?.trim().to_owned())
}

/// Directories that look like cgroups.
#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    pub const QUOTA: Quota = Quota {
        memory_bytes: 64 << 20,
        cpu_millis: 1500,
        cpu_weight: 100,
        pids: 20,
        io: IoQuota { read_bytes: None, write_bytes: None, operations: None },
    };

    /// A directory that looks like a cgroup. The kernel makes the files of a new one; here the test does.
    pub fn tree(controllers: &str) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("forkd");
        fs::create_dir(&root).unwrap();
        fs::write(root.join("cgroup.controllers"), controllers).unwrap();
        fs::write(root.join("cgroup.subtree_control"), "").unwrap();
        directory
    }

    pub fn leaf(tree: &Path, name: &str, files: &[&str]) {
        let path = tree.join("forkd").join(name);
        fs::create_dir(&path).unwrap();
        files.iter().for_each(|file| fs::write(path.join(file), "").unwrap());
    }

    pub const FILES: [&str; 7] =
        ["memory.max", "memory.swap.max", "memory.oom.group", "cpu.max", "cpu.weight", "pids.max", "io.max"];
}

#[cfg(test)]
mod tests {
    use super::testing::{FILES, QUOTA, leaf, tree};
    use super::*;

    /// The real thing, mounted for this test.
    struct Mounted(tempfile::TempDir);

    impl Mounted {
        fn new() -> Mounted {
            let directory = tempfile::tempdir().unwrap();
            let mut mount = std::process::Command::new("mount");
            let mounted = mount.args(["-t", "cgroup2", "none"]).arg(directory.path()).status();
            assert!(mounted.unwrap().success(), "cgroup v2 can be mounted by root");
            Mounted(directory)
        }
    }

    impl Drop for Mounted {
        fn drop(&mut self) {
            let _ = std::process::Command::new("umount").arg(self.0.path()).status();
        }
    }

    #[tokio::test]
    async fn whatever_is_in_a_cgroup_goes_with_it() {
        let mounted = Mounted::new();
        let root = mounted.0.path().join(format!("forkd-test-{}", std::process::id()));
        let path = root.join("sandbox-i1");
        fs::create_dir_all(&path).unwrap();
        let mut stray = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        fs::write(path.join("cgroup.procs"), stray.id().to_string()).unwrap();
        let cgroups = Cgroups { root: root.clone(), device: None, disks: root.clone() };
        cgroups.kill("sandbox-i1");
        let status = stray.wait().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "{status}");
        cgroups.remove("sandbox-i1").await;
        assert!(!path.exists());
        fs::remove_dir(&root).unwrap();
    }

    #[test]
    fn limits_are_written_as_the_kernel_reads_them() {
        let tree = tree("cpuset cpu io memory hugetlb pids rdma");
        let mut cgroups = Cgroups::prepare(&tree.path().join("forkd"), tree.path()).unwrap();
        cgroups.device = Some("254:0".into());
        leaf(tree.path(), "sandbox-a", &FILES);
        let io = IoQuota { read_bytes: None, write_bytes: Some(1 << 20), operations: Some(500) };
        cgroups.make("sandbox-a", &Quota { io, ..QUOTA }).unwrap();
        let read = |file| fs::read_to_string(tree.path().join("forkd/sandbox-a").join(file)).unwrap();
        assert_eq!(
            FILES.map(read),
            [
                "67108864",
                "0",
                "1",
                "150000 100000",
                "100",
                "20",
                "254:0 rbps=max wbps=1048576 riops=500 wiops=500"
            ]
        );
        let given = fs::read_to_string(tree.path().join("forkd/cgroup.subtree_control")).unwrap();
        assert_eq!(given, "+memory +cpu +io +pids");
    }

    #[test]
    fn a_limit_that_cannot_be_set_is_an_error_and_leaves_nothing() {
        let tree = tree("cpu io memory pids");
        let mut cgroups = Cgroups::prepare(&tree.path().join("forkd"), tree.path()).unwrap();
        // Of a plain directory nothing can be set.
        let error = cgroups.make("sandbox-b", &QUOTA).unwrap_err();
        assert!(matches!(&error, CgroupError::Limit { path, .. } if path.ends_with("memory.max")), "{error}");
        assert!(!tree.path().join("forkd/sandbox-b").exists());
        cgroups.device = None;
        leaf(tree.path(), "sandbox-c", &FILES);
        let io = IoQuota { read_bytes: Some(1), ..IoQuota::default() };
        let error = cgroups.make("sandbox-c", &Quota { io, ..QUOTA }).unwrap_err();
        assert!(matches!(error, CgroupError::NoDevice { .. }), "{error}");
    }

    #[test]
    fn a_host_without_the_controllers_is_refused() {
        let tree = tree("cpu pids");
        let error = Cgroups::prepare(&tree.path().join("forkd"), tree.path()).unwrap_err();
        assert!(error.to_string().ends_with("lacks the controllers memory, io"), "{error}");
        assert!(Cgroups::prepare(&tree.path().join("a/b"), tree.path()).is_err(), "no parent");
    }

    #[test]
    fn the_end_of_memory_is_told_with_numbers() {
        let tree = tree("cpu io memory pids");
        let cgroups = Cgroups::prepare(&tree.path().join("forkd"), tree.path()).unwrap();
        leaf(tree.path(), "sandbox-d", &["memory.events"]);
        let write = |file, text| fs::write(tree.path().join("forkd/sandbox-d").join(file), text).unwrap();
        write("memory.events", "low 0\nhigh 0\nmax 17\noom 1\noom_kill 0\noom_group_kill 0\n");
        assert_eq!(cgroups.out_of_memory("sandbox-d"), None);
        write("memory.events", "low 0\nhigh 0\nmax 17\noom 1\noom_kill 3\noom_group_kill 1\n");
        write("memory.max", "1000\n");
        write("memory.peak", "999\n");
        let told = Some(OutOfMemory { limit_bytes: 1000, peak_bytes: 999 });
        assert_eq!(cgroups.out_of_memory("sandbox-d"), told);
        assert_eq!(cgroups.out_of_memory("sandbox-none"), None);
        write("cpu.stat", "usage_usec 12345\nuser_usec 12000\n");
        assert_eq!(cgroups.cpu_us("sandbox-d"), Some(12345));
    }

    #[test]
    fn a_sweep_takes_what_is_nobody_s_and_nothing_else() {
        let tree = tree("cpu io memory pids");
        let cgroups = Cgroups::prepare(&tree.path().join("forkd"), tree.path()).unwrap();
        for name in ["sandbox-used", "sandbox-gone", "zygote-gone", "somebody", "writer-used"] {
            leaf(tree.path(), name, &[]);
        }
        let is_used = |name: &str| name.ends_with("-used");
        assert_eq!(cgroups.sweep(cgroups.names(), is_used, |_| None), 2);
        let left = fs::read_dir(tree.path().join("forkd")).unwrap().flatten();
        let mut left: Vec<_> =
            left.filter(|entry| entry.path().is_dir()).map(|entry| entry.file_name()).collect();
        left.sort();
        assert_eq!(left, ["sandbox-used", "somebody", "writer-used"]);
    }

    #[test]
    fn a_limit_is_never_below_what_is_charged_already() {
        let tree = tree("cpu io memory pids");
        let mut cgroups = Cgroups::prepare(&tree.path().join("forkd"), tree.path()).unwrap();
        cgroups.device = Some("254:0".into());
        leaf(tree.path(), "sandbox-e", &FILES);
        let at = tree.path().join("forkd/sandbox-e");
        let limit = || fs::read_to_string(at.join("memory.max")).unwrap();
        let mib = |mib: u64| (mib << 20).to_string();
        cgroups.raise_memory("sandbox-e", 90 << 20).unwrap();
        assert_eq!(limit(), mib(90));
        fs::write(at.join("memory.current"), mib(70) + "\n").unwrap();
        // The branch has the cgroup now, and is not to be slowed down by what the sandbox may read and write.
        fs::write(at.join("io.max"), "254:0 rbps=max wbps=1048576 riops=max wiops=max\n").unwrap();
        cgroups.set_limits("sandbox-e", &QUOTA).unwrap();
        assert_eq!(limit(), mib(70 + 16), "the kernel would kill a process");
        fs::write(at.join("memory.current"), mib(20)).unwrap();
        cgroups.set_limits_of_branch("sandbox-e", &QUOTA).unwrap();
        assert_eq!(limit(), mib(20 + 64), "it is written to disk");
        let io = fs::read_to_string(at.join("io.max")).unwrap();
        assert!(io.starts_with("254:0 rbps=max wbps=max riops=max wiops=max"), "{io}");
        fs::write(at.join("memory.current"), mib(60)).unwrap();
        cgroups.restore_memory("sandbox-e", &QUOTA);
        assert_eq!(limit(), mib(64));
        cgroups.restore_memory("sandbox-none", &QUOTA);
    }

    #[test]
    fn only_the_process_and_the_kernel_s_threads_move() {
        let tree = tree("cpu io memory pids");
        let cgroups = Cgroups::prepare(&tree.path().join("forkd"), tree.path()).unwrap();
        leaf(tree.path(), "sandbox-f", &["cgroup.procs"]);
        leaf(tree.path(), "sandbox-f.2", &["cgroup.procs"]);
        let at = |name: &str| tree.path().join("forkd").join(name).join("cgroup.procs");
        let own = i32::try_from(std::process::id()).unwrap();
        fs::write(at("sandbox-f"), format!("{own}\n0\nx\n")).unwrap();
        cgroups.move_process("sandbox-f", "sandbox-f.2", 7).unwrap();
        assert_eq!(fs::read_to_string(at("sandbox-f.2")).unwrap(), "7", "this process is not the kernel's");
        assert!(cgroups.move_process("sandbox-f", "sandbox-none", 7).is_err());
    }

    #[test]
    fn the_kernel_s_tables_are_read() {
        let stat = |flags: u64| format!("7 (kvm-nx) x) S 2 0 0 0 -1 {flags} 1 0 0");
        assert_eq!(task_flags(&stat(2_129_984)), Some(2_129_984));
        assert_eq!((task_flags(""), task_flags("7 (a) S 1")), (None, None));
        assert!(!is_kernel_thread(i32::try_from(std::process::id()).unwrap()));
        assert!(!is_kernel_thread(0));
        let named = last_name("4:memory:/a\n0::/forkd/sandbox-i1.2\n");
        assert_eq!(named, Some("sandbox-i1.2"));
        assert_eq!((last_name("0::/\n"), last_name("1:cpu:/x\n"), last_name("")), (None, None, None));
    }

    #[test]
    fn the_cgroup_of_a_build_goes_with_its_process() {
        let tree = tree("cpu io memory pids");
        let cgroups = Cgroups::prepare(&tree.path().join("forkd"), tree.path()).unwrap();
        let own = std::process::id();
        let name = format!("build-{own}");
        leaf(tree.path(), &name, &FILES);
        leaf(tree.path(), "build-0", &[]);
        let at = tree.path().join("forkd").join(&name);
        // A directory without the file is not a cgroup.
        assert!(Leaf::of_build(&cgroups, own, &QUOTA).is_err());
        fs::write(at.join("cgroup.procs"), "").unwrap();
        let made = Leaf::of_build(&cgroups, own, &QUOTA).unwrap();
        assert_eq!(fs::read_to_string(at.join("cgroup.procs")).unwrap(), own.to_string());
        assert_eq!(fs::read_to_string(at.join("memory.max")).unwrap(), "67108864");
        // Of a process that is no more it is swept, as after a crash.
        assert_eq!(cgroups.sweep(cgroups.names(), is_of_running_build, |_| None), 1);
        assert!(at.exists() && !tree.path().join("forkd/build-0").exists());
        // What is in a plain directory must go first.
        fs::read_dir(&at).unwrap().flatten().for_each(|file| fs::remove_file(file.path()).unwrap());
        drop(made);
        assert!(!at.exists());
    }

    #[test]
    fn a_directory_is_on_a_disk_or_on_none() {
        assert_eq!(device_of(Path::new("/proc")), None);
        if let Some(device) = device_of(Path::new("/")) {
            assert!(Path::new("/sys/dev/block").join(&device).exists(), "{device}");
        }
    }
}
