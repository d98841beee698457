//! Events: a guest's panic, what is typed at its console, a process that cannot begin.

use std::fs::File;
use std::io::{Seek, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command as Program, Stdio};
use std::time::{Duration, Instant};

use forkd_proto::control::{
    Boot, Command, CpuModel, Devices, Event, ExitReason, Fork, RefusalCode, StateName,
};
use forkd_tests::binaries;
use forkd_tests::engine::guest::{self, Order};
use forkd_tests::engine::process::{Control, Failure, Mailbox, Started, Zygote, boot, boot_with_disk, start};

const MEMORY: u64 = 64 << 20;

const PANIC: u64 = 0x505;
const UART_DATA: u64 = 0x3f8;
const UART_INTERRUPT_ENABLE: u64 = 0x3f9;
const UART_INTERRUPT_IDENTIFICATION: u64 = 0x3fa;
const UART_LINE_STATUS: u64 = 0x3fd;
const DATA_READY: u64 = 1;

#[test]
fn a_panic_is_told_once_and_the_guest_goes_on() -> Result<(), Failure> {
    let (_process, mut vm) = boot(MEMORY)?;
    assert_eq!(vm.mailbox.order(Order::In, PANIC, 0)?, 0b11);
    // Nothing that a guest may say.
    vm.mailbox.order(Order::Out, PANIC, 0b100)?;
    for _ in 0..3 {
        vm.mailbox.order(Order::Out, PANIC, 1)?;
    }
    assert_eq!(vm.control.event()?, Event::Panicked);
    assert_eq!(vm.mailbox.order(Order::Add, 1, 0)?, 1);
    vm.mailbox.tell(Order::Crash, 0, 0)?;
    match vm.control.event()? {
        Event::Exited { reason: ExitReason::Reset, .. } => Ok(()),
        other => Err(format!("after the panic: {other:?}").into()),
    }
}

/// A child is a VM of its own, which has not panicked yet.
#[test]
fn a_panic_before_a_freeze_is_told_before_its_reply() -> Result<(), Failure> {
    let (_process, mut vm) = boot(MEMORY)?;
    vm.mailbox.order(Order::Out, PANIC, 1)?;
    let mut zygote = vm.freeze()?;
    assert_eq!(zygote.control.event()?, Event::Panicked);
    for _ in 0..2 {
        let mut child = zygote.fork()?;
        child.mailbox.order(Order::Out, PANIC, 2)?;
        assert_eq!(child.control.event()?, Event::Panicked);
    }
    Ok(())
}

/// The guest writes two blocks and the layer has room for one. After a branch there is room again, for one.
#[test]
fn a_full_disk_is_told_once_for_each_layer_and_the_guest_goes_on() -> Result<(), Failure> {
    let limit_bytes = 4096;
    let (_process, mut vm) = boot_with_disk(2, MEMORY, 128 << 20, limit_bytes)?;
    vm.mailbox.order(Order::StartOthers, 1, 0)?;
    assert_eq!(vm.control.event()?, Event::OutOfDisk { disk: 0, limit_bytes });
    assert_eq!(vm.mailbox.order(Order::Add, 1, 0)?, 1);
    let (mut zygote, _) = vm.branch()?;
    assert_eq!(zygote.fork()?.mailbox.order(Order::Add, 1, 0)?, 2);
    assert_eq!(vm.mailbox.order(Order::Add, 1, 0)?, 2);
    vm.control.must(Command::Pause, &[])?;
    // Nothing else was said in all this time but what belongs to the new layer.
    while let Some(event) = vm.control.waiting() {
        assert_eq!(event, Event::OutOfDisk { disk: 0, limit_bytes });
    }
    Ok(())
}

/// A child may be given less room than its parent had, and never more.
#[test]
fn a_child_may_write_less_than_its_parent() -> Result<(), Failure> {
    let (_process, vm) = boot_with_disk(2, MEMORY, 128 << 20, 1 << 20)?;
    let mut zygote = vm.freeze()?;
    let limit = |zygote: &mut Zygote, bytes| {
        zygote.disks.iter_mut().for_each(|below| below.disk.limit_bytes = bytes);
    };
    limit(&mut zygote, 4096);
    let mut child = zygote.fork()?;
    child.mailbox.order(Order::StartOthers, 1, 0)?;
    assert_eq!(child.control.event()?, Event::OutOfDisk { disk: 0, limit_bytes: 4096 });
    // Its own children have its limit.
    let (mut grandparent, _) = child.branch()?;
    limit(&mut grandparent, 8192);
    assert!(grandparent.fork().is_err());
    limit(&mut zygote, (1 << 20) + 1);
    assert!(zygote.fork().is_err());
    limit(&mut zygote, 1 << 20);
    assert_eq!(zygote.fork()?.mailbox.order(Order::Add, 1, 0)?, 1);
    Ok(())
}

