//! `forkd-vmm run`: one process, one VM, told what to do over its control socket (its stdin).
//!
//! The states are those of `forkd_proto::control`. Every pair of a state and a command is decided in [`Process::carry_out`];
//! a refusal leaves everything as it was. The verbs that make other processes have a file each.

mod blocked;
mod branch;
pub mod clone;
mod control;
mod fork;
mod hand_over;
mod identify;
mod last_words;
mod mending;
mod persist;
mod prefault;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use forkd_devices::disk::{Layer, LayerStack, StackError};
use forkd_jail::{JailError, Plan, Role};
use forkd_proto::causes::with_causes;
use forkd_proto::channel::ChannelError;
use forkd_proto::control::{
    Boot, Command, Descriptor, Event, ExitReason, Load, Message, Refusal, RefusalCode, Reply, Request,
    RequestHeader, Stage, StateName, Stats, VERSION,
};
use kvm_ioctls::Kvm;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Deserialize;

use crate::boot;
use crate::snapshot::load;
#[cfg(feature = "attacks")]
use crate::vm::bus::{self, Attack};
use crate::vm::devices::{Descriptors, DeviceError};
use crate::vm::hardware::{self, KvmError};
use crate::vm::kick;
use crate::vm::live::{FrozenVm, LiveVm, VmError};
use clone::Side;
use control::ControlSocket;
use mending::Mending;

/// The process has no client.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error("stdin is not a control socket")]
    Stdin(#[source] io::Error),
    #[error(transparent)]
    Channel(ChannelError),
}

/// How a process is started.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// The user id that it has, if root starts it.
    pub uid: Option<u32>,
    /// The most bytes of a file that it and its children write.
    pub file_bytes: Option<u64>,
    /// Whether its system calls are not filtered, in a test of the other walls.
    #[cfg(feature = "attacks")]
    pub unfiltered: bool,
    #[cfg(feature = "attacks")]
    pub attack: Option<Attack>,
}

impl Options {
    /// The words behind `run`.
    pub fn parse(words: &[String]) -> Option<Options> {
        let mut options = Options::default();
        let mut words = words.iter();
        while let Some(name) = words.next() {
            let value = words.next()?;
            match name.as_str() {
                "--uid" => options.uid = Some(value.parse().ok()?),
                "--file-bytes" => options.file_bytes = Some(value.parse().ok()?),
                _ => return None,
            }
        }
        Some(options)
    }

    fn filtered(&self) -> bool {
        #[cfg(feature = "attacks")]
        return !self.unfiltered;
        #[cfg(not(feature = "attacks"))]
        true
    }
}

/// Serves the control socket until the process is told to end, the VM ends, or no client can reach it any more.
pub fn run(options: Options) -> Result<(), ControlError> {
    clone::close_inherited();
    forkd_proto::passes!();
    let control = take_stdin().and_then(ControlSocket::new).map_err(ControlError::Stdin)?;
    // Forked processes are looked after through their pidfds; this process does not wait for them.
    clone::reap_children_automatically();
    clone::allocate_without_files();
    kick::install();
    last_words::install();
    blocked::install();
    #[cfg(feature = "attacks")]
    if let Some(attack) = options.attack {
        // It is set once, here.
        let _ = bus::ATTACK.set(attack);
    }
    // Its stderr is not kept in a log; its errors go over the control socket.
    silence().map_err(ControlError::Stdin)?;
    let kvm = hardware::open();
    let jail = forkd_jail::enter(Plan {
        uid: options.uid,
        file_bytes: options.file_bytes,
        filtered: options.filtered(),
    });
    let standing = jail.map(|()| Standing::Trusted);
    let (mending, pagemap) = (None, None);
    let mut process =
        Process { control, kvm, standing, state: ProcessState::Empty, mending, cold: false, pagemap };
    loop {
        match process.step() {
            Ok(Next::Again) => {}
            Ok(Next::End) | Err(ChannelError::Closed) => return Ok(()),
            Err(error) => return Err(ControlError::Channel(error)),
        }
    }
}

