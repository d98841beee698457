//! A VM process whose guest has taken it over: everything that it tries is denied.
//!
//! Each attempt is made twice: in a process whose system calls are not filtered, to see what the other walls are worth alone; and
//! in one as it is in the product, which must end with the name of the call. What was tried is printed.

use std::fmt::Write;
use std::fs::{self, File};
use std::io::Write as _;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::{Child, Command as Program, Stdio};

use forkd_proto::control::{Boot, Command, CpuModel, Devices, Event, ExitReason, Fork};
use forkd_tests::binaries;
use forkd_tests::engine::guest::{self, Order};
use forkd_tests::engine::process::{Control, Failure, Mailbox, boot};
use forkd_tests::hostile::{
    self, AIM_PORT, ATTEMPTS, Attempt, PORT, Without, abstract_name, describe, result_on,
};
use rustix::process::geteuid;

const MEMORY: u64 = 64 << 20;
/// Other ids than the victim's: another sandbox's.
const UIDS: [u32; 2] = [2_000_050_001, 2_000_050_002];
/// Of a process that was given none: the victim's.
const SAME_UID: u32 = 2_000_000_000;
/// What a VM process may have open.
const KINDS: [&str; 8] = [
    "/dev/null",
    "/dev/kvm",
    "anon_inode:kvm-vm",
    "anon_inode:kvm-vcpu",
    "anon_inode:[eventfd]",
    "anon_inode:[eventpoll]",
    "socket:",
    "/tmp/#",
];

fn devices() -> Devices {
    Devices { serial: true, mailbox: true, ..Devices::default() }
}

/// A hostile process with a guest. It ends with this value.
struct Hostile {
    process: Child,
    control: Control,
    mailbox: Mailbox,
    console: File,
}

