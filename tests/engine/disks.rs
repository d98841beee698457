//! VMs with several disks: each has its own layers, and a branch, a snapshot and a successor have all of them.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use forkd_proto::control::{Branch, Command, Disk, Event, MAX_DISKS, Refusal, RefusalCode, Reply, Stage};
use forkd_store::{Digest, DiskLayer, LayerEntry, Store, Stored};
use forkd_tests::engine::guest::{DISK_PAIR, Order};
use forkd_tests::engine::process::{
    Control, Failure, FrozenDisk, Mailbox, Started, TinyVm, Zygote, boot_with_disks, start, tiny_boot,
    tiny_kernel,
};
use forkd_tests::engine::snapshot::{Host, load_with, persist_with, try_load};

use super::consistency::{DISK_VCPU, SECOND_DISK_VCPU, VCPUS, number_in, torn, wait_for_progress};
use super::place::{hand_over, succeed};

const MEMORY: u64 = 64 << 20;
/// Of different sizes, so that a layer of one is none of the other.
const BYTES: [u64; 2] = [128 << 20, 96 << 20];

fn disk(bytes: u64) -> Disk {
    Disk { bytes, limit_bytes: bytes, base: false, layers: 0, read_only: false }
}

/// A VM with two disks, to each of which a vCPU of its own writes for ever.
fn boot_writing() -> Result<(Started, TinyVm), Failure> {
    let (process, mut vm) = boot_with_disks(VCPUS, MEMORY, &BYTES.map(disk))?;
    vm.mailbox.order(Order::StartOthers, DISK_VCPU.into(), SECOND_DISK_VCPU.into())?;
    check(&mut vm)?;
    Ok((process, vm))
}

/// Every vCPU goes on, and finds on its disk what it has written there.
fn check(vm: &mut TinyVm) -> Result<(), Failure> {
    wait_for_progress(vm)?;
    assert_eq!(torn(vm)?, [0; VCPUS as usize]);
    Ok(())
}

/// The frozen layers of all disks, in order.
fn layers(disks: &[FrozenDisk]) -> Vec<&File> {
    disks.iter().flat_map(|disk| &disk.layers).map(|file| &**file).collect()
}

/// Writes a snapshot of a zygote with two disks. Its manifest names the layers in the order that they come in.
fn persist(
    store: &Store,
    zygote: &mut Zygote,
    tag: &str,
    parent: Option<&Stored>,
    layers: &[&File],
) -> Result<Stored, Failure> {
    persist_with(store, &mut zygote.control, tag, parent, || {
        let layer = |(number, file): (usize, &&File)| {
            let (size, digest) = Digest::of_image(file)?;
            Ok(DiskLayer { id: format!("layer-{number}").parse()?, entry: LayerEntry { digest, size } })
        };
        layers.iter().enumerate().map(layer).collect()
    })
}

/// A fork of a snapshot whose disks are these.
fn load(store: &Store, tag: &str, disks: &[FrozenDisk]) -> Result<(Started, TinyVm), Failure> {
    let host = Host { disk_layers: layers(disks), ..Host::default() };
    let (process, mut zygote) = load_with(store, tag, &host)?;
    zygote.disks = disks.to_vec();
    Ok((process, zygote.fork()?))
}

/// A snapshot of a VM that goes on writing, and one of its child, which is a diff of the first.
#[test]
fn both_disks_are_in_a_snapshot() -> Result<(), Failure> {
    let directory = tempfile::tempdir()?;
    let store = Store::new(directory.path());
    let (_process, mut vm) = boot_writing()?;
    let (mut zygote, _) = vm.branch()?;
    let disks = zygote.disks.clone();
    assert_eq!(layers(&disks).len(), 2);
    let base = persist(&store, &mut zygote, "base", None, &layers(&disks))?;
    check(&mut vm)?;
    check(&mut zygote.fork()?)?;

    let (_loaded, mut child) = load(&store, "base", &disks)?;
    check(&mut child)?;
    let (mut branch, _) = child.branch()?;
    let disks = branch.disks.clone();
    assert_eq!(layers(&disks).len(), 4);
    persist(&store, &mut branch, "next", Some(&base), &layers(&disks))?;
    let (_loaded_again, mut grandchild) = load(&store, "next", &disks)?;
    check(&mut grandchild)?;
    check(&mut child)
}

