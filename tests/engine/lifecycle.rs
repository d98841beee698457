//! Boot, pause, freeze, fork, branch: what each does, and what each state refuses.

use std::fs;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use forkd_proto::control::{Branch, Command, Event, ExitReason, RefusalCode, Stage, StateName};
use forkd_tests::engine::guest::{FREE_MEMORY, Order, pair};
use forkd_tests::engine::process::{Control, Failure, Started, TinyVm, boot, boot_with, start};
use forkd_tests::measure::huge_kib;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use rustix::thread::{Gid, Uid, set_thread_res_gid, set_thread_res_uid};
use serde_json::json;

const MEMORY: u64 = 64 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn a_guest_takes_orders() -> Result<(), Failure> {
    let (_process, mut vm) = boot(MEMORY)?;
    assert_eq!(vm.mailbox.order(Order::Add, 5, 0)?, 5);
    assert_eq!(vm.mailbox.order(Order::Add, 37, 0)?, 42);
    assert_eq!(vm.mailbox.order(Order::Write, FREE_MEMORY, 7)?, 7);
    assert_eq!(vm.mailbox.order(Order::Read, FREE_MEMORY, 0)?, 7);
    let counts = |vm: &mut TinyVm| vm.control.stats().map(|stats| stats.kvm.unwrap_or_default());
    let before = counts(&mut vm)?;
    assert_eq!(vm.mailbox.order(Order::Dirty, FREE_MEMORY, 100)?, 100);
    let after = counts(&mut vm)?;
    assert!(after.exits > before.exits, "{before:?} {after:?}");
    assert_eq!(vm.mailbox.order(Order::Read, FREE_MEMORY + 99 * 4096, 0)?, 42);
    assert_eq!(vm.control.stats()?.state, StateName::Running);
    Ok(())
}

/// Every vCPU of the largest VM runs, also in a child. One more is refused.
#[test]
fn a_vm_has_32_vcpus_at_most() -> Result<(), Failure> {
    const VCPUS: u8 = 32;
    let (_process, mut vm) = boot_with(VCPUS, MEMORY)?;
    vm.mailbox.order(Order::StartOthers, 0, 0)?;
    let all_go_on = |vm: &mut TinyVm| -> Result<(), Failure> {
        for vcpu in 1..VCPUS {
            let before = vm.mailbox.order(Order::Read, pair(vcpu)[0], 0)?;
            let give_up = Instant::now() + PATIENCE;
            while vm.mailbox.order(Order::Read, pair(vcpu)[0], 0)? <= before {
                assert!(Instant::now() < give_up, "vCPU {vcpu} stands still");
            }
        }
        Ok(())
    };
    all_go_on(&mut vm)?;
    let (mut zygote, _) = vm.branch()?;
    // Two such VMs at once are slow on few cores.
    drop(vm);
    all_go_on(&mut zygote.fork()?)?;
    let error = boot_with(VCPUS + 1, MEMORY).err().ok_or("33 vCPUs")?;
    assert!(error.to_string().contains("1 to 32 vCPUs, not 33"), "{error}");
    Ok(())
}

/// Writing after a branch takes huge pages apart. They are whole again soon, also while the branch lives, and as long as it
/// shares a part of one with the guest, that one is left alone.
#[test]
fn huge_pages_are_mended_after_a_branch() -> Result<(), Failure> {
    const WRITTEN: u64 = 32 << 20;
    let begin = FREE_MEMORY.next_multiple_of(2 << 20);
    // The guest's code and stack are in another huge page, of which it only ever writes a part.
    let whole = WRITTEN >> 10;
    let boot_written = || -> Result<(Started, TinyVm), Failure> {
        let (process, mut vm) = boot(MEMORY)?;
        vm.mailbox.order(Order::Dirty, begin, WRITTEN >> 12)?;
        Ok((process, vm))
    };
    // The free memory of a busy host is in small pieces. Root may have it put together.
    let compact = || fs::write("/proc/sys/vm/compact_memory", "1");
    let (mut _process, mut vm) = boot_written()?;
    for _ in 0..5 {
        if huge_kib(vm.pid)? < whole {
            compact()?;
            (_process, vm) = boot_written()?;
        }
    }
    let before = huge_kib(vm.pid)?;
    assert!(before >= whole, "this host gave {before} KiB of huge pages");
    let (mut zygote, _) = vm.branch()?;
    let wait_for = |wanted: u64| -> Result<(), Failure> {
        let give_up = Instant::now() + PATIENCE;
        while huge_kib(vm.pid)? < wanted {
            assert!(Instant::now() < give_up, "{} of {wanted} KiB of huge pages", huge_kib(vm.pid)?);
            std::thread::sleep(Duration::from_millis(50));
            // Where there are none to be had, the VM waits for them.
            compact()?;
        }
        Ok(())
    };
    // All of them but one page of the last.
    vm.mailbox.order(Order::Dirty, begin, (WRITTEN >> 12) - 1)?;
    wait_for(whole - 2048)?;
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(huge_kib(vm.pid)?, whole - 2048, "a page that is partly shared has been copied");
    vm.mailbox.order(Order::Dirty, begin, WRITTEN >> 12)?;
    wait_for(whole)?;
    // Each has its own content still.
    vm.mailbox.order(Order::Write, begin, 1234)?;
    let mut child = zygote.fork()?;
    for at in (begin..begin + WRITTEN).step_by(1 << 20).skip(1) {
        assert_eq!(
            vm.mailbox.order(Order::Read, at, 0)?,
            child.mailbox.order(Order::Read, at, 0)?,
            "at {at:#x}"
        );
    }
    assert_eq!(vm.mailbox.order(Order::Read, begin, 0)?, 1234);
    assert_ne!(child.mailbox.order(Order::Read, begin, 0)?, 1234);
    Ok(())
}

