//! Every system call that a VM process makes: which of its threads, and what for. There are no others.

use libc::{
    SYS_accept4, SYS_brk, SYS_capset, SYS_clock_gettime, SYS_clock_nanosleep, SYS_clone3, SYS_close,
    SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_pwait, SYS_epoll_wait, SYS_eventfd2, SYS_exit,
    SYS_exit_group, SYS_fallocate, SYS_fcntl, SYS_fdatasync, SYS_fstat, SYS_fsync, SYS_ftruncate, SYS_futex,
    SYS_getpid, SYS_getpriority, SYS_getrandom, SYS_getsockopt, SYS_gettid, SYS_ioctl, SYS_lseek,
    SYS_madvise, SYS_memfd_create, SYS_mmap, SYS_mprotect, SYS_mremap, SYS_munmap, SYS_nanosleep,
    SYS_newfstatat, SYS_pidfd_open, SYS_poll, SYS_ppoll, SYS_prctl, SYS_pread64, SYS_pwrite64, SYS_read,
    SYS_recvfrom, SYS_recvmsg, SYS_restart_syscall, SYS_rseq, SYS_rt_sigprocmask, SYS_rt_sigreturn,
    SYS_sched_getaffinity, SYS_sched_yield, SYS_seccomp, SYS_sendmsg, SYS_sendto, SYS_set_robust_list,
    SYS_setpriority, SYS_setresgid, SYS_setresuid, SYS_shutdown, SYS_sigaltstack, SYS_statx,
    SYS_timer_create, SYS_timer_delete, SYS_timer_settime, SYS_write,
};

/// What a thread does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Role {
    /// Carries out commands, in a process that has not run a guest.
    Trusted = 1,
    /// Carries out commands, in one that has or will.
    Control = 2,
    Vcpu = 4,
    Devices = 8,
    /// Writes a snapshot: all that its process does.
    Persist = 16,
}

impl Role {
    pub const ALL: [Role; 5] = [Role::Trusted, Role::Control, Role::Vcpu, Role::Devices, Role::Persist];

    /// The thread's name, for messages.
    pub fn name(self) -> &'static str {
        match self {
            Role::Trusted | Role::Control => "the control thread",
            Role::Vcpu => "a vCPU thread",
            Role::Devices => "the device thread",
            Role::Persist => "the writer of a snapshot",
        }
    }
}

/// A set of roles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Roles(u8);

/// What comes first and allows everything that any thread needs is in every set.
const TRUSTED: Roles = Roles(Role::Trusted as u8);
const CONTROL: Roles = TRUSTED.and(Role::Control);
const VCPU: Roles = CONTROL.and(Role::Vcpu);
const DEVICES: Roles = CONTROL.and(Role::Devices);
const PERSIST: Roles = CONTROL.and(Role::Persist);
const THREADS: Roles = VCPU.and(Role::Devices);
const DEVICES_PERSIST: Roles = DEVICES.and(Role::Persist);
const EVERY: Roles = THREADS.and(Role::Persist);

impl Roles {
    const fn and(self, role: Role) -> Roles {
        Roles(self.0 | role as u8)
    }

    const fn has(self, role: Role) -> bool {
        self.0 & role as u8 != 0
    }
}

/// A call and who may make it.
#[derive(Debug)]
pub struct Call {
    pub number: i64,
    who: Roles,
    pub when: When,
    /// For readers of the table.
    #[expect(dead_code, reason = "a reason is for readers")]
    why: &'static str,
}

#[derive(Debug)]
pub enum When {
    Always,
    /// If an argument has one of these values.
    Argument {
        index: u8,
        values: &'static [Value],
    },
}

#[derive(Debug)]
pub struct Value {
    pub number: u64,
    who: Roles,
}

impl Call {
    pub fn is_for(&self, role: Role) -> bool {
        self.who.has(role)
    }
}

impl Value {
    pub fn is_for(&self, role: Role) -> bool {
        self.who.has(role)
    }
}

const fn call(number: i64, who: Roles, why: &'static str) -> Call {
    Call { number, who, when: When::Always, why }
}

const fn only(number: i64, who: Roles, index: u8, values: &'static [Value], why: &'static str) -> Call {
    Call { number, who, when: When::Argument { index, values }, why }
}