/// The control socket, which is not stdin from then on: forked processes have one of their own.
fn take_stdin() -> io::Result<OwnedFd> {
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    rustix::stdio::dup2_stdin(nowhere()?)?;
    Ok(socket)
}

fn silence() -> io::Result<()> {
    rustix::stdio::dup2_stdout(nowhere()?)?;
    rustix::stdio::dup2_stderr(nowhere()?)?;
    Ok(())
}

fn nowhere() -> io::Result<File> {
    File::options().read(true).write(true).open("/dev/null")
}

/// What the process may still do to itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// No guest has run in it or in any that it was forked from: it may give its children user ids.
    Trusted,
    /// It has no rights but its descriptors.
    Jailed,
}

/// What the process is, with what it has.
#[expect(clippy::large_enum_variant, reason = "a process has one of these")]
enum ProcessState {
    Empty,
    Running(LiveVm),
    Paused(LiveVm),
    Zygote(FrozenVm),
}

impl ProcessState {
    fn name(&self) -> StateName {
        match self {
            ProcessState::Empty => StateName::Empty,
            ProcessState::Running(_) => StateName::Running,
            ProcessState::Paused(_) => StateName::Paused,
            ProcessState::Zygote(_) => StateName::Zygote,
        }
    }

    /// The stage that the process is at between two commands.
    fn stage(&self) -> Stage {
        match self {
            ProcessState::Empty => Stage::Empty,
            ProcessState::Running(_) | ProcessState::Paused(_) => Stage::Run,
            ProcessState::Zygote(_) => Stage::Zygote,
        }
    }
}

struct Process {
    control: ControlSocket,
    /// A process that could not be jailed does nothing.
    standing: Result<Standing, JailError>,
    /// Opened when the process began, and inherited by those that are forked from it.
    kvm: Result<Arc<Kvm>, KvmError>,
    state: ProcessState,
    /// Of a VM that has been branched.
    mending: Option<Mending>,
    /// Whether the VM has been branched, and has not got back what it uses first.
    cold: bool,
    /// `/proc/PID/pagemap` of this process.
    pagemap: Option<File>,
}

enum Next {
    Again,
    End,
}

/// What became of a command.
enum Done {
    /// The reply, and descriptors to go with it.
    Reply(Reply, Vec<OwnedFd>),
    /// There is nothing to reply: this is the new process now, or the reply was sent already.
    Silent,
    /// The same, and the process ends.
    Over,
}

