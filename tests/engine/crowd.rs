//! Many at once, many in a row, and deaths among them.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use forkd_tests::engine::guest::{FREE_MEMORY, Order};
use forkd_tests::engine::process::{Failure, boot};
use forkd_tests::measure::raise_descriptor_limit;
use forkd_tests::process::signal;
use forkd_tests::scale::count;
use rustix::process::Signal;

const MEMORY: u64 = 64 << 20;

/// Each sees the parent's memory, its own writes, and nobody else's.
#[test]
fn a_thousand_children_at_once() -> Result<(), Failure> {
    raise_descriptor_limit();
    let (_process, mut vm) = boot(MEMORY)?;
    vm.mailbox.order(Order::Add, 7, 0)?;
    vm.mailbox.order(Order::Dirty, FREE_MEMORY, 16)?;
    let mut zygote = vm.freeze()?;
    let mut children = Vec::new();
    for index in 0..u64::from(count(100, 1000)) {
        let mut child = zygote.fork()?;
        child.mailbox.order(Order::Write, FREE_MEMORY + index % 16 * 4096, 1000 + index)?;
        children.push(child);
    }
    for (index, child) in (0..).zip(&mut children) {
        for page in 0..16 {
            let expected = if page == index % 16 { 1000 + index } else { 7 };
            let found = child.mailbox.order(Order::Read, FREE_MEMORY + page * 4096, 0)?;
            assert_eq!(found, expected, "page {page} of child {index}");
        }
    }
    Ok(())
}

/// A zygote, a source and a child are killed; those that are left go on.
#[test]
fn a_death_hurts_nobody_else() -> Result<(), Failure> {
    let (_process, mut source) = boot(MEMORY)?;
    source.mailbox.order(Order::Add, 1, 0)?;
    let (mut zygote, _) = source.branch()?;
    let (mut other_zygote, _) = source.branch()?;
    let mut children = [zygote.fork()?, zygote.fork()?, other_zygote.fork()?];

    kill(zygote.pid)?;
    assert_eq!(children[0].mailbox.order(Order::Add, 1, 0)?, 2);
    assert_eq!(source.mailbox.order(Order::Add, 10, 0)?, 11);
    kill(source.pid)?;
    for child in &mut children {
        assert!(child.mailbox.order(Order::Add, 1, 0)? >= 2);
    }
    kill(children[1].pid)?;
    assert_eq!(children[0].mailbox.order(Order::Add, 1, 0)?, 4);
    assert_eq!(children[2].mailbox.order(Order::Add, 1, 0)?, 3);
    assert_eq!(other_zygote.fork()?.mailbox.order(Order::Add, 0, 0)?, 1);
    Ok(())
}

/// Children that come and go leave nothing in the zygote: no descriptor, no mapping, no process.
#[test]
fn cycles_leave_nothing_behind() -> Result<(), Failure> {
    let (_process, mut vm) = boot(MEMORY)?;
    vm.mailbox.order(Order::Add, 3, 0)?;
    let mut zygote = vm.freeze()?;
    let mut seen = Vec::new();
    for cycle in 0..count(200, 10_000) {
        let mut child = zygote.fork()?;
        assert_eq!(child.mailbox.order(Order::Add, 1, 0)?, 4);
        kill(child.pid)?;
        if cycle == 20 {
            settle(zygote.pid)?;
            seen.push(Traces::of(zygote.pid)?);
        }
    }
    settle(zygote.pid)?;
    let after = Traces::of(zygote.pid)?;
    assert_eq!(seen, [after]);
    Ok(())
}

/// The same for branches of a running VM: also its own descriptors and mappings stay what they were.
#[test]
fn branches_leave_nothing_behind() -> Result<(), Failure> {
    let (_process, mut vm) = boot(MEMORY)?;
    let mut seen = Vec::new();
    for cycle in 1..=count(100, 1000) {
        assert_eq!(vm.mailbox.order(Order::Add, 1, 0)?, u64::from(cycle));
        let (mut zygote, _) = vm.branch()?;
        assert_eq!(zygote.fork()?.mailbox.order(Order::Add, 0, 0)?, u64::from(cycle));
        drop(zygote);
        if cycle == 20 {
            settle(vm.pid)?;
            seen.push(Traces::of(vm.pid)?);
        }
    }
    settle(vm.pid)?;
    assert_eq!(seen, [Traces::of(vm.pid)?]);
    Ok(())
}

/// A forked process has exactly the descriptors that it should: its control socket and what its VM needs.
#[test]
fn a_child_has_no_descriptor_of_its_parents() -> Result<(), Failure> {
    let (_process, mut source) = boot(MEMORY)?;
    source.mailbox.order(Order::Add, 1, 0)?;
    let alone = descriptors(source.pid)?;
    let (mut zygote, _) = source.branch()?;
    // Its control socket, stdin, stdout and stderr, and the device that its children make their VMs with.
    let zygotes = descriptors(zygote.pid)?;
    assert_eq!(zygotes.len(), 5, "{zygotes:?}");
    assert!(zygotes.iter().all(|name| !name.contains("kvm-") && !name.contains("event")), "{zygotes:?}");
    let mut child = zygote.fork()?;
    child.mailbox.order(Order::Add, 1, 0)?;
    let childs = descriptors(child.pid)?;
    assert_eq!(childs.len(), alone.len(), "{childs:?} against {alone:?}");
    Ok(())
}

fn kill(pid: i32) -> Result<(), Failure> {
    signal(Signal::KILL, u32::try_from(pid)?)
}

/// What a process has.
#[derive(Debug, PartialEq, Eq)]
struct Traces {
    descriptors: usize,
    mappings: usize,
    threads: usize,
    children: usize,
}

impl Traces {
    fn of(pid: i32) -> Result<Traces, Failure> {
        let proc = format!("/proc/{pid}");
        Ok(Traces {
            descriptors: descriptors(pid)?.len(),
            mappings: fs::read_to_string(format!("{proc}/maps"))?.lines().count(),
            threads: fs::read_dir(format!("{proc}/task"))?.count(),
            children: fs::read_to_string(format!("{proc}/task/{pid}/children"))?.split_whitespace().count(),
        })
    }
}

fn descriptors(pid: i32) -> Result<Vec<String>, Failure> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd"))?;
    entries.map(|entry| Ok(fs::read_link(entry?.path())?.to_string_lossy().into_owned())).collect()
}

/// Waits until the children that were killed or let go are gone.
fn settle(pid: i32) -> Result<(), Failure> {
    let begun = Instant::now();
    loop {
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
        let children: BTreeSet<&str> = children.split_whitespace().collect();
        if children.is_empty() || begun.elapsed() > Duration::from_secs(20) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