#[test]
fn a_paused_guest_stands_still_and_goes_on() -> Result<(), Failure> {
    let (_process, mut vm) = boot(MEMORY)?;
    for round in 0..20 {
        vm.control.must(Command::Pause, &[])?;
        let exits = vm.control.stats()?.exits;
        vm.mailbox.tell(Order::Add, 1, 0)?;
        assert_eq!(vm.control.stats()?.exits, exits);
        vm.control.must(Command::Resume, &[])?;
        assert_eq!(vm.mailbox.result()?, round + 1);
    }
    Ok(())
}

#[test]
fn children_share_the_past_and_nothing_else() -> Result<(), Failure> {
    let (_process, mut vm) = boot(MEMORY)?;
    vm.mailbox.order(Order::Add, 1000, 0)?;
    vm.mailbox.order(Order::Write, FREE_MEMORY, 1)?;
    vm.mailbox.order(Order::Vector, 0x1234_5678_9abc_def0, 5)?;
    let mut zygote = vm.freeze()?;
    let mut children = Vec::new();
    for index in 0..10 {
        let mut child = zygote.fork()?;
        assert_eq!(
            child.mailbox.order(Order::Read, FREE_MEMORY, 0)?,
            1,
            "child {index} sees another's write"
        );
        assert_eq!(child.mailbox.order(Order::Add, index, 0)?, 1000 + index);
        assert_eq!(child.mailbox.order(Order::Vector, index, 7)?, 0x1234_5678_9abc_def5);
        child.mailbox.order(Order::Write, FREE_MEMORY, 100 + index)?;
        children.push(child);
    }
    for (index, child) in (0..).zip(&mut children) {
        assert_eq!(child.mailbox.order(Order::Read, FREE_MEMORY, 0)?, 100 + index);
        assert_eq!(child.mailbox.order(Order::Add, 0, 0)?, 1000 + index);
        assert_eq!(child.mailbox.order(Order::Vector, 0, 0)?, index + 7);
    }
    Ok(())
}

#[test]
fn a_branch_leaves_the_source_running() -> Result<(), Failure> {
    let (_process, mut vm) = boot(MEMORY)?;
    let mut branches = Vec::new();
    for round in 1..=10 {
        assert_eq!(vm.mailbox.order(Order::Add, 1, 0)?, round);
        branches.push(vm.branch()?.0);
    }
    assert_eq!(vm.mailbox.order(Order::Add, 1, 0)?, 11);
    for (round, zygote) in (1..).zip(&mut branches) {
        for _ in 0..2 {
            assert_eq!(zygote.fork()?.mailbox.order(Order::Add, 0, 0)?, round);
        }
    }
    Ok(())
}

#[test]
fn generations() -> Result<(), Failure> {
    let (_process, mut vm) = boot(MEMORY)?;
    let mut alive = Vec::new();
    for depth in 1..=16 {
        assert_eq!(vm.mailbox.order(Order::Add, 1, 0)?, depth);
        let (mut zygote, _) = vm.branch()?;
        let child = zygote.fork()?;
        alive.push((std::mem::replace(&mut vm, child), zygote));
    }
    assert_eq!(vm.mailbox.order(Order::Add, 0, 0)?, 16);
    for (depth, (ancestor, _)) in (1..).zip(&mut alive) {
        assert_eq!(ancestor.mailbox.order(Order::Add, 0, 0)?, depth);
    }
    Ok(())
}

#[test]
fn endings_are_reported() -> Result<(), Failure> {
    for (order, expected) in [(Order::PowerOff, ExitReason::Shutdown), (Order::Crash, ExitReason::Reset)] {
        let (_process, vm) = boot(MEMORY)?;
        let mut child = vm.freeze()?.fork()?;
        child.mailbox.tell(order, 0, 0)?;
        match child.control.event()? {
            Event::Exited { stage: Stage::Run, reason, detail } => assert_eq!(reason, expected, "{detail}"),
            other => panic!("{order:?}: {other:?}"),
        }
    }
    Ok(())
}

