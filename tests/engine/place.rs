//! A VM's place: who may talk to it, and who may take it over.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use forkd_proto::control::{Command, Event, Fork, Reply, Stage, StateName};
use forkd_tests::engine::guest::{FREE_MEMORY, Order, pair};
use forkd_tests::engine::process::{
    Control, Failure, TinyVm, Zygote, boot, boot_listening, boot_with_disk, own_disks,
};

const MEMORY: u64 = 64 << 20;

/// What a VM hands over, and the socket for its successor.
pub(super) struct Handed {
    descriptors: Vec<OwnedFd>,
    predecessor: OwnedFd,
    fork: Fork,
}

pub(super) fn hand_over(vm: &mut TinyVm) -> Result<Handed, Failure> {
    let (predecessor, successor) = std::os::unix::net::UnixStream::pair()?;
    let (reply, descriptors) = vm.control.must_all(Command::HandOver, &[successor.as_fd()])?;
    let Reply::HandedOver { devices } = reply else {
        return Err(format!("the VM answers {reply:?}").into());
    };
    assert_eq!(descriptors.len(), 1 + devices.own().len());
    let fork = Fork { cgroup: false, successor: true, uid: None, devices };
    Ok(Handed { descriptors, predecessor: predecessor.into(), fork })
}

/// Gives what was handed over to a child of the zygote, with top layers of its own for its disks.
pub(super) fn succeed(zygote: &mut Zygote, handed: Handed) -> Result<(i32, OwnedFd), Failure> {
    let disks = own_disks(&zygote.disks)?;
    let mut descriptors = vec![handed.descriptors[0].as_fd(), handed.predecessor.as_fd()];
    descriptors.extend(disks.iter().map(|disk| disk.top.as_fd()));
    descriptors.extend(handed.descriptors[1..].iter().map(AsFd::as_fd));
    match zygote.control.must(Command::Fork(handed.fork), &descriptors)? {
        (Reply::Forked { pid }, Some(pidfd)) => Ok((pid, pidfd)),
        other => Err(format!("a fork is {other:?}").into()),
    }
}

#[test]
fn a_vm_goes_back_to_its_branch_and_keeps_its_place() -> Result<(), Failure> {
    let (_process, mut vm) = boot(MEMORY)?;
    vm.mailbox.order(Order::Add, 1, 0)?;
    let (mut zygote, _) = vm.branch()?;
    let mut pids = vec![vm.pid];
    for round in 0..5 {
        assert_eq!(vm.mailbox.order(Order::Add, 10, 0)?, 11, "round {round}");
        vm.mailbox.order(Order::Write, FREE_MEMORY, 99)?;
        let handed = hand_over(&mut vm)?;
        let (pid, _pidfd) = succeed(&mut zygote, handed)?;
        assert!(!pids.contains(&pid));
        pids.push(pid);
        // The same control socket and the same mailbox, and a guest that knows nothing of what came after the branch.
        assert_eq!(vm.control.event()?, Event::Running);
        assert_eq!(vm.control.stats()?.state, StateName::Running);
        assert_eq!(vm.mailbox.order(Order::Read, FREE_MEMORY, 0)?, 0);
        assert_eq!(vm.mailbox.order(Order::Add, 0, 0)?, 1);
    }
    // And forward again: the branch of a VM that took another's place.
    let (mut again, _) = vm.branch()?;
    assert_eq!(again.fork()?.mailbox.order(Order::Add, 0, 0)?, 1);
    Ok(())
}