const fn value(number: u64, who: Roles) -> Value {
    Value { number, who }
}

pub const CALLS: &[Call] = &[
    // Descriptors that the process was given, and those that it makes of nothing.
    call(SYS_read, EVERY, "eventfds, the console's input, sockets, entropy, kernels"),
    call(SYS_write, EVERY, "eventfds, the console's log, sockets"),
    call(SYS_pread64, EVERY, "disks, snapshots, page tables"),
    call(SYS_pwrite64, EVERY, "disks, snapshots, the console's log"),
    call(SYS_lseek, EVERY, "kernels, sparse files of a snapshot, the console's log"),
    call(SYS_fstat, EVERY, "sizes of files that came with a request"),
    call(SYS_newfstatat, PERSIST, "the same: what glibc makes of fstat"),
    call(SYS_statx, PERSIST, "the same: what Rust makes of it"),
    call(SYS_ftruncate, EVERY, "the console's log, a new layer, a new snapshot"),
    call(SYS_fallocate, DEVICES_PERSIST, "blocks that the guest discards"),
    call(SYS_fsync, DEVICES_PERSIST, "a flush of the guest's, the end of a snapshot"),
    call(SYS_fdatasync, DEVICES_PERSIST, "a flush of the guest's"),
    call(SYS_close, EVERY, "all of them"),
    only(SYS_fcntl, EVERY, 1, FCNTL, "second descriptors, and sockets that never wait"),
    only(SYS_ioctl, THREADS, 1, IOCTL, "KVM"),
    call(SYS_eventfd2, CONTROL, "interrupt lines, notifications"),
    call(SYS_memfd_create, CONTROL, "the top layer of a disk that is frozen for ever"),
    call(SYS_epoll_create1, CONTROL, "what the device thread waits on"),
    call(SYS_epoll_ctl, THREADS, "the same; a driver that resets its device changes it"),
    call(SYS_epoll_wait, DEVICES, "the same"),
    call(SYS_epoll_pwait, DEVICES, "the same"),
    call(SYS_poll, EVERY, "the control socket, the mailbox, whether anybody wants a snapshot"),
    call(SYS_ppoll, EVERY, "the same"),
    // Sockets that it was given. It can make none, and connect none.
    call(SYS_accept4, DEVICES, "the next daemon, connections to the guest"),
    call(SYS_recvmsg, CONTROL, "commands with their descriptors"),
    call(SYS_recvfrom, DEVICES, "connections to the guest"),
    call(SYS_sendmsg, EVERY, "answers and events, last words of any thread"),
    call(SYS_sendto, EVERY, "the mailbox, connections to the guest, last words"),
    call(SYS_shutdown, THREADS, "connections to the guest"),
    call(SYS_getsockopt, CONTROL, "what kind of socket came with a request"),
    // Memory.
    call(SYS_brk, EVERY, "the allocator"),
    only(
        SYS_mmap,
        EVERY,
        2,
        MMAP,
        "guest memory, stacks, the allocator, KVM's page of a vCPU; never executable",
    ),
    call(SYS_munmap, EVERY, "stacks, the allocator"),
    call(SYS_mremap, EVERY, "the allocator"),
    only(SYS_mprotect, EVERY, 2, MMAP, "guard pages, the allocator; never executable"),
    call(SYS_madvise, EVERY, "huge pages, pages that a child will write, stacks of threads that have ended"),
    // Threads and processes.
    call(SYS_clone3, PERSIST, "threads, and the fork of fork; of its flags `world` takes care"),
    call(SYS_set_robust_list, EVERY, "a new thread"),
    call(SYS_rseq, EVERY, "a new thread"),
    call(SYS_sigaltstack, EVERY, "a new thread, and the end of one"),
    call(
        SYS_sched_getaffinity,
        EVERY,
        "a new thread asks for its stack, the allocator and the writer for CPUs",
    ),
    call(SYS_sched_yield, EVERY, "locks of the standard library"),
    call(SYS_gettid, EVERY, "panics"),
    call(SYS_getpid, EVERY, "panics, and who this process is"),
    call(SYS_timer_create, CONTROL, "kicks of vCPU threads: a timer is for its own process only"),
    call(SYS_timer_settime, CONTROL, "the same"),
    call(SYS_timer_delete, CONTROL, "the same"),
    call(SYS_pidfd_open, CONTROL, "itself, for a daemon that has found it again"),
    call(SYS_rt_sigprocmask, EVERY, "a new thread"),
    call(SYS_rt_sigreturn, EVERY, "the end of a kick"),
    call(SYS_restart_syscall, EVERY, "a wait that a signal has interrupted"),
    call(SYS_futex, EVERY, "locks"),
    call(SYS_nanosleep, EVERY, "a panic waits for another's last words"),
    call(SYS_clock_nanosleep, EVERY, "the same"),
    call(SYS_clock_gettime, EVERY, "where the kernel does not show its clock to programs"),
    call(SYS_getrandom, EVERY, "generation ids, hash maps"),
    call(SYS_getpriority, PERSIST, "politeness"),
    call(SYS_setpriority, PERSIST, "politeness"),
    only(SYS_prctl, EVERY, 0, PRCTL, "names of threads, this filter's successors, not to be dumpable"),
    only(SYS_seccomp, CONTROL, 0, SECCOMP, "the filters of its threads"),
    call(SYS_exit, EVERY, "the end of a thread"),
    call(SYS_exit_group, EVERY, "the end"),
    // What a zygote that no guest has run in does to its children.
    call(SYS_setresuid, TRUSTED, "each child has a user id of its own"),
    call(SYS_setresgid, TRUSTED, "the same"),
    call(SYS_capset, TRUSTED, "and no capabilities"),
];