impl Process {
    /// Waits for a request or an event, and handles it.
    fn step(&mut self) -> Result<Next, ChannelError> {
        let control = self.control.readable().ok_or(ChannelError::Closed)?;
        let mut events = vec![PollFd::from_borrowed_fd(control, PollFlags::IN)];
        if let ProcessState::Running(vm) | ProcessState::Paused(vm) = &self.state {
            events.push(PollFd::new(&vm.ready, PollFlags::IN));
        }
        let wait = match self.cold {
            true => Some(Duration::ZERO),
            false => self.mending.as_ref().map(Mending::wait),
        };
        let wait = wait.and_then(|wait| Timespec::try_from(wait).ok());
        if rustix::io::retry_on_intr(|| poll(&mut events, wait.as_ref()))? == 0 {
            if std::mem::take(&mut self.cold) {
                self.warm_again();
                return Ok(Next::Again);
            }
            self.mending = self.mending.take().and_then(Mending::step);
            return Ok(Next::Again);
        }
        if events.get(1).is_some_and(|ready| !ready.revents().is_empty()) {
            return Ok(self.report());
        }
        let malformed = |message: String| Refusal { code: RefusalCode::Malformed, message };
        let (message, descriptors) = match self.control.receive() {
            Ok(Some(received)) => received,
            Ok(None) => return Ok(Next::Again),
            Err(error @ (ChannelError::Malformed(_) | ChannelError::TooLarge)) => {
                return Ok(self.reply(0, Err(malformed(error.to_string())), &[]));
            }
            Err(ref error @ ChannelError::DescriptorsLost { ref message }) => {
                let id = RequestHeader::deserialize(message).map_or(0, |header| header.id);
                return Ok(self.reply(id, Err(failed(error)), &[]));
            }
            Err(error) => return Err(error),
        };
        let RequestHeader { version, id } = match RequestHeader::deserialize(&message) {
            Ok(header) => header,
            Err(error) => return Ok(self.reply(0, Err(malformed(error.to_string())), &[])),
        };
        if version != VERSION {
            let message = format!("version {version} of the protocol; this process speaks {VERSION}");
            return Ok(self.reply(id, Err(Refusal { code: RefusalCode::Version, message }), &[]));
        }
        let request = match serde_json::from_value::<Request>(message) {
            Ok(request) => request,
            Err(error) => return Ok(self.reply(id, Err(malformed(error.to_string())), &[])),
        };
        let named = request.command.descriptors();
        if named.len() != descriptors.len() {
            let (name, found) = (request.command.name(), descriptors.len());
            let message = format!("{name} comes with {named:?}, not {found} descriptors");
            return Ok(self.reply(id, Err(malformed(message)), &[]));
        }
        if request.command == Command::Shutdown {
            self.reply(request.id, Ok(Reply::Done), &[]);
            return Ok(Next::End);
        }
        let descriptors = Descriptors::new(named.into_iter().zip(descriptors).collect());
        let carried_out = self.carry_out(request, descriptors);
        last_words::enter(self.state.stage());
        Ok(match carried_out {
            Ok(Done::Reply(reply, descriptors)) => self.reply(id, Ok(reply), &descriptors),
            Ok(Done::Silent) => Next::Again,
            Ok(Done::Over) => Next::End,
            Err(refusal) => self.reply(id, Err(refusal), &[]),
        })
    }

    fn reply(&self, id: u64, result: Result<Reply, Refusal>, descriptors: &[OwnedFd]) -> Next {
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        self.control.send(&Message::Reply { id, result }, &descriptors);
        Next::Again
    }

    /// Sends events, up to the end of the VM.
    fn report(&mut self) -> Next {
        let (ProcessState::Running(vm) | ProcessState::Paused(vm)) = &self.state else { return Next::Again };
        for event in vm.take_notices() {
            let ended = matches!(event, Event::Exited { .. });
            self.control.say(event);
            if ended {
                return Next::End;
            }
        }
        Next::Again
    }

