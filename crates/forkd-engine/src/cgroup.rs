//! cgroups (v2) of VM processes: what each may use of the host, kept by the kernel.
//!
//! ```text
//!   ROOT/                     no process is in it; its controllers are given to what is below
//!   ├── sandbox-ID/           the VM process, from its first instruction on
//!   ├── zygote-TAG/           the parent while it boots, what it is frozen to, and who writes that to disk
//!   └── build-PID/            the VM process of a build's guest, before it has a VM
//! ```
//!
//! A limit that cannot be set is an error: a sandbox without its limits is not made. Memory is charged to who touches it first,
//! so what children share with their zygote is the zygote's, once; each pays for what it writes.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

const CONTROLLERS: [&str; 4] = ["memory", "cpu", "io", "pids"];
/// Before the number of a build's process.
const BUILD: &str = "build-";
/// A period of `cpu.max`, in microseconds: the kernel's own.
const PERIOD_US: u64 = 100_000;
/// How often a cgroup is tried to be removed that a process is still leaving.
const TRIES: u32 = 100;
const BETWEEN: Duration = Duration::from_millis(20);

/// What a process may use, with all that it makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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

/// What a process may read and write each second. What is not said is as much as there is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    #[error("{} cannot be set to {value:?}", path.display())]
    Limit { path: PathBuf, value: String, source: io::Error },
    #[error("the cgroup {} lacks the controllers {}", path.display(), missing.join(", "))]
    Controllers { path: PathBuf, missing: Vec<&'static str> },
    #[error("{} is on no device that can be limited", path.display())]
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
        // A parent that gives nothing on is asked to: the root of all does not by itself.
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
    }

    fn limit(&self, path: &Path, quota: &Quota) -> Result<(), CgroupError> {
        set(&path.join("memory.max"), &quota.memory_bytes.to_string())?;
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
        if quota.io == IoQuota::default() {
            return Ok(());
        }
        let device =
            self.device.as_ref().ok_or_else(|| CgroupError::NoDevice { path: self.disks.clone() })?;
        set(&path.join("io.max"), &format!("{device} {}", quota.io.line()))
    }

    /// Moves a process that has done nothing yet.
    pub fn enter(&self, name: &str, pid: i32) -> Result<(), CgroupError> {
        set(&self.root.join(name).join("cgroup.procs"), &pid.to_string())
    }

    /// Removes a cgroup whose process has ended or is about to. What cannot be removed now is removed by a sweep.
    pub async fn remove(&self, name: &str) {
        for _ in 0..TRIES {
            match fs::remove_dir(self.root.join(name)) {
                // The kernel's own threads of a VM leave a moment after it.
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    tokio::time::sleep(BETWEEN).await;
                }
                _ => return,
            }
        }
    }

    /// Removes all that nobody has. Returns how many.
    pub fn sweep(&self, is_used: impl Fn(&str) -> bool) -> usize {
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        let unused = entries.filter(|entry| entry.path().is_dir()).filter(|entry| {
            let name = entry.file_name();
            name.to_str().is_some_and(|name| is_ours(name) && !is_used(name))
        });
        // One with a process is not removed by this.
        unused.filter(|entry| fs::remove_dir(entry.path()).is_ok()).count()
    }

    /// Whether the kernel has killed what was there for want of memory.
    pub fn out_of_memory(&self, name: &str) -> Option<OutOfMemory> {
        let read = |file: &str| fs::read_to_string(self.root.join(name).join(file)).ok();
        let kills = keyed(&read("memory.events")?, "oom_kill")?;
        let number = |file: &str| read(file)?.trim().parse().ok();
        (kills > 0).then(|| OutOfMemory {
            limit_bytes: number("memory.max").unwrap_or(0),
            peak_bytes: number("memory.peak").unwrap_or(0),
        })
    }

    /// CPU time of all that ever was there, in microseconds.
    pub fn cpu_us(&self, name: &str) -> Option<u64> {
        keyed(&fs::read_to_string(self.root.join(name).join("cpu.stat")).ok()?, "usage_usec")
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
        for _ in 0..TRIES {
            match fs::remove_dir(self.cgroups.root.join(&self.name)) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => std::thread::sleep(BETWEEN),
                _ => return,
            }
        }
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
/// with it is further up. Nor for a VM process by itself: it has no paths.
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
    name.starts_with("sandbox-") || name.starts_with("zygote-") || name.starts_with(BUILD)
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

fn set(path: &Path, value: &str) -> Result<(), CgroupError> {
    // Not made if it is not there: a limit that the kernel does not know is none.
    let written =
        File::options().write(true).open(path).and_then(|mut file| file.write_all(value.as_bytes()));
    written.map_err(|source| CgroupError::Limit { path: path.into(), value: value.into(), source })
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

#[cfg(test)]
mod tests {
    use super::*;

    const QUOTA: Quota = Quota {
        memory_bytes: 64 << 20,
        cpu_millis: 1500,
        cpu_weight: 100,
        pids: 20,
        io: IoQuota { read_bytes: None, write_bytes: None, operations: None },
    };

    /// A directory that looks like a cgroup. The kernel makes the files of a new one; here the test does.
    fn tree(controllers: &str) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("forkd");
        fs::create_dir(&root).unwrap();
        fs::write(root.join("cgroup.controllers"), controllers).unwrap();
        fs::write(root.join("cgroup.subtree_control"), "").unwrap();
        directory
    }

    fn leaf(tree: &Path, name: &str, files: &[&str]) {
        let path = tree.join("forkd").join(name);
        fs::create_dir(&path).unwrap();
        files.iter().for_each(|file| fs::write(path.join(file), "").unwrap());
    }

    const FILES: [&str; 7] =
        ["memory.max", "memory.swap.max", "memory.oom.group", "cpu.max", "cpu.weight", "pids.max", "io.max"];

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
        for name in ["sandbox-used", "sandbox-gone", "zygote-gone", "somebody"] {
            leaf(tree.path(), name, &[]);
        }
        assert_eq!(cgroups.sweep(|name| name == "sandbox-used"), 2);
        let left = fs::read_dir(tree.path().join("forkd")).unwrap().flatten();
        let mut left: Vec<_> =
            left.filter(|entry| entry.path().is_dir()).map(|entry| entry.file_name()).collect();
        left.sort();
        assert_eq!(left, ["sandbox-used", "somebody"]);
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
        // A cgroup without the file is none.
        assert!(Leaf::of_build(&cgroups, own, &QUOTA).is_err());
        fs::write(at.join("cgroup.procs"), "").unwrap();
        let made = Leaf::of_build(&cgroups, own, &QUOTA).unwrap();
        assert_eq!(fs::read_to_string(at.join("cgroup.procs")).unwrap(), own.to_string());
        assert_eq!(fs::read_to_string(at.join("memory.max")).unwrap(), "67108864");
        // Of a process that is no more it is swept, as after a crash.
        assert_eq!(cgroups.sweep(is_of_running_build), 1);
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