/// A VM that has ended is told about, never frozen.
#[test]
fn an_ending_is_not_lost_in_a_freeze() -> Result<(), Failure> {
    for _ in 0..20 {
        let (_process, mut vm) = boot(MEMORY)?;
        vm.mailbox.tell(Order::PowerOff, 0, 0)?;
        let id = vm.control.send(Command::Freeze, &[])?;
        match vm.control.reply(id) {
            // The guest was not as far yet: whoever is forked from here does it.
            Ok(Ok(_)) => continue,
            Ok(Err(refusal)) => assert_eq!(refusal.code, RefusalCode::Failed, "{}", refusal.message),
            // The process had ended before it saw the request.
            Err(_) => {}
        }
        match vm.control.event()? {
            Event::Exited { reason: ExitReason::Shutdown, .. } => {}
            other => return Err(format!("the guest switched itself off: {other:?}").into()),
        }
    }
    Ok(())
}

/// A guest with a console that somebody types at.
struct Typed {
    control: Control,
    mailbox: Mailbox,
    keyboard: UnixStream,
}

/// What one guest gets.
struct Own {
    mailbox: Mailbox,
    keyboard: UnixStream,
    theirs: [OwnedFd; 3],
}

impl Own {
    fn new() -> Result<Own, Failure> {
        let (mailbox, mailbox_end) = Mailbox::new()?;
        let (keyboard, keyboard_end) = UnixStream::pair()?;
        let log = tempfile::tempfile()?;
        Ok(Own { mailbox, keyboard, theirs: [log.into(), keyboard_end.into(), mailbox_end] })
    }
}

fn devices() -> Devices {
    Devices { serial: true, serial_input: true, mailbox: true, ..Devices::default() }
}

fn kernel() -> Result<File, Failure> {
    let mut kernel = tempfile::tempfile()?;
    kernel.write_all(&guest::elf())?;
    kernel.rewind()?;
    Ok(kernel)
}

fn boot_request(devices: Devices) -> Command {
    let command_line = String::new();
    Command::Boot(Boot {
        vcpus: 1,
        memory_bytes: MEMORY,
        command_line,
        initramfs: false,
        cpu: CpuModel::Host,
        devices,
    })
}

impl Typed {
    fn boot() -> Result<(Started, Typed), Failure> {
        let (started, mut control) = start()?;
        let Own { mailbox, keyboard, theirs } = Own::new()?;
        let kernel = kernel()?;
        let descriptors: Vec<BorrowedFd<'_>> =
            std::iter::once(kernel.as_fd()).chain(theirs.iter().map(AsFd::as_fd)).collect();
        control.must(boot_request(devices()), &descriptors)?;
        Ok((started, Typed { control, mailbox, keyboard }))
    }

    /// Forks a guest from a zygote.
    fn fork(zygote: &mut Control) -> Result<Typed, Failure> {
        let (mut control, control_end) = Control::new()?;
        let Own { mailbox, keyboard, theirs } = Own::new()?;
        let descriptors: Vec<BorrowedFd<'_>> =
            std::iter::once(control_end.as_fd()).chain(theirs.iter().map(AsFd::as_fd)).collect();
        zygote.must(
            Command::Fork(Fork { cgroup: false, successor: false, uid: None, devices: devices() }),
            &descriptors,
        )?;
        match control.event()? {
            Event::Running => Ok(Typed { control, mailbox, keyboard }),
            other => Err(format!("a fork says {other:?}").into()),
        }
    }

    fn has_input(&mut self) -> Result<bool, Failure> {
        Ok(self.mailbox.order(Order::In, UART_LINE_STATUS, 0)? & DATA_READY != 0)
    }

    fn wait_for_input(&mut self) -> Result<(), Failure> {
        let begun = Instant::now();
        while !self.has_input()? {
            if begun.elapsed() > Duration::from_secs(20) {
                return Err("nothing arrives at the console".into());
            }
        }
        Ok(())
    }