#[test]
fn every_state_refuses_what_it_cannot_do() -> Result<(), Failure> {
    let (_process, mut control) = start()?;
    let refused =
        |control: &mut forkd_tests::engine::process::Control, command: Command| -> Result<_, Failure> {
            let name = command.name();
            match control.call(command, &[])? {
                Err(refusal) => Ok(refusal.code),
                Ok(reply) => Err(format!("{name} was done: {reply:?}").into()),
            }
        };
    for command in [Command::Pause, Command::Resume, Command::Freeze] {
        assert_eq!(refused(&mut control, command)?, RefusalCode::State);
    }
    assert_eq!(control.stats()?.state, StateName::Empty);

    let (_process, mut vm) = boot(MEMORY)?;
    assert_eq!(refused(&mut vm.control, Command::Resume)?, RefusalCode::State);
    vm.control.must(Command::Pause, &[])?;
    assert_eq!(refused(&mut vm.control, Command::Pause)?, RefusalCode::State);
    vm.control.must(Command::Resume, &[])?;
    assert_eq!(vm.mailbox.order(Order::Add, 1, 0)?, 1);
    let mut zygote = vm.freeze()?;
    for command in [Command::Pause, Command::Resume, Command::Freeze] {
        assert_eq!(refused(&mut zygote.control, command)?, RefusalCode::State);
    }
    assert_eq!(zygote.fork()?.mailbox.order(Order::Add, 1, 0)?, 2);
    Ok(())
}

/// Descriptors that a process has no room for do not arrive. It says so to whoever sent them, and goes on.
#[test]
fn a_process_with_too_many_descriptors_says_so() -> Result<(), Failure> {
    let (_process, mut vm) = boot(MEMORY)?;
    let pid = Pid::from_raw(vm.pid);
    let limit = getrlimit(Resource::Nofile);
    // Stdin, stdout and stderr are there: none is left for a new one.
    let none_left = Rlimit { current: Some(3), maximum: limit.maximum };
    let before = limit_descriptors(pid, none_left)?;
    let (_control, theirs) = Control::new()?;
    let branch = Command::Branch(Branch { cgroup: false, disks: 0 });
    match vm.control.call(branch, &[theirs.as_fd()])? {
        Err(refusal) => assert_eq!(refusal.code, RefusalCode::Failed, "{}", refusal.message),
        Ok(reply) => return Err(format!("a branch without a socket: {reply:?}").into()),
    }
    limit_descriptors(pid, before)?;
    assert_eq!(vm.mailbox.order(Order::Add, 1, 0)?, 1);
    vm.branch()?;
    Ok(())
}

/// Limits another process. Root may not do that everywhere, but whoever has the process' own ids may.
fn limit_descriptors(pid: Option<Pid>, limit: Rlimit) -> Result<Rlimit, Failure> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid.map_or(0, Pid::as_raw_pid)))?;
    let uid = status.lines().find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().next());
    let uid: u32 = uid.ok_or("no user id")?.parse()?;
    // Ids are a thread's own, and go with it.
    let limited = std::thread::spawn(move || {
        if rustix::process::geteuid().is_root() {
            set_thread_res_gid(Gid::from_raw(uid), None, None)?;
            set_thread_res_uid(Uid::from_raw(uid), None, None)?;
        }
        prlimit(pid, Resource::Nofile, limit)
    });
    Ok(limited.join().map_err(|_| "the thread panicked")??)
}

/// A process answers everything, and goes on.
#[test]
fn requests_that_are_none_are_refused() -> Result<(), Failure> {
    let (_process, mut vm) = boot(MEMORY)?;
    for (message, id, code) in [
        (json!("pause"), 0, RefusalCode::Malformed),
        (json!({ "version": 1, "id": 70, "command": "fly" }), 70, RefusalCode::Malformed),
        (
            json!({ "version": 1, "id": 71, "command": { "boot": { "vcpus": -1 } } }),
            71,
            RefusalCode::Malformed,
        ),
        (json!({ "version": 9, "id": 72, "command": { "fly": {} }, "more": [] }), 72, RefusalCode::Version),
        (
            json!({ "version": 1, "id": 73, "command": { "branch": { "cgroup": false, "disk": false } } }),
            73,
            RefusalCode::Malformed,
        ),
    ] {
        vm.control.send_raw(&message)?;
        match vm.control.reply(id)? {
            Err(refusal) => assert_eq!(refusal.code, code, "{message}: {}", refusal.message),
            Ok(reply) => panic!("{message} was done: {reply:?}"),
        }
    }
    assert_eq!(vm.mailbox.order(Order::Add, 1, 0)?, 1);
    Ok(())
}