    /// Decides every pair of a state and a command.
    fn carry_out(&mut self, request: Request, mut descriptors: Descriptors) -> Result<Done, Refusal> {
        forkd_proto::passes!();
        let done = Ok(Done::Reply(Reply::Done, Vec::new()));
        // Taken out, so that a verb can consume it; every arm puts a state back.
        let state = std::mem::replace(&mut self.state, ProcessState::Empty);
        match (state, request.command) {
            (state, Command::Stats) => {
                self.state = state;
                Ok(Done::Reply(Reply::Stats(self.stats()), Vec::new()))
            }
            (state, Command::PageTable) => {
                self.state = state;
                let pagemap = descriptors.take(Descriptor::PageTable).map_err(|error| failed(&error))?;
                self.pagemap = Some(pagemap.into());
                done
            }
            (state, Command::Identify) => {
                self.state = state;
                self.identify()
            }
            (ProcessState::Empty, Command::Boot(boot)) => self.boot(&boot, descriptors),
            (ProcessState::Empty, Command::Load(load)) => self.load(&load, descriptors),
            (ProcessState::Running(vm), Command::Pause) => {
                vm.pause();
                self.state = ProcessState::Paused(vm);
                done
            }
            (ProcessState::Paused(vm), Command::Resume) => {
                vm.run();
                self.state = ProcessState::Running(vm);
                done
            }
            (ProcessState::Running(vm), Command::Freeze) => self.freeze(vm, true),
            (ProcessState::Paused(vm), Command::Freeze) => self.freeze(vm, false),
            (ProcessState::Running(vm), Command::Branch(branch)) => {
                self.branch(vm, true, &branch, descriptors)
            }
            (ProcessState::Paused(vm), Command::Branch(branch)) => {
                self.branch(vm, false, &branch, descriptors)
            }
            (
                state @ (ProcessState::Running(_) | ProcessState::Paused(_) | ProcessState::Zygote(_)),
                Command::SettleDisk,
            ) => {
                self.state = state;
                self.settle_disks().map_err(|error| failed(&error))?;
                done
            }
            (
                state @ (ProcessState::Running(_) | ProcessState::Paused(_) | ProcessState::Zygote(_)),
                Command::ReplaceLayers { disk, first, count },
            ) => {
                self.state = state;
                let file = descriptors.take(Descriptor::DiskLayer).map_err(|error| failed(&error))?;
                let layers = usize::from(first)..usize::from(first) + usize::from(count);
                self.replace_layers(disk.into(), layers, file.into()).map_err(|error| failed(&error))?;
                done
            }
            (ProcessState::Running(vm), Command::HandOver) => {
                self.hand_over(vm, true, request.id, descriptors)
            }
            (ProcessState::Paused(vm), Command::HandOver) => {
                self.hand_over(vm, false, request.id, descriptors)
            }
            (ProcessState::Zygote(frozen), Command::Fork(fork)) => self.fork(frozen, &fork, descriptors),
            (ProcessState::Zygote(frozen), Command::Persist(persist)) => {
                self.persist(frozen, &persist, descriptors)
            }
            (ProcessState::Zygote(frozen), Command::Prefault(pages)) => self.expect(frozen, pages),
            (state @ (ProcessState::Running(_) | ProcessState::Paused(_)), Command::OwnPages) => {
                self.state = state;
                self.own_pages()
            }
            (
                state,
                command @ (Command::Boot(_)
                | Command::Pause
                | Command::Resume
                | Command::Freeze
                | Command::Fork(_)
                | Command::Branch(_)
                | Command::Load(_)
                | Command::Persist(_)
                | Command::SettleDisk
                | Command::ReplaceLayers { .. }
                | Command::HandOver
                | Command::Prefault(_)
                | Command::OwnPages
                | Command::Shutdown),
            ) => {
                let message =
                    format!("{} is not possible while the process is {:?}", command.name(), state.name());
                self.state = state;
                Err(Refusal { code: RefusalCode::State, message })
            }
        }
    }

    /// Makes the files of the disks' frozen layers complete.
    fn settle_disks(&self) -> Result<(), VmError> {
        match &self.state {
            ProcessState::Empty => Ok(()),
            ProcessState::Running(vm) | ProcessState::Paused(vm) => vm.settle_disks(),
            ProcessState::Zygote(frozen) => {
                frozen.devices.layers.iter().try_for_each(LayerStack::complete).map_err(VmError::Disk)
            }
        }
    }

    /// Puts one frozen layer of a disk in the place of others.
    fn replace_layers(&mut self, disk: usize, layers: Range<usize>, file: File) -> Result<(), VmError> {
        let layer = Layer::open(file).map_err(StackError::from).map_err(DeviceError::from)?;
        match &mut self.state {
            ProcessState::Empty => Ok(()),
            ProcessState::Running(vm) | ProcessState::Paused(vm) => vm.replace_layers(disk, layers, layer),
            ProcessState::Zygote(frozen) => {
                let stack = frozen.devices.layers.get_mut(disk).ok_or(DeviceError::NoDisk(disk))?;
                Ok(stack.replace(layers, layer).map_err(DeviceError::from)?)
            }
        }
    }

