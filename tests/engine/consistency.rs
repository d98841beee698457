//! A branch is one cut through memory, all vCPUs, the devices and the disk.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::thread::sleep;
use std::time::{Duration, Instant};

use forkd_proto::control::{Branch, Command, Disk, RefusalCode};
use forkd_tests::engine::guest::{DISK_PAIR, Order, pair};
use forkd_tests::engine::process::{Control, Failure, OwnDisk, TinyVm, boot_with_disk, boot_with_disks};
use forkd_tests::measure::raise_descriptor_limit;
use forkd_tests::scale::count;

pub(super) const VCPUS: u8 = 4;
/// The last of them has the first disk, the one before the second, if there is one.
pub(super) const DISK_VCPU: u8 = VCPUS - 1;
pub(super) const SECOND_DISK_VCPU: u8 = VCPUS - 2;
const DISK_BYTES: u64 = 128 << 20;

/// Every other vCPU has made its rounds long before, also on a host with more to do than it can.
const PATIENCE: Duration = Duration::from_secs(60);

/// Three vCPUs write pairs as fast as they can, two of them also on disks of their own. In every branch, and in the source, each
/// finds its pages, its blocks and its registers as it left them, and a request that was on its way is answered once.
#[test]
fn pairs_survive_every_branch() -> Result<(), Failure> {
    // Each branch leaves the source with another layer of its disk to keep open.
    raise_descriptor_limit();
    let disk = Disk { bytes: DISK_BYTES, limit_bytes: DISK_BYTES, base: false, layers: 0, read_only: false };
    let (_process, mut vm) = boot_with_disks(VCPUS, 64 << 20, &[disk, disk])?;
    vm.mailbox.order(Order::StartOthers, DISK_VCPU.into(), SECOND_DISK_VCPU.into())?;
    wait_for_progress(&mut vm)?;
    for round in 0..count(50, 1000) {
        let (mut zygote, _) = vm.branch()?;
        // In `make soak` each branch is looked at.
        if round % count(5, 1) == 0 {
            let mut child = zygote.fork()?;
            wait_for_progress(&mut child).map_err(|error| format!("branch {round}: {error}"))?;
            assert_eq!(torn(&mut child)?, [0; VCPUS as usize], "branch {round}");
        }
    }
    wait_for_progress(&mut vm)?;
    assert_eq!(torn(&mut vm)?, [0; VCPUS as usize], "the source");

    // They would have noticed.
    tear(&mut vm, 1, |vm| vm.mailbox.order(Order::Write, pair(1)[1], u64::MAX).map(|_| ()))?;
    for (number, vcpu) in [DISK_VCPU, SECOND_DISK_VCPU].into_iter().enumerate() {
        for block in DISK_PAIR {
            tear(&mut vm, vcpu, |vm| {
                let disk = vm.disks.get(number).ok_or("the VM has no such disk")?;
                Ok(disk.top.write_all_at(&u64::MAX.to_le_bytes(), place(disk, block.into())?)?)
            })?;
        }
    }
    Ok(())
}

/// Whoever is refused a branch may throw the new top layer away: the VM goes on with the one that it has.
#[test]
fn a_refused_branch_leaves_the_disk_as_it_was() -> Result<(), Failure> {
    let (_process, mut vm) = boot_with_disk(VCPUS, 64 << 20, DISK_BYTES, DISK_BYTES)?;
    let own = vm.disks.first().ok_or("the VM has no disk")?.below.clone();
    vm.mailbox.order(Order::StartOthers, u64::from(DISK_VCPU), 0)?;
    wait_for_progress(&mut vm)?;
    let refused = OwnDisk::new(own)?;
    let (_control, theirs) = Control::new()?;
    // Good up to the clone, which finds that this is no cgroup.
    let no_cgroup = File::open("/")?;
    let request = Command::Branch(Branch { cgroup: true, disks: 1 });
    let descriptors = [theirs.as_fd(), no_cgroup.as_fd(), refused.top.as_fd()];
    match vm.control.call(request, &descriptors)? {
        Err(refusal) => assert_eq!(refusal.code, RefusalCode::Failed, "{}", refusal.message),
        Ok(reply) => return Err(format!("a branch into no cgroup: {reply:?}").into()),
    }
    wait_for_progress(&mut vm)?;
    assert_eq!(torn(&mut vm)?, [0; VCPUS as usize]);
    for block in DISK_PAIR {
        assert_eq!(number_in(&refused, block.into())?, 0);
        assert_ne!(number_in(vm.disks.first().ok_or("the VM has no disk")?, block.into())?, 0);
    }
    Ok(())
}

/// Tears a pair until its vCPU notices: what comes between a check and a write of the vCPU's own is lost.
fn tear(
    vm: &mut TinyVm,
    vcpu: u8,
    attempt: impl Fn(&mut TinyVm) -> Result<(), Failure>,
) -> Result<(), Failure> {
    // What was torn before is noticed or lost by then.
    wait_for_progress(vm)?;
    let before = torn(vm)?;
    for _ in 0..10_000 {
        attempt(vm)?;
        let after = torn(vm)?;
        let noticed = (0..VCPUS).zip(before.iter().zip(&after)).find(|(_, (before, after))| before != after);
        if let Some((by, _)) = noticed {
            assert_eq!(by, vcpu, "{before:?}, then {after:?}");
            return Ok(());
        }
    }
    Err(format!("a torn pair of vCPU {vcpu} goes unnoticed").into())
}

/// Where a block is in the file of the top layer, which ends with all blocks in order.
fn place(disk: &OwnDisk, block: u64) -> Result<u64, Failure> {
    Ok(disk.top.metadata()?.len() - disk.below.disk.bytes + block)
}

/// The number that a block of the top layer begins with; 0 if the layer does not have the block.
pub(super) fn number_in(disk: &OwnDisk, block: u64) -> Result<u64, Failure> {
    let mut number = [0; 8];
    disk.top.read_exact_at(&mut number, place(disk, block)?)?;
    Ok(u64::from_le_bytes(number))
}

/// How many rounds each of the other vCPUs has begun.
fn rounds(vm: &mut TinyVm) -> Result<Vec<u64>, Failure> {
    (0..VCPUS).map(|vcpu| vm.mailbox.order(Order::Read, pair(vcpu)[0], 0)).collect()
}

/// Waits until every other vCPU has begun two more rounds: the second begins with a look at everything that it wrote before
/// and in the first.
pub(super) fn wait_for_progress(vm: &mut TinyVm) -> Result<(), Failure> {
    let before = rounds(vm)?;
    let give_up = Instant::now() + PATIENCE;
    loop {
        let now = rounds(vm)?;
        if now.iter().zip(&before).skip(1).all(|(now, before)| *now >= before + 2) {
            return Ok(());
        }
        if Instant::now() > give_up {
            return Err(format!("not every vCPU goes on: {before:?}, then {now:?}").into());
        }
        sleep(Duration::from_millis(1));
    }
}

/// How often each vCPU found something else than it had written.
pub(super) fn torn(vm: &mut TinyVm) -> Result<Vec<u64>, Failure> {
    (0..VCPUS).map(|vcpu| vm.mailbox.order(Order::Read, pair(vcpu)[2], 0)).collect()
}
