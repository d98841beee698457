//! The attempts.

use std::ffi::CStr;

use super::call::{Word, call, fork, fork_to_stay};
use super::{Attempt, Targets, Without, abstract_name};

/// The attempt that only a cgroup denies.
pub const FORK_BOMB: &str = "a fork bomb";
/// More processes than a VM process may have, and no danger to a host that has no cgroups.
const BOMB: usize = 64;

/// All attempts, by what they are after.
pub const ATTEMPTS: &[Attempt] = &[
    // Files.
    denied("open /etc/passwd", "openat", |_| open(c"/etc/passwd", libc::O_RDONLY)),
    denied("open /etc/passwd from below the root", "openat", |_| {
        open(c"../../../etc/passwd", libc::O_RDONLY)
    }),
    denied("open /dev/kvm", "openat", |_| open(c"/dev/kvm", libc::O_RDWR)),
    denied("read /proc/self/maps", "openat", |_| open(c"/proc/self/maps", libc::O_RDONLY)),
    denied("read /proc/1/environ", "openat", |_| open(c"/proc/1/environ", libc::O_RDONLY)),
    denied("read /sys/kernel", "openat", |_| open(c"/sys/kernel", libc::O_RDONLY)),
    denied("make a file", "openat", |_| open(c"/made", libc::O_CREAT | libc::O_RDWR)),
    denied("make a device", "mknodat", |_| {
        call(libc::SYS_mknodat, [AT_FDCWD, c"/memory".into(), 0o20666.into(), 0x101.into()])
    }),
    denied("open a file by its handle", "open_by_handle_at", |_| {
        let mut handle = [8u64 | 1 << 32, 2];
        call(libc::SYS_open_by_handle_at, [0.into(), handle.as_mut_slice().into(), 0.into()])
    }),
    denied("run a shell", "execve", |_| call(libc::SYS_execve, [c"/bin/sh".into(), 0.into(), 0.into()])),
    // The world.
    denied("leave the root", "chroot", |_| call(libc::SYS_chroot, [c".".into()])),
    denied("mount a file system", "mount", |_| {
        let (name, place): (Word, Word) = (c"tmpfs".into(), c"/".into());
        call(libc::SYS_mount, [name, place, name, 0.into(), 0.into()])
    }),
    denied("unmount the root", "umount2", |_| {
        call(libc::SYS_umount2, [c"/".into(), libc::MNT_DETACH.into()])
    }),
    denied("turn the root", "pivot_root", |_| call(libc::SYS_pivot_root, [c"/".into(), c"/".into()])),
    denied("a user namespace", "unshare", |_| call(libc::SYS_unshare, [libc::CLONE_NEWUSER.into()])),
    denied("a mount namespace", "unshare", |_| call(libc::SYS_unshare, [libc::CLONE_NEWNS.into()])),
    denied("a process in a user namespace", "clone3", |_| clone3(i64::from(libc::CLONE_NEWUSER))),
    denied("the namespaces of the daemon", "pidfd_open", |targets| {
        let flags = libc::CLONE_NEWNS | libc::CLONE_NEWNET;
        with_pidfd(targets.daemon, |pidfd| call(libc::SYS_setns, [pidfd.into(), flags.into()]))
    }),
    denied("another host name", "sethostname", |_| call(libc::SYS_sethostname, [c"mine".into(), 4.into()])),
    // Rights.
    denied("be root", "setresuid", |_| call(libc::SYS_setresuid, [0.into(), 0.into(), 0.into()])),
    denied("be root by the old call", "setuid", |_| call(libc::SYS_setuid, [0.into()])),
    denied("be in root's group", "setresgid", |_| call(libc::SYS_setresgid, [0.into(), 0.into(), 0.into()])),
    denied("be in other groups", "setgroups", |_| {
        call(libc::SYS_setgroups, [1.into(), [0u8; 4].as_slice().into()])
    }),
    denied("have capabilities", "capset", |_| {
        let mut header = [0x2008_0522u64];
        let mut sets = [u64::MAX, 0xffff_ffff, u64::MAX];
        call(libc::SYS_capset, [header.as_mut_slice().into(), sets.as_mut_slice().into()])
    }),
    allowed("ask whether it can be traced", "prctl", "it cannot", |_| {
        call(libc::SYS_prctl, [libc::PR_GET_DUMPABLE.into()])
    }),
    denied("more memory that stays", "mlockall", |_| call(libc::SYS_mlockall, [libc::MCL_CURRENT.into()])),
    denied("real time", "sched_setscheduler", |_| {
        let mut priority = [1u64];
        let fifo = libc::SCHED_FIFO.into();
        call(libc::SYS_sched_setscheduler, [0.into(), fifo, priority.as_mut_slice().into()])
    }),
    denied("go first", "setpriority", |_| call(libc::SYS_setpriority, [0.into(), 0.into(), (-20).into()])),
    denied("core dumps", "prlimit64", |_| {
        let mut limit = [u64::MAX; 2];
        call(libc::SYS_prlimit64, [0.into(), 4.into(), limit.as_mut_slice().into(), 0.into()])
    }),
    denied("limit another VM process", "prlimit64", |targets| {
        let mut limit = [0; 2];
        call(libc::SYS_prlimit64, [targets.victim.into(), 7.into(), limit.as_mut_slice().into(), 0.into()])
    }),
    // Others.
    denied("kill another VM process", "kill", |targets| kill(targets.victim)),
    denied("kill the daemon", "kill", |targets| kill(targets.daemon)),
    allowed("signal everybody", "kill", "only those of its own user id hear it", |_| {
        call(libc::SYS_kill, [(-1).into(), libc::SIGCONT.into()])
    }),
    denied("kill a thread of the daemon", "tgkill", |targets| {
        let (daemon, signal) = (targets.daemon.into(), libc::SIGKILL.into());
        call(libc::SYS_tgkill, [daemon, daemon, signal])
    }),
    denied("abort another VM process", "tgkill", |targets| {
        let (victim, signal) = (targets.victim.into(), libc::SIGABRT.into());
        call(libc::SYS_tgkill, [victim, victim, signal])
    }),
    denied("abort the daemon", "tgkill", |targets| {
        let (daemon, signal) = (targets.daemon.into(), libc::SIGABRT.into());
        call(libc::SYS_tgkill, [daemon, daemon, signal])
    }),
    denied("kick a thread of another VM process", "tgkill", |targets| {
        let victim = targets.victim.into();
        call(libc::SYS_tgkill, [victim, victim, 34.into()])
    }),
    denied("trace another VM process", "ptrace", |targets| trace(targets.victim)),
    denied("trace the daemon", "ptrace", |targets| trace(targets.daemon)),
    denied("read another VM process' memory", "process_vm_readv", |targets| read_memory(targets.victim)),
    denied("read the daemon's memory", "process_vm_readv", |targets| read_memory(targets.daemon)),
    denied("another VM process' descriptors", "pidfd_open", |targets| {
        with_pidfd(targets.victim, |pidfd| call(libc::SYS_pidfd_getfd, [pidfd.into(), 0.into(), 0.into()]))
    }),
    denied("kill another VM process by its descriptor", "pidfd_open", |targets| {
        let signal = libc::SIGKILL.into();
        with_pidfd(targets.victim, |pidfd| {
            call(libc::SYS_pidfd_send_signal, [pidfd.into(), signal, 0.into(), 0.into()])
        })
    }),
    // The network.
    denied("connect to the host", "socket", |targets| {
        let [high, low] = targets.port.to_be_bytes();
        let address = [2, 0, high, low, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
        connect(libc::AF_INET, &address)
    }),
    denied("connect to an abstract Unix socket", "socket", |targets| {
        let mut address = vec![1, 0, 0];
        address.extend(abstract_name(targets.port).into_bytes());
        connect(libc::AF_UNIX, &address)
    }),
    denied("connect to a Unix socket of the host's", "socket", |_| {
        connect(libc::AF_UNIX, b"\x01\x00/run/dbus/system_bus_socket\0")
    }),
    denied("raw packets", "socket", |_| socket(libc::AF_PACKET, libc::SOCK_RAW)),
    allowed("netlink", "socket", "a network namespace with nothing in it", |_| {
        socket(libc::AF_NETLINK, libc::SOCK_RAW)
    }),
    allowed("vsock", "socket", "what listens on the host's vsock; the filter is the wall", |_| {
        socket(libc::AF_VSOCK, libc::SOCK_STREAM)
    }),
    allowed("the kernel's cryptography", "socket", "more of the kernel to attack", |_| {
        socket(libc::AF_ALG, libc::SOCK_SEQPACKET)
    }),
    // The kernel.
    denied("see programs of others in the kernel", "bpf", |_| {
        let mut attributes = [0; 8];
        call(libc::SYS_bpf, [11.into(), attributes.as_mut_slice().into(), 64.into()])
    }),
    denied("measure all that a CPU does", "perf_event_open", |_| {
        let mut attributes = [1 | 64 << 32, 0, 0, 0, 0, 0, 0, 0];
        let attributes = attributes.as_mut_slice().into();
        call(libc::SYS_perf_event_open, [attributes, (-1).into(), 0.into(), (-1).into(), 0.into()])
    }),
    denied("catch the kernel's page faults", "userfaultfd", |_| call(libc::SYS_userfaultfd, [0.into()])),
    denied("load a module", "init_module", |_| {
        call(libc::SYS_init_module, [[0u8; 8].as_slice().into(), 8.into(), c"".into()])
    }),
    denied("restart the host", "reboot", |_| {
        let magic = [0xfee1_deadu32, 672_274_793].map(|number| Word::from(i64::from(number)));
        call(libc::SYS_reboot, [magic[0], magic[1], 0.into(), 0.into()])
    }),
    denied("read the kernel's log", "syslog", |_| {
        let mut buffer = [0; 8];
        call(libc::SYS_syslog, [4.into(), buffer.as_mut_slice().into(), 64.into()])
    }),
    denied("change the clock", "clock_settime", |_| {
        call(libc::SYS_clock_settime, [0.into(), [0u8; 16].as_slice().into()])
    }),
    denied("ports of the hardware", "ioperm", |_| call(libc::SYS_ioperm, [0x70.into(), 2.into(), 1.into()])),
    allowed(
        "a ring of system calls",
        "io_uring_setup",
        "calls with the same rights, unseen by a filter",
        |_| {
            let mut parameters = [0; 15];
            call(libc::SYS_io_uring_setup, [1.into(), parameters.as_mut_slice().into()])
        },
    ),
    allowed("keys", "add_key", "keys of its own user id", |_| {
        let (user, session) = (c"user".into(), (-3).into());
        call(libc::SYS_add_key, [user, c"mine".into(), c"x".into(), 1.into(), session])
    }),
    allowed("a session of keys", "keyctl", "keys of its own user id", |_| {
        call(libc::SYS_keyctl, [1.into(), 0.into()])
    }),
    // Itself.
    allowed("fork", "fork", "pids.max of its cgroup", |_| fork(libc::SYS_fork, [])),
    allowed("clone", "clone", "pids.max of its cgroup", |_| fork(libc::SYS_clone, [libc::SIGCHLD.into()])),
    allowed("clone from a vCPU's thread", "clone3", "pids.max of its cgroup", |_| clone3(0)),
    allowed(FORK_BOMB, "fork", "pids.max of its cgroup", |_| bomb()),
    allowed("memory that can be run", "mmap", "code is in the process already", |_| {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let nowhere = (-1).into();
        call(libc::SYS_mmap, [0.into(), 4096.into(), protection.into(), flags.into(), nowhere, 0.into()])
    }),
    allowed("not to be ended by a blocked call", "rt_sigaction", "the call is blocked all the same", |_| {
        let mut before = [0; 4];
        let signal = libc::SIGSYS.into();
        call(libc::SYS_rt_sigaction, [signal, 0.into(), before.as_mut_slice().into(), 8.into()])
    }),
    allowed("another VM of its own", "ioctl", "as powerless as this one", |_| {
        let kvm = (3..64).map(|fd| call(libc::SYS_ioctl, [fd.into(), 0xae01.into(), 0.into()]));
        kvm.into_iter().find(|result| *result >= 0).unwrap_or(-i64::from(libc::ENOTTY))
    }),
    denied("type at a terminal", "ioctl", |_| call(libc::SYS_ioctl, [0.into(), 0x5412.into(), c"x".into()])),
    Attempt {
        name: "use what was left open",
        stopped_at: None,
        without_filter: Without::Allowed("only what its VM is made of, which the test looks at"),
        run: |_| {
            let open = |fd: &i32| call(libc::SYS_fcntl, [(*fd).into(), libc::F_GETFD.into()]) >= 0;
            i64::try_from((0..1024).filter(open).count()).unwrap_or(0)
        },
    },
];

const AT_FDCWD: Word = Word::new(libc::AT_FDCWD as i64);

const fn denied(name: &'static str, stopped_at: &'static str, run: fn(&Targets) -> i64) -> Attempt {
    Attempt { name, stopped_at: Some(stopped_at), without_filter: Without::Denied, run }
}

const fn allowed(
    name: &'static str,
    stopped_at: &'static str,
    worth: &'static str,
    run: fn(&Targets) -> i64,
) -> Attempt {
    Attempt { name, stopped_at: Some(stopped_at), without_filter: Without::Allowed(worth), run }
}

fn open(path: &CStr, flags: i32) -> i64 {
    call(libc::SYS_openat, [AT_FDCWD, path.into(), flags.into(), 0o600.into()])
}

fn kill(pid: i32) -> i64 {
    call(libc::SYS_kill, [pid.into(), libc::SIGKILL.into()])
}

fn trace(pid: i32) -> i64 {
    call(libc::SYS_ptrace, [i64::from(libc::PTRACE_SEIZE).into(), pid.into(), 0.into(), 0.into()])
}

fn read_memory(pid: i32) -> i64 {
    let mut buffer = [0u64; 8];
    let word = |word: Word| word.bits();
    let mut here = [word(buffer.as_mut_slice().into()), 64];
    let mut there = [0x40_0000, 64];
    let (here, there): (Word, Word) = (here.as_mut_slice().into(), there.as_mut_slice().into());
    call(libc::SYS_process_vm_readv, [pid.into(), here, 1.into(), there, 1.into(), 0.into()])
}

fn with_pidfd(pid: i32, then: impl FnOnce(i64) -> i64) -> i64 {
    match call(libc::SYS_pidfd_open, [pid.into(), 0.into()]) {
        pidfd @ 0.. => {
            let result = then(pidfd);
            call(libc::SYS_close, [pidfd.into()]);
            result
        }
        error => error,
    }
}

fn socket(family: i32, kind: i32) -> i64 {
    let socket = call(libc::SYS_socket, [family.into(), kind.into(), 0.into()]);
    if socket >= 0 {
        call(libc::SYS_close, [socket.into()]);
    }
    socket
}

fn connect(family: i32, address: &[u8]) -> i64 {
    let socket = call(libc::SYS_socket, [family.into(), libc::SOCK_STREAM.into(), 0.into()]);
    if socket < 0 {
        return socket;
    }
    let length = i64::try_from(address.len()).unwrap_or(0);
    let result = call(libc::SYS_connect, [socket.into(), address.into(), length.into()]);
    call(libc::SYS_close, [socket.into()]);
    result
}

fn clone3(flags: i64) -> i64 {
    let mut arguments = [flags.cast_unsigned(), 0, 0, 0, 17, 0, 0, 0];
    fork(libc::SYS_clone3, [arguments.as_mut_slice().into(), 64.into()])
}

/// Makes processes until there can be no more of them, and ends them. The error, or how many there were.
fn bomb() -> i64 {
    let mut children = Vec::with_capacity(BOMB);
    let mut result = 0;
    while result >= 0 && children.len() < BOMB {
        result = fork_to_stay();
        children.extend((result > 0).then_some(result));
    }
    for child in &children {
        call(libc::SYS_kill, [(*child).into(), libc::SIGKILL.into()]);
        call(libc::SYS_wait4, [(*child).into(), 0.into(), 0.into(), 0.into()]);
    }
    if result < 0 { result } else { i64::try_from(children.len()).unwrap_or(0) }
}