/// Only the second is written to: the first has no more layers after a branch, and nothing in its top.
#[test]
fn each_disk_has_layers_of_its_own() -> Result<(), Failure> {
    let (_process, mut vm) = boot_with_disks(VCPUS, MEMORY, &BYTES.map(disk))?;
    vm.mailbox.order(Order::StartOthers, 0, SECOND_DISK_VCPU.into())?;
    check(&mut vm)?;
    let before: Vec<u64> = inodes(&vm)?;
    let (mut zygote, _) = vm.branch()?;
    assert_eq!(zygote.disks.iter().map(|disk| disk.layers.len()).collect::<Vec<_>>(), [0, 1]);
    let after = inodes(&vm)?;
    assert_eq!(identify(&mut vm.control)?, [vec![after[0]], vec![before[1], after[1]]]);
    assert_eq!(identify(&mut zygote.control)?, [vec![], vec![before[1]]]);
    check(&mut vm)?;
    let mut child = zygote.fork()?;
    check(&mut child)?;
    for vm in [&vm, &child] {
        let [first, second] = &vm.disks[..] else { return Err("not two disks".into()) };
        for block in DISK_PAIR {
            assert_eq!(number_in(first, block.into())?, 0);
            assert_ne!(number_in(second, block.into())?, 0);
        }
    }
    Ok(())
}

fn inodes(vm: &TinyVm) -> Result<Vec<u64>, Failure> {
    vm.disks.iter().map(|disk| Ok(disk.top.metadata()?.ino())).collect()
}

fn identify(control: &mut Control) -> Result<Vec<Vec<u64>>, Failure> {
    match control.must(Command::Identify, &[])?.0 {
        Reply::Identified { disks, .. } => Ok(disks),
        other => Err(format!("not an identity: {other:?}").into()),
    }
}

#[test]
fn a_successor_has_the_disks_of_its_branch() -> Result<(), Failure> {
    let (_process, mut vm) = boot_writing()?;
    let (mut zygote, _) = vm.branch()?;
    check(&mut vm)?;
    let handed = hand_over(&mut vm)?;
    let (pid, _pidfd) = succeed(&mut zygote, handed)?;
    assert_ne!(pid, vm.pid);
    assert_eq!(vm.control.event()?, Event::Running);
    check(&mut vm)
}

#[test]
fn a_full_disk_is_told_by_its_number() -> Result<(), Failure> {
    let disks = [disk(BYTES[0]), Disk { limit_bytes: 4096, ..disk(BYTES[1]) }];
    let (_process, mut vm) = boot_with_disks(VCPUS, MEMORY, &disks)?;
    vm.mailbox.order(Order::StartOthers, DISK_VCPU.into(), SECOND_DISK_VCPU.into())?;
    assert_eq!(vm.control.event()?, Event::OutOfDisk { disk: 1, limit_bytes: 4096 });
    let torn = torn(&mut vm)?;
    assert_eq!(torn[usize::from(DISK_VCPU)], 0, "{torn:?}");
    Ok(())
}

/// The driver writes all the same, and is told that it cannot.
#[test]
fn a_disk_that_is_read_only_stays_as_it_is() -> Result<(), Failure> {
    let disks = [disk(BYTES[0]), Disk { read_only: true, ..disk(BYTES[1]) }];
    let (_process, mut vm) = boot_with_disks(VCPUS, MEMORY, &disks)?;
    vm.mailbox.order(Order::StartOthers, DISK_VCPU.into(), SECOND_DISK_VCPU.into())?;
    wait_for_progress(&mut vm)?;
    let (mut zygote, _) = vm.branch()?;
    assert_eq!(zygote.disks.iter().map(|disk| disk.layers.len()).collect::<Vec<_>>(), [1, 0]);
    let mut child = zygote.fork()?;
    wait_for_progress(&mut child)?;
    for vm in [&mut vm, &mut child] {
        let torn = torn(vm)?;
        assert_eq!(torn[usize::from(DISK_VCPU)], 0, "{torn:?}");
        assert_ne!(torn[usize::from(SECOND_DISK_VCPU)], 0, "{torn:?}");
        assert_eq!(number_in(&vm.disks[1], DISK_PAIR[0].into())?, 0);
    }
    Ok(())
}

/// Asks a new process to boot a guest with this many disks and top layers for them.
fn try_boot(disks: usize, tops: usize) -> Result<Result<(), Refusal>, Failure> {
    let (_process, mut control) = start()?;
    let (mut mailbox, theirs) = Mailbox::new()?;
    let (kernel, tops) = (tiny_kernel()?, files(tops)?);
    let mut descriptors = vec![kernel.as_fd()];
    descriptors.extend(tops.iter().chain([&theirs]).map(AsFd::as_fd));
    let request = tiny_boot(1, MEMORY, &vec![disk(1 << 20); disks]);
    let booted = control.call(Command::Boot(request), &descriptors)?;
    if booted.is_ok() {
        assert_eq!(mailbox.order(Order::Add, 1, 0)?, 1);
    }
    Ok(booted.map(|_| ()))
}