/// Whatever becomes of the successor, the VM goes on.
#[test]
fn a_vm_without_a_successor_goes_on() -> Result<(), Failure> {
    let (_process, mut vm) = boot(MEMORY)?;
    vm.mailbox.order(Order::Add, 1, 0)?;
    let (mut zygote, _) = vm.branch()?;
    vm.mailbox.order(Order::Add, 10, 0)?;

    // Whoever asked has thought better of it, or has died.
    drop(hand_over(&mut vm)?);
    assert_eq!(vm.control.event()?, Event::Kept);
    assert_eq!(vm.mailbox.order(Order::Add, 0, 0)?, 11);

    // The successor cannot be made.
    let mut handed = hand_over(&mut vm)?;
    handed.fork.devices.mailbox = false;
    handed.descriptors.truncate(1);
    succeed(&mut zygote, handed)?;
    let first = vm.control.event()?;
    assert!(matches!(first, Event::Exited { stage: Stage::Restore, .. }), "{first:?}");
    assert_eq!(vm.control.event()?, Event::Kept);
    assert_eq!(vm.mailbox.order(Order::Add, 0, 0)?, 11);

    // A paused VM stays paused.
    vm.control.must(Command::Pause, &[])?;
    drop(hand_over(&mut vm)?);
    assert_eq!(vm.control.event()?, Event::Kept);
    assert_eq!(vm.control.stats()?.state, StateName::Paused);
    vm.control.must(Command::Resume, &[])?;
    assert_eq!(vm.mailbox.order(Order::Add, 0, 0)?, 11);
    Ok(())
}

#[test]
fn a_vm_outlives_whoever_talks_to_it() -> Result<(), Failure> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("control");
    let (_process, mut vm) = boot_listening(MEMORY, &path)?;
    vm.mailbox.order(Order::Add, 1, 0)?;
    for round in 1..5 {
        vm.control = Control::connect(&path)?;
        assert_eq!(vm.control.stats()?.state, StateName::Running);
        assert_eq!(vm.mailbox.order(Order::Add, 1, 0)?, 1 + round);
    }

    // A place is handed over with its listening socket; the next client finds the successor there.
    let (mut zygote, _) = vm.branch()?;
    vm.mailbox.order(Order::Add, 100, 0)?;
    let handed = hand_over(&mut vm)?;
    succeed(&mut zygote, handed)?;
    vm.control = Control::connect(&path)?;
    assert_eq!(vm.control.event()?, Event::Running);
    assert_eq!(vm.mailbox.order(Order::Add, 0, 0)?, 5);
    vm.control.must(Command::Shutdown, &[])?;
    Ok(())
}

/// A process says who it is: to a daemon that lost its pidfd, and its count of layers in the middle of a branch.
#[test]
fn a_process_knows_itself_and_its_disk() -> Result<(), Failure> {
    let (_process, mut vm) = boot_with_disk(2, MEMORY, 16 << 20, 16 << 20)?;
    let tops = |vm: &TinyVm| Ok::<_, Failure>(vm.disks.first().ok_or("no disk")?.top.metadata()?.ino());
    let first = tops(&vm)?;
    assert_eq!(identify(&mut vm.control)?, (vm.pid, vec![vec![first]]));
    // Nothing was written: the layer is gone.
    let (mut idle, _) = vm.branch()?;
    let second = tops(&vm)?;
    assert_eq!(identify(&mut vm.control)?, (vm.pid, vec![vec![second]]));
    assert_eq!(identify(&mut idle.control)?, (idle.pid, vec![vec![]]));
    vm.mailbox.order(Order::StartOthers, 1, 0)?;
    while vm.mailbox.order(Order::Read, pair(1)[0], 0)? < 2 {}
    let (mut zygote, _) = vm.branch()?;
    assert_eq!(identify(&mut vm.control)?, (vm.pid, vec![vec![second, tops(&vm)?]]));
    assert_eq!(identify(&mut zygote.control)?, (zygote.pid, vec![vec![second]]));
    vm.control.must(Command::Pause, &[])?;
    assert_eq!(identify(&mut vm.control)?.1[0].len(), 2);
    Ok(())
}

/// What a process says of itself; its pidfd is its own.
fn identify(control: &mut Control) -> Result<(i32, Vec<Vec<u64>>), Failure> {
    let (Reply::Identified { pid, disks }, Some(pidfd)) = control.must(Command::Identify, &[])? else {
        return Err("not an identity".into());
    };
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
    assert!(info.contains(&format!("Pid:\t{pid}\n")), "{info}");
    Ok((pid, disks))
}