const FCNTL: &[Value] = &[
    value(libc::F_DUPFD_CLOEXEC as u64, EVERY),
    value(libc::F_GETFD as u64, EVERY),
    value(libc::F_SETFD as u64, EVERY),
    value(libc::F_GETFL as u64, EVERY),
    value(libc::F_SETFL as u64, EVERY),
];

/// Readable, writable or none: mapped memory is never executable.
const MMAP: &[Value] = &[
    value(libc::PROT_NONE as u64, EVERY),
    value(libc::PROT_READ as u64, EVERY),
    value((libc::PROT_READ | libc::PROT_WRITE) as u64, EVERY),
];

const PRCTL: &[Value] = &[
    value(libc::PR_SET_NAME as u64, EVERY),
    value(libc::PR_SET_NO_NEW_PRIVS as u64, EVERY),
    value(libc::PR_GET_TID_ADDRESS as u64, EVERY),
    value(libc::PR_SET_DUMPABLE as u64, CONTROL),
    // glibc names what it maps.
    value(libc::PR_SET_VMA as u64, EVERY),
];

const SECCOMP: &[Value] = &[value(libc::SECCOMP_SET_MODE_FILTER as u64, CONTROL)];

/// KVM's by their names in the kernel's headers, and what makes a socket not wait.
const IOCTL: &[Value] = &[
    value(0xae80, VCPU),         // KVM_RUN
    value(0x5421, DEVICES),      // FIONBIO
    value(0xae00, CONTROL),      // KVM_GET_API_VERSION
    value(0xae01, CONTROL),      // KVM_CREATE_VM
    value(0xc004_ae02, CONTROL), // KVM_GET_MSR_INDEX_LIST
    value(0xae03, CONTROL),      // KVM_CHECK_EXTENSION
    value(0xae04, CONTROL),      // KVM_GET_VCPU_MMAP_SIZE
    value(0xc008_ae05, CONTROL), // KVM_GET_SUPPORTED_CPUID
    value(0xae41, CONTROL),      // KVM_CREATE_VCPU
    value(0x4020_ae46, CONTROL), // KVM_SET_USER_MEMORY_REGION
    value(0xae47, CONTROL),      // KVM_SET_TSS_ADDR
    value(0xae60, CONTROL),      // KVM_CREATE_IRQCHIP
    value(0xc208_ae62, CONTROL), // KVM_GET_IRQCHIP
    value(0x8208_ae63, CONTROL), // KVM_SET_IRQCHIP
    value(0x4020_ae76, CONTROL), // KVM_IRQFD
    value(0x4040_ae79, CONTROL), // KVM_IOEVENTFD
    value(0x4030_ae7b, CONTROL), // KVM_SET_CLOCK
    value(0x8030_ae7c, CONTROL), // KVM_GET_CLOCK
    value(0x8090_ae81, CONTROL), // KVM_GET_REGS
    value(0x4090_ae82, CONTROL), // KVM_SET_REGS
    value(0x8138_ae83, CONTROL), // KVM_GET_SREGS
    value(0x4138_ae84, CONTROL), // KVM_SET_SREGS
    value(0xc008_ae88, CONTROL), // KVM_GET_MSRS
    value(0x4008_ae89, CONTROL), // KVM_SET_MSRS
    value(0x8400_ae8e, CONTROL), // KVM_GET_LAPIC
    value(0x4400_ae8f, CONTROL), // KVM_SET_LAPIC
    value(0x4008_ae90, CONTROL), // KVM_SET_CPUID2
    value(0xc008_ae91, CONTROL), // KVM_GET_CPUID2
    value(0x8004_ae98, CONTROL), // KVM_GET_MP_STATE
    value(0x4004_ae99, CONTROL), // KVM_SET_MP_STATE
    value(0x8040_ae9f, CONTROL), // KVM_GET_VCPU_EVENTS
    value(0x4040_aea0, CONTROL), // KVM_SET_VCPU_EVENTS
    value(0x8080_aea1, CONTROL), // KVM_GET_DEBUGREGS
    value(0x4080_aea2, CONTROL), // KVM_SET_DEBUGREGS
    value(0xaea2, CONTROL),      // KVM_SET_TSC_KHZ
    value(0xaea3, CONTROL),      // KVM_GET_TSC_KHZ
    value(0x9000_aea4, CONTROL), // KVM_GET_XSAVE
    value(0x5000_aea5, CONTROL), // KVM_SET_XSAVE
    value(0x8188_aea6, CONTROL), // KVM_GET_XCRS
    value(0x4188_aea7, CONTROL), // KVM_SET_XCRS
    value(0xaead, CONTROL),      // KVM_KVMCLOCK_CTRL
    value(0xaece, CONTROL),      // KVM_GET_STATS_FD
    value(0xc040_aed5, CONTROL), // KVM_PRE_FAULT_MEMORY
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// The first filter must allow what the later ones do, and a call stands in the table once.
    #[test]
    fn the_table_is_sound() {
        let numbers: BTreeSet<_> = CALLS.iter().map(|call| call.number).collect();
        assert_eq!(numbers.len(), CALLS.len());
        for call in CALLS {
            assert!(call.is_for(Role::Trusted), "{}", call.number);
            if let When::Argument { values, .. } = call.when {
                // The filter of the control thread takes away calls, not values.
                let both = |value: &Value| value.is_for(Role::Trusted) && value.is_for(Role::Control);
                assert!(values.iter().all(both), "{}", call.number);
                // One without any would be allowed whatever its arguments are.
                for role in Role::ALL.into_iter().filter(|role| call.is_for(*role)) {
                    assert!(values.iter().any(|value| value.is_for(role)), "{} {role:?}", call.number);
                }
            }
        }
    }

    /// What no thread may ever do, and a longer list would allow.
    #[test]
    fn the_worst_is_not_in_it() {
        let never = [
            libc::SYS_execve,
            libc::SYS_execveat,
            libc::SYS_open,
            libc::SYS_openat,
            libc::SYS_openat2,
            libc::SYS_socket,
            libc::SYS_connect,
            libc::SYS_bind,
            libc::SYS_ptrace,
            libc::SYS_process_vm_readv,
            libc::SYS_process_vm_writev,
            libc::SYS_kill,
            libc::SYS_pidfd_getfd,
            libc::SYS_mount,
            libc::SYS_unshare,
            libc::SYS_setns,
            libc::SYS_bpf,
            libc::SYS_perf_event_open,
            libc::SYS_keyctl,
            libc::SYS_io_uring_setup,
            libc::SYS_userfaultfd,
            libc::SYS_rt_sigaction,
            libc::SYS_clone,
            libc::SYS_fork,
            libc::SYS_vfork,
            libc::SYS_pidfd_send_signal,
            libc::SYS_setuid,
        ];
        for number in never {
            assert!(CALLS.iter().all(|call| call.number != number), "{number}");
        }
    }
}
