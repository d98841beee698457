//! Pages that children are known to use first: they are theirs before they run, and nothing else changes.

use std::ops::Range;
use std::time::{Duration, Instant};

use forkd_proto::control::{Command, Prefault, RefusalCode, Reply};
use forkd_proto::page_runs::PageRuns;
use forkd_tests::engine::guest::Order;
use forkd_tests::engine::process::{Failure, TinyVm, Zygote, boot, give_page_table};

const MEMORY: u64 = 64 << 20;
const PAGE: u64 = 4096;
const PATIENCE: Duration = Duration::from_secs(10);
/// What the guest has written before it is frozen: from here on, in whole huge pages.
const WRITTEN: Range<u64> = (16 << 20) / PAGE..(24 << 20) / PAGE;

fn list(runs: &[Range<u64>]) -> PageRuns {
    PageRuns::first_of(runs.iter().cloned())
}

fn tell(zygote: &mut Zygote, written: PageRuns, touched: PageRuns) -> Result<(), Failure> {
    zygote
        .control
        .must(Command::Prefault(Prefault { written, touched, ..Prefault::default() }), &[])
        .map(drop)
}

/// Whose number of pages is 1000.
fn frozen() -> Result<(impl Sized, Zygote), Failure> {
    let (process, mut vm) = boot(MEMORY)?;
    vm.mailbox.order(Order::Add, 1000, 0)?;
    vm.mailbox.order(Order::Dirty, WRITTEN.start * PAGE, WRITTEN.end - WRITTEN.start)?;
    Ok((process, vm.freeze()?))
}

/// Those of a VM's own pages that its parent had.
fn own(vm: &mut TinyVm) -> Result<Vec<Range<u64>>, Failure> {
    give_page_table(&mut vm.control, vm.pid)?;
    match vm.control.must(Command::OwnPages, &[])?.0 {
        Reply::OwnPages(pages) => Ok(pages.runs().filter(|run| run.start >= WRITTEN.start).collect()),
        other => Err(format!("own pages are {other:?}").into()),
    }
}

fn read(vm: &mut TinyVm, page: u64) -> Result<u64, Failure> {
    vm.mailbox.order(Order::Read, page * PAGE, 0)
}

#[test]
fn a_child_has_them_before_it_runs() -> Result<(), Failure> {
    let (_process, mut zygote) = frozen()?;
    let mut before = zygote.fork()?;
    assert_eq!(own(&mut before)?, []);
    let expected = [WRITTEN.start + 3..WRITTEN.start + 9, WRITTEN.start + 700..WRITTEN.start + 701];
    tell(&mut zygote, list(&expected), list(&[0..16, WRITTEN.start + 600..WRITTEN.start + 900]))?;

    let mut child = zygote.fork()?;
    assert_eq!(own(&mut child)?, expected, "no more and no less");
    let mut other = zygote.fork()?;
    assert_eq!(own(&mut other)?, expected);
    assert_eq!(own(&mut before)?, [], "one that was there already");
    for page in [WRITTEN.start, WRITTEN.start + 3, WRITTEN.start + 8, WRITTEN.start + 700, WRITTEN.end - 1] {
        assert_eq!(read(&mut child, page)?, 1000, "page {page}");
        child.mailbox.order(Order::Write, page * PAGE, 7)?;
        assert_eq!(read(&mut child, page)?, 7, "page {page}");
        for vm in [&mut before, &mut other, &mut zygote.fork()?] {
            assert_eq!(read(vm, page)?, 1000, "page {page}");
        }
    }
    assert_eq!(child.mailbox.order(Order::Add, 1, 0)?, 1001);
    assert_eq!(own(&mut other)?, expected, "what a sibling writes is not theirs");

    // What is told last counts.
    tell(&mut zygote, PageRuns::default(), PageRuns::default())?;
    assert_eq!(own(&mut zygote.fork()?)?, []);
    Ok(())
}