    /// Reads this many bytes the way a driver does.
    fn read(&mut self, count: usize) -> Result<Vec<u8>, Failure> {
        let mut bytes = Vec::new();
        while bytes.len() < count {
            self.wait_for_input()?;
            bytes.push(u8::try_from(self.mailbox.order(Order::In, UART_DATA, 0)?)?);
        }
        Ok(bytes)
    }
}

#[test]
fn what_is_typed_arrives_whole_and_in_order() -> Result<(), Failure> {
    let (_process, mut vm) = Typed::boot()?;
    assert!(!vm.has_input()?);
    vm.mailbox.order(Order::Out, UART_INTERRUPT_ENABLE, 1)?;
    vm.keyboard.write_all(b"l")?;
    vm.wait_for_input()?;
    // Received data available, in a UART with a FIFO.
    assert_eq!(vm.mailbox.order(Order::In, UART_INTERRUPT_IDENTIFICATION, 0)?, 0xc4);
    vm.keyboard.write_all(b"s\n")?;
    assert_eq!(vm.read(3)?, b"ls\n");
    assert!(!vm.has_input()?);

    // More than the UART holds, with an end behind it, and a pause in between.
    let text: Vec<u8> = (0..3000u32).map(|at| (at % 251).to_le_bytes()[0]).collect();
    vm.keyboard.write_all(&text)?;
    vm.keyboard.shutdown(Shutdown::Both)?;
    let mut read = vm.read(100)?;
    vm.control.must(Command::Pause, &[])?;
    vm.control.must(Command::Resume, &[])?;
    read.extend(vm.read(text.len() - 100)?);
    assert!(read == text, "3000 bytes arrive as they were typed");

    assert!(!vm.has_input()?);
    assert_eq!(vm.mailbox.order(Order::Add, 1, 0)?, 1);
    Ok(())
}

/// What was typed and not read goes along; what is typed later goes to one VM only.
#[test]
fn every_child_has_its_own_keyboard() -> Result<(), Failure> {
    let (_process, mut vm) = Typed::boot()?;
    vm.keyboard.write_all(b"early")?;
    vm.wait_for_input()?;
    vm.control.must(Command::Freeze, &[])?;
    let mut children = [Typed::fork(&mut vm.control)?, Typed::fork(&mut vm.control)?];
    for (child, words) in children.iter_mut().zip([b" one", b" two"]) {
        child.keyboard.write_all(words)?;
    }
    for (child, words) in children.iter_mut().zip([b"early one", b"early two"]) {
        assert_eq!(child.read(words.len())?, words);
        assert!(!child.has_input()?);
    }
    Ok(())
}

#[test]
fn input_that_cannot_be_is_refused() -> Result<(), Failure> {
    let (_process, mut control) = start()?;
    let (kernel, file, log) = (kernel()?, tempfile::tempfile()?, tempfile::tempfile()?);
    let (_mailbox, mailbox_end) = Mailbox::new()?;
    let without = Devices { serial: false, ..devices() };
    for (devices, input, expected) in [
        (without, vec![file.as_fd()], "no console"),
        (devices(), vec![log.as_fd(), file.as_fd()], "cannot wait for the console's input"),
    ] {
        let descriptors = [vec![kernel.as_fd()], input, vec![mailbox_end.as_fd()]].concat();
        match control.call(boot_request(devices), &descriptors)? {
            Err(refusal) => assert!(refusal.message.contains(expected), "{}", refusal.message),
            Ok(reply) => return Err(format!("the VM was booted: {reply:?}").into()),
        }
        assert_eq!(control.stats()?.state, StateName::Empty);
    }
    Ok(())
}

/// A process without a control socket says so in one line.
#[test]
fn a_process_without_a_control_socket_says_so() -> Result<(), Failure> {
    let (stream, _other) = UnixStream::pair()?;
    for stdin in [Stdio::null(), Stdio::from(OwnedFd::from(stream))] {
        let output =
            Program::new(binaries::directory().join("forkd-vmm")).arg("run").stdin(stdin).output()?;
        let words = String::from_utf8(output.stderr)?;
        assert_eq!((output.status.code(), words.lines().count()), (Some(1), 1), "{words}");
        assert!(words.contains("not a control socket"), "{words}");
    }
    Ok(())
}