fn files(count: usize) -> Result<Vec<OwnedFd>, Failure> {
    (0..count).map(|_| Ok(tempfile::tempfile()?.into())).collect()
}

#[track_caller]
fn assert_refused<T>(result: Result<T, Refusal>, code: RefusalCode, words: &str) {
    let refusal = result.err().expect("a refusal");
    assert_eq!(refusal.code, code, "{}", refusal.message);
    assert!(refusal.message.contains(words), "{}", refusal.message);
}

#[test]
fn what_does_not_fit_the_disks_is_refused() -> Result<(), Failure> {
    assert_eq!(try_boot(MAX_DISKS, MAX_DISKS)?, Ok(()));
    let too_many = try_boot(MAX_DISKS + 1, MAX_DISKS + 1)?;
    assert_refused(too_many, RefusalCode::Malformed, "5 disks, expected at most 4");
    assert_refused(try_boot(2, 1)?, RefusalCode::Malformed, "boot comes with");

    let (_process, mut vm) = boot_writing()?;
    for count in [0, 1, 3] {
        let (_control, theirs) = Control::new()?;
        let tops = files(count)?;
        let descriptors: Vec<_> = [&theirs].into_iter().chain(&tops).map(AsFd::as_fd).collect();
        let request = Branch { cgroup: false, disks: u8::try_from(count)? };
        let refused = vm.control.call(Command::Branch(request), &descriptors)?;
        assert_refused(refused, RefusalCode::Malformed, "a VM with 2 disks");
    }
    check(&mut vm)?;

    let (mut zygote, _) = vm.branch()?;
    zygote.disks.pop();
    let pending = zygote.ask()?;
    let words = zygote.accept(pending)?.first_words()?;
    let Event::Exited { stage: Stage::Restore, detail, .. } = words else {
        return Err(format!("a child with one of two disks says {words:?}").into());
    };
    assert!(detail.contains("not those of the frozen VM"), "{detail}");
    Ok(())
}

#[test]
fn a_snapshot_is_loaded_with_the_layers_of_all_its_disks() -> Result<(), Failure> {
    let directory = tempfile::tempdir()?;
    let store = Store::new(directory.path());
    let (_process, mut vm) = boot_writing()?;
    let (mut zygote, _) = vm.branch()?;
    let disks = zygote.disks.clone();
    let [first, second] = layers(&disks)[..] else { return Err("not two layers".into()) };
    persist(&store, &mut zygote, "good", None, &[first, second])?;
    persist(&store, &mut zygote, "short", None, &[first])?;
    persist(&store, &mut zygote, "swapped", None, &[second, first])?;
    let (_empty, mut control) = start()?;
    let mut refuse = |tag: &str, disk_layers: Vec<&File>, words: &str| {
        let host = Host { disk_layers, ..Host::default() };
        let refused = try_load(&mut control, &store.open_chain(&tag.parse()?)?, &host)?;
        assert_refused(refused, RefusalCode::Failed, words);
        Ok::<_, Failure>(())
    };
    refuse("good", vec![first], "the disks need 2 layers, 1 came with the request")?;
    refuse("good", vec![second, first], "disk layer 0 of snapshot good")?;
    refuse("short", vec![first], "the disks need 2 layers, 1 came with the request")?;
    refuse("short", vec![first, second], "the disks need 1 layers, 2 came with the request")?;
    // All that the manifest says is true, and its author has taken the one for the other.
    refuse("swapped", vec![second, first], "the disk")?;

    let host = Host { disk_layers: vec![first, second], ..Host::default() };
    let loaded = try_load(&mut control, &store.open_chain(&"good".parse()?)?, &host)?;
    assert_eq!(loaded, Ok(()));
    Ok(())
}

/// A manifest may name more than the VM has disks for.
#[test]
fn layers_of_no_disk_are_refused() -> Result<(), Failure> {
    let directory = tempfile::tempdir()?;
    let store = Store::new(directory.path());
    let (_process, vm) = boot_with_disks(1, MEMORY, &[])?;
    let layer = tempfile::tempfile()?;
    layer.set_len(1 << 20)?;
    persist(&store, &mut vm.freeze()?, "base", None, &[&layer])?;
    let (_empty, mut control) = start()?;
    let host = Host { disk_layers: vec![&layer], ..Host::default() };
    let refused = try_load(&mut control, &store.open_chain(&"base".parse()?)?, &host)?;
    assert_refused(refused, RefusalCode::Failed, "the disks need 0 layers, 1 came with the request");
    Ok(())
}