/// The fork of a branch makes all of a VM's pages shared. It gets those back that it uses first, and children of the branch begin with
/// them, too.
#[test]
fn a_branched_vm_has_them_again() -> Result<(), Failure> {
    let (_process, mut zygote) = frozen()?;
    let expected = [WRITTEN.start + 3..WRITTEN.start + 9, WRITTEN.start + 700..WRITTEN.start + 701];
    tell(&mut zygote, list(&expected), PageRuns::default())?;
    let mut child = zygote.fork()?;
    child.mailbox.order(Order::Write, (WRITTEN.start + 3) * PAGE, 7)?;
    child.mailbox.order(Order::Write, (WRITTEN.start + 20) * PAGE, 7)?;
    let mut branches = Vec::new();
    for round in 0..3 {
        branches.push(child.branch()?.0);
        // It does so when nobody asks it for anything.
        let begun = Instant::now();
        while own(&mut child)? != expected {
            assert!(begun.elapsed() < PATIENCE, "round {round}: {:?}", own(&mut child)?);
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(child.mailbox.order(Order::Add, 1, 0)?, 1001 + round);
        assert_eq!(read(&mut child, WRITTEN.start + 20)?, 7, "the guest runs as before");
    }
    for (round, branch) in (0..).zip(&mut branches) {
        let mut grandchild = branch.fork()?;
        assert_eq!(own(&mut grandchild)?, expected);
        let pages = [3, 4, 20].map(|page| read(&mut grandchild, WRITTEN.start + page));
        assert_eq!(pages.into_iter().collect::<Result<Vec<_>, _>>()?, [7, 1000, 7]);
        assert_eq!(grandchild.mailbox.order(Order::Add, 1, 0)?, 1001 + round);
    }
    Ok(())
}

/// Memory that nobody has used is the zygote's, once, and of it a child has what it writes.
#[test]
fn fresh_memory_is_shared() -> Result<(), Failure> {
    let (_process, mut zygote) = frozen()?;
    let huge = (40 << 20) / PAGE..(42 << 20) / PAGE;
    let fresh = list(std::slice::from_ref(&huge));
    zygote.control.must(Command::Prefault(Prefault { fresh, ..Prefault::default() }), &[])?;
    let mut child = zygote.fork()?;
    assert_eq!(own(&mut child)?, []);
    child.mailbox.order(Order::Write, (huge.start + 7) * PAGE, 5)?;
    let written = huge.start + 7..huge.start + 8;
    assert_eq!(own(&mut child)?, std::slice::from_ref(&written));
    for (vm, words) in [(&mut child, [0, 5]), (&mut zygote.fork()?, [0, 0])] {
        assert_eq!([read(vm, huge.start)?, read(vm, huge.start + 7)?], words);
    }
    Ok(())
}

#[test]
fn a_list_of_nonsense_costs_nothing_but_time() -> Result<(), Failure> {
    let (_process, mut zygote) = frozen()?;
    // Page tables, code, what the guest never had, and every second page of what it has.
    let hole = (40 << 20) / PAGE;
    let every_second = WRITTEN.step_by(2).map(|page| page..page + 1);
    let all = [0..32, 256..270].into_iter().chain(every_second).chain(std::iter::once(hole..hole + 3));
    tell(&mut zygote, PageRuns::first_of(all), list(&[5..6, hole + 600..hole + 1700]))?;
    for _ in 0..3 {
        let mut child = zygote.fork()?;
        assert_eq!(child.mailbox.order(Order::Add, 1, 0)?, 1001);
        for page in [WRITTEN.start, WRITTEN.start + 1, WRITTEN.end - 1] {
            assert_eq!(read(&mut child, page)?, 1000);
        }
        for page in [hole, hole + 2, hole + 700] {
            assert_eq!(read(&mut child, page)?, 0);
            assert_eq!(child.mailbox.order(Order::Write, page * PAGE, 5)?, 5);
        }
    }
    Ok(())
}

#[test]
fn what_cannot_be_is_refused() -> Result<(), Failure> {
    let (_process, mut vm) = boot(MEMORY)?;
    let prefault = |written, touched| Command::Prefault(Prefault { written, touched, ..Prefault::default() });
    let none = PageRuns::default;
    let refused = |vm: &mut TinyVm, command| match vm.control.call(command, &[]) {
        Ok(Err(refusal)) => Ok(refusal.code),
        other => Err(format!("{other:?}")),
    };
    assert_eq!(refused(&mut vm, prefault(none(), none()))?, RefusalCode::State, "a VM that runs");
    assert_eq!(refused(&mut vm, Command::OwnPages)?, RefusalCode::State, "without a page table");
    let mut zygote = vm.freeze()?;
    let last = MEMORY / PAGE;
    for (written, touched) in [(last..last + 1, 0..1), (0..1, last - 1..last + 1)] {
        let command = prefault(list(&[written]), list(&[touched]));
        let refusal = zygote.control.call(command, &[])?.err().ok_or("it was taken")?;
        assert_eq!(refusal.code, RefusalCode::Failed);
        assert!(refusal.message.contains("16385 of a memory of 16384"), "{}", refusal.message);
    }
    assert!(
        matches!(zygote.control.call(Command::OwnPages, &[])?, Err(refusal) if refusal.code == RefusalCode::State)
    );
    // More than a list may have cannot even be said.
    for written in [serde_json::json!([0, 4097]), serde_json::json!([1])] {
        let command = serde_json::json!({ "prefault": { "written": written, "touched": [] } });
        zygote.control.send_raw(&serde_json::json!({ "version": 1, "id": 99, "command": command }))?;
        let refusal = zygote.control.reply(99)?.err().ok_or("it was taken")?;
        assert_eq!(refusal.code, RefusalCode::Malformed);
    }
    tell(&mut zygote, PageRuns::first_of(std::iter::once(last - 1..last)), none())?;
    assert_eq!(zygote.fork()?.mailbox.order(Order::Add, 1, 0)?, 1);
    Ok(())
}