impl Drop for Hostile {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn start(victim: i32, port: u16, uid: u32, filtered: bool) -> Result<Hostile, Failure> {
    let (mut control, theirs) = Control::new()?;
    let process = Program::new(binaries::directory().join("hostile-vmm"))
        .args(["run", "--uid", &uid.to_string()])
        .env(hostile::FILTER, if filtered { "on" } else { "off" })
        .stdin(Stdio::from(theirs))
        .spawn()?;
    let (mut mailbox, mailbox_theirs) = Mailbox::new()?;
    let mut kernel = tempfile::tempfile()?;
    kernel.write_all(&guest::elf())?;
    let console = tempfile::tempfile()?;
    let boot = Boot {
        vcpus: 1,
        memory_bytes: MEMORY,
        command_line: String::new(),
        initramfs: false,
        cpu: CpuModel::Host,
        devices: devices(),
    };
    let descriptors = [kernel.as_fd(), console.as_fd(), mailbox_theirs.as_fd()];
    control.must(Command::Boot(boot), &descriptors)?;
    let aim = victim.to_le_bytes().into_iter().chain(port.to_le_bytes());
    for (port, byte) in (u64::from(AIM_PORT)..).zip(aim) {
        mailbox.order(Order::Out, port, byte.into())?;
    }
    Ok(Hostile { process, control, mailbox, console })
}

/// All that a console has said.
fn said(console: &File) -> Result<String, Failure> {
    use std::os::unix::fs::FileExt;
    let mut text = vec![0; usize::try_from(console.metadata()?.len())?];
    console.read_exact_at(&mut text, 0)?;
    Ok(String::from_utf8(text)?)
}

/// What attempts come to without a filter.
fn without_filter(hostile: &mut Hostile, wanted: impl Fn(&Attempt) -> bool) -> Result<Vec<i64>, Failure> {
    let mut results = Vec::new();
    for (number, attempt) in ATTEMPTS.iter().enumerate().filter(|(_, attempt)| wanted(attempt)) {
        hostile.mailbox.order(Order::Out, PORT.into(), u64::try_from(number)?)?;
        let said = said(&hostile.console)?;
        results.push(result_on(&said, number).ok_or_else(|| format!("{}: {said}", attempt.name))?);
    }
    Ok(results)
}

/// What a child of the hostile zygote says last when it makes an attempt. `None` if it goes on.
fn with_filter(zygote: &mut Control, number: u64) -> Result<Option<String>, Failure> {
    let (mut control, theirs) = Control::new()?;
    let (mut mailbox, mailbox_theirs) = Mailbox::new()?;
    let console = tempfile::tempfile()?;
    let fork = Fork { cgroup: false, successor: false, uid: None, devices: devices() };
    zygote.must(Command::Fork(fork), &[theirs.as_fd(), console.as_fd(), mailbox_theirs.as_fd()])?;
    drop((theirs, mailbox_theirs));
    match control.event()? {
        Event::Running => {}
        other => return Err(format!("a child says {other:?}").into()),
    }
    if mailbox.order(Order::Out, PORT.into(), number).is_ok() {
        return Ok(None);
    }
    match control.event()? {
        Event::Exited { reason: ExitReason::Error, detail, .. } => Ok(Some(detail)),
        other => Err(format!("a child that was blocked says {other:?}").into()),
    }
}

#[test]
fn a_guest_that_has_taken_over_its_process_gets_nowhere() -> Result<(), Failure> {
    if !geteuid().is_root() {
        return Ok(());
    }
    let (_process, mut victim) = boot(MEMORY)?;
    let tcp = TcpListener::bind("127.0.0.1:0")?;
    let port = tcp.local_addr()?.port();
    let _unix = UnixListener::bind_addr(&SocketAddr::from_abstract_name(abstract_name(port))?)?;

    let mut open = start(victim.pid, port, UIDS[0], false)?;
    let results = without_filter(&mut open, |_| true)?;
    for entry in fs::read_dir(format!("/proc/{}/fd", open.process.id()))? {
        let file = fs::read_link(entry?.path())?.display().to_string();
        let known = KINDS.iter().any(|kind| file.starts_with(kind)) || file.ends_with("(deleted)");
        assert!(known, "{file} was left open");
    }

    let mut filtered = start(victim.pid, port, UIDS[1], true)?;
    filtered.control.must(Command::Freeze, &[])?;
    let (mut list, mut wrong) = (String::new(), Vec::new());
    writeln!(list, "{:<46} {:<22} without the filter", "tried", "stopped at")?;
    for (number, (attempt, result)) in (0u64..).zip(ATTEMPTS.iter().zip(results)) {
        let detail = with_filter(&mut filtered.control, number)?;
        let expected = attempt.stopped_at.map(|call| format!("a vCPU thread made the system call {call} ("));
        let stopped = match (&detail, &expected) {
            (Some(detail), Some(expected)) => detail.starts_with(expected),
            (detail, expected) => detail.is_none() && expected.is_none(),
        };
        if !stopped {
            wrong.push(format!("{}: with the filter {detail:?}", attempt.name));
        }
        if attempt.without_filter == Without::Denied && result >= 0 {
            wrong.push(format!("{}: without the filter {result}", attempt.name));
        }
        writeln!(list, "{}", describe(attempt, result, detail.as_ref().and(attempt.stopped_at)))?;
    }
    show(&list)?;
    assert!(wrong.is_empty(), "{wrong:#?}\n{list}");
    // Nobody has felt anything.
    assert_eq!(victim.mailbox.order(Order::Add, 1, 0)?, 1);
    Ok(())
}

/// Past the harness, which would keep it to itself: it is what the test is for.
fn show(list: &str) -> Result<(), Failure> {
    Ok(std::io::stderr().write_all(list.as_bytes())?)
}

/// Who has the same user id, as VMs of one line have, can signal another, which the filter stops; but not look into it.
#[test]
fn one_of_the_same_line_cannot_be_looked_into() -> Result<(), Failure> {
    if !geteuid().is_root() {
        return Ok(());
    }
    const LOOKS: [&str; 3] =
        ["trace another VM process", "read another VM process' memory", "another VM process' descriptors"];
    let (_process, mut victim) = boot(MEMORY)?;
    let uid = rustix::fs::stat(format!("/proc/{}/environ", victim.pid))?.st_uid;
    assert_eq!(uid, 0, "what is not dumpable is root's");
    let mut open = start(victim.pid, 1, SAME_UID, false)?;
    let results = without_filter(&mut open, |attempt| LOOKS.contains(&attempt.name))?;
    assert_eq!(results, [-i64::from(rustix::io::Errno::PERM.raw_os_error()); LOOKS.len()]);
    assert_eq!(victim.mailbox.order(Order::Add, 1, 0)?, 1);
    Ok(())
}
