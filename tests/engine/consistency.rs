//! A branch is one cut through memory and all vCPUs.

use forkd_tests::engine::guest::{Order, pair};
use forkd_tests::engine::process::{Failure, TinyVm, boot_with};
use forkd_tests::scale::count;

const VCPUS: u8 = 4;

/// Three vCPUs write pairs as fast as they can. In every branch, and in the source, each finds its pages and its register as
/// it left them.
#[test]
fn pairs_survive_every_branch() -> Result<(), Failure> {
    let (_process, mut vm) = boot_with(VCPUS, 64 << 20)?;
    vm.mailbox.order(Order::StartOthers, 0, 0)?;
    wait_for_progress(&mut vm, &[0; VCPUS as usize])?;
    for round in 0..count(50, 1000) {
        let (mut zygote, _) = vm.branch()?;
        // Not every one of a thousand branches needs a VM of its own to be looked at while the next is taken.
        if round % 10 == 0 {
            let mut child = zygote.fork()?;
            let seen = rounds(&mut child)?;
            wait_for_progress(&mut child, &seen)?;
            assert_eq!(torn(&mut child)?, 0, "branch {round}");
        }
    }
    let seen = rounds(&mut vm)?;
    wait_for_progress(&mut vm, &seen)?;
    assert_eq!(torn(&mut vm)?, 0, "the source");

    // They would have noticed; a write of ours that comes between a check and a write of theirs is lost, so it is repeated.
    for _ in 0..10_000 {
        vm.mailbox.order(Order::Write, pair(1)[1], u64::MAX)?;
        if torn(&mut vm)? > 0 {
            return Ok(());
        }
    }
    Err("a torn pair goes unnoticed".into())
}

/// How many rounds each of the other vCPUs has made.
fn rounds(vm: &mut TinyVm) -> Result<Vec<u64>, Failure> {
    (0..VCPUS).map(|vcpu| vm.mailbox.order(Order::Read, pair(vcpu)[0], 0)).collect()
}

/// Waits until every other vCPU has gone on.
fn wait_for_progress(vm: &mut TinyVm, before: &[u64]) -> Result<(), Failure> {
    for _ in 0..100_000 {
        let now = rounds(vm)?;
        if now.iter().zip(before).skip(1).all(|(now, before)| now > before) {
            return Ok(());
        }
    }
    Err(format!("not every vCPU goes on: {before:?}, then {:?}", rounds(vm)?).into())
}

fn torn(vm: &mut TinyVm) -> Result<u64, Failure> {
    let counts = (1..VCPUS).map(|vcpu| vm.mailbox.order(Order::Read, pair(vcpu)[2], 0));
    counts.sum()
}
