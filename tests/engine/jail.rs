//! The walls of VM processes, seen from outside.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use forkd_proto::control::{Command, Devices, Event, Fork, RefusalCode, Reply};
use forkd_store::Store;
use forkd_tests::engine::guest::Order;
use forkd_tests::engine::process::{Control, Failure, Mailbox, boot};
use forkd_tests::engine::snapshot::{load, persist};
use rustix::process::geteuid;

const PATIENCE: Duration = Duration::from_secs(60);
const MEMORY: u64 = 64 << 20;
/// A child's own id.
const UID: u32 = 2_000_054_321;

/// What `/proc/PID/status` says, by its names.
fn status(pid: i32) -> Result<BTreeMap<String, String>, Failure> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    Ok(lines.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect())
}

/// Looks at everything that holds for every VM process.
fn assert_jailed(pid: i32, uid: u32, capabilities: u64, filters: u32) -> Result<(), Failure> {
    let status = status(pid)?;
    let words = |name: &str| status.get(name).map(String::as_str).unwrap_or_default();
    let number = |name: &str| words(name).parse::<u32>().unwrap_or_default();
    for ids in ["Uid", "Gid"] {
        let all: Vec<_> = words(ids).split_whitespace().map(str::to_owned).collect();
        assert_eq!(all, vec![uid.to_string(); 4], "{ids} of {pid}");
    }
    assert_eq!(words("Groups"), "");
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        let expected = if ["CapPrm", "CapEff"].contains(&set) { capabilities } else { 0 };
        assert_eq!(u64::from_str_radix(words(set), 16)?, expected, "{set}");
    }
    assert_eq!((words("NoNewPrivs"), words("Seccomp")), ("1", "2"));
    assert_eq!(number("Seccomp_filters"), filters, "filters of the control thread");
    assert_eq!(fs::read_dir(format!("/proc/{pid}/root"))?.count(), 0, "its root is empty");
    for namespace in ["mnt", "ipc", "uts", "net"] {
        let of = |who: &str| fs::read_link(format!("/proc/{who}/ns/{namespace}"));
        assert_ne!(of(&pid.to_string())?, of("self")?, "{namespace}");
    }
    // Whoever looks after it still sees what it takes.
    assert!(fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?.contains("Pss:"));
    Ok(())
}

/// What only root's VM processes have, which give their children user ids.
const TO_GIVE_IDS: u64 = 1 << 6 | 1 << 7;

#[test]
fn every_process_of_a_family_is_jailed() -> Result<(), Failure> {
    if !geteuid().is_root() {
        return Ok(());
    }
    let own = 2_000_000_000;
    let (_process, mut vm) = boot(MEMORY)?;
    vm.mailbox.order(Order::Add, 1, 0)?;
    assert_jailed(vm.pid, own, 0, 2)?;
    for task in fs::read_dir(format!("/proc/{}/task", vm.pid))? {
        let path = task?.path().join("status");
        let status = fs::read_to_string(&path)?;
        assert!(status.contains("CapEff:\t0000000000000000"), "{status}");
        let main = status.contains(&format!("\nPid:\t{}\n", vm.pid));
        // Its filter is the first thing a thread does, and a vCPU may answer before the devices' thread does its first.
        let give_up = Instant::now() + PATIENCE;
        while !main && !fs::read_to_string(&path)?.contains("Seccomp_filters:\t3") {
            assert!(Instant::now() < give_up, "a thread without its own filter:\n{status}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let (mut zygote, _) = vm.branch()?;
    assert_jailed(zygote.pid, own, 0, 2)?;
    let mut child = zygote.fork()?;
    assert_eq!(child.mailbox.order(Order::Add, 1, 0)?, 2);
    assert_jailed(child.pid, own, 0, 2)?;

    // No guest has run in a zygote that was loaded: its children may have ids of their own.
    let directory = tempfile::tempdir()?;
    let store = Store::new(directory.path());
    persist(&store, &mut zygote.control, "base", None, Vec::new())?;
    let (_loaded, mut loaded) = load(&store, "base")?;
    assert_jailed(loaded.pid, own, TO_GIVE_IDS, 1)?;
    let (mut control, theirs) = Control::new()?;
    let (mut mailbox, mailbox_theirs) = Mailbox::new()?;
    let devices = Devices { mailbox: true, ..Devices::default() };
    let fork = |uid| {
        Command::Fork(Fork { cgroup: false, successor: false, uid: Some(uid), devices: devices.clone() })
    };
    let descriptors = [theirs.as_fd(), mailbox_theirs.as_fd()];
    // The child of a process in which a guest has run has that one's id.
    match zygote.control.call(fork(UID), &descriptors)? {
        Err(refusal) => assert_eq!(refusal.code, RefusalCode::Failed, "{}", refusal.message),
        Ok(reply) => return Err(format!("a guest's zygote gives away ids: {reply:?}").into()),
    }
    let (reply, _pidfd) = loaded.control.must(fork(UID), &descriptors)?;
    let Reply::Forked { pid } = reply else { return Err(format!("{reply:?}").into()) };
    assert_eq!(control.event()?, Event::Running);
    assert_eq!(mailbox.order(Order::Add, 1, 0)?, 2);
    assert_jailed(pid, UID, 0, 2)?;
    // Root's is nobody's.
    let (mut control, theirs) = Control::new()?;
    let (_mailbox, mailbox_theirs) = Mailbox::new()?;
    loaded.control.must(fork(0), &[theirs.as_fd(), mailbox_theirs.as_fd()])?;
    match control.event()? {
        Event::Exited { detail, .. } => assert!(detail.contains("0 is root's"), "{detail}"),
        other => return Err(format!("a child of root's: {other:?}").into()),
    }
    Ok(())
}