    fn stats(&self) -> Stats {
        let (vcpus, memory_bytes, exits) = match &self.state {
            ProcessState::Empty => (0, 0, 0),
            ProcessState::Running(vm) | ProcessState::Paused(vm) => {
                (vm.vcpu_count(), vm.ram.layout().size(), vm.exits())
            }
            ProcessState::Zygote(frozen) => (frozen.state.vcpus.len(), frozen.ram.layout().size(), 0),
        };
        let kvm = match &self.state {
            ProcessState::Running(vm) | ProcessState::Paused(vm) => vm.counts(),
            ProcessState::Empty | ProcessState::Zygote(_) => None,
        };
        let (state, vcpus) = (self.state.name(), u8::try_from(vcpus).unwrap_or(u8::MAX));
        Stats { state, vcpus, memory_bytes, exits, kvm }
    }

    fn boot(&mut self, request: &Boot, mut descriptors: Descriptors) -> Result<Done, Refusal> {
        last_words::enter(Stage::Boot);
        self.lose_trust().map_err(|error| failed(&error))?;
        let kvm = self.kvm.as_ref().map_err(|error| failed(error))?;
        let vm = boot::boot(kvm, request, &mut descriptors).map_err(|error| failed(&error))?;
        vm.run();
        self.state = ProcessState::Running(vm);
        Ok(Done::Reply(Reply::Done, Vec::new()))
    }

    fn load(&mut self, request: &Load, mut descriptors: Descriptors) -> Result<Done, Refusal> {
        last_words::enter(Stage::Restore);
        self.standing.as_ref().map_err(|error| failed(error))?;
        let kvm = self.kvm.as_ref().map_err(|error| failed(error))?;
        let frozen = load::load(kvm, request, &mut descriptors).map_err(|error| failed(&error))?;
        self.state = ProcessState::Zygote(frozen);
        Ok(Done::Reply(Reply::Done, Vec::new()))
    }

    /// Before the first instruction of a guest: from now on the process has no rights, and cannot get any.
    fn lose_trust(&mut self) -> Result<(), JailError> {
        match &self.standing {
            Ok(Standing::Jailed) => return Ok(()),
            Ok(Standing::Trusted) => {}
            Err(JailError { step, source }) => {
                return Err(JailError { step, source: io::Error::other(source.to_string()) });
            }
        }
        forkd_jail::drop_all()?;
        forkd_jail::enforce(Role::Control)?;
        self.standing = Ok(Standing::Jailed);
        Ok(())
    }

    /// Takes over a control socket of its own, in a process that was just forked.
    fn adopt(&mut self, control: OwnedFd) -> io::Result<()> {
        self.control = ControlSocket::new(control)?;
        Ok(())
    }

    /// Last words of a process that could not do what it was forked for.
    fn say_failed(&mut self, stage: Stage, error: &dyn std::error::Error) {
        let (reason, detail) = (ExitReason::Error, failed(error).message);
        self.control.say(Event::Exited { stage, reason, detail });
    }
}

/// Forks the process; the child's control socket comes with the request.
fn clone_with(descriptors: &mut Descriptors, into_cgroup: bool) -> Result<(OwnedFd, Side), Refusal> {
    let control = descriptors.take(Descriptor::Control).map_err(|error| failed(&error))?;
    let cgroup = match into_cgroup {
        true => Some(descriptors.take(Descriptor::Cgroup).map_err(|error| failed(&error))?),
        false => None,
    };
    let side = clone::clone_process(cgroup.as_ref().map(AsFd::as_fd)).map_err(|error| failed(&error))?;
    Ok((control, side))
}

fn failed(error: &dyn std::error::Error) -> Refusal {
    Refusal { code: RefusalCode::Failed, message: with_causes(error) }
}
