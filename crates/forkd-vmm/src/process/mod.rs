//! `forkd-vmm run`: one process, one VM, told what to do over its control socket (its stdin).
//!
//! The states are those of `forkd_proto::control`. Every pair of a state and a command is decided in [`Process::carry_out`];
//! a refusal leaves everything as it was.

pub mod clone;
mod last_words;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use forkd_proto::channel::{Channel, ChannelError};
use forkd_proto::control::{
    Boot, Branch, Command, Descriptor, Event, ExitReason, Fork, Message, Refusal, RefusalCode, Reply,
    Request, RequestHeader, Stage, StateName, Stats, VERSION,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{SocketType, sockopt};
use serde::Deserialize;

use crate::boot;
use crate::vm::devices::{Descriptors, FrozenDevices};
use crate::vm::live::{FrozenVm, LiveVm};
use crate::vm::state::VmState;
use clone::Side;

/// The process has nobody to talk to.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error("stdin is not a control socket")]
    Stdin(#[source] io::Error),
    #[error(transparent)]
    Channel(ChannelError),
}

/// Serves the control socket until the process is told to end, the VM ends, or nobody holds the other end any more.
pub fn run() -> Result<(), ControlError> {
    clone::close_inherited();
    let socket = take_stdin().map_err(ControlError::Stdin)?;
    // Forked processes are looked after through their pidfds; nobody waits for them here.
    clone::reap_children_automatically();
    let mut process = Process { channel: adopted(socket), state: State::Empty };
    last_words::install();
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
    if sockopt::socket_type(&socket)? != SocketType::SEQPACKET {
        return Err(io::Error::other("a socket of another type"));
    }
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    Ok(socket)
}

/// What the process is, with what it has.
#[expect(clippy::large_enum_variant, reason = "a process has one of these")]
enum State {
    Empty,
    Running(LiveVm),
    Paused(LiveVm),
    Zygote(FrozenVm),
}

impl State {
    fn name(&self) -> StateName {
        match self {
            State::Empty => StateName::Empty,
            State::Running(_) => StateName::Running,
            State::Paused(_) => StateName::Paused,
            State::Zygote(_) => StateName::Zygote,
        }
    }

    /// The stage that the process is at between two commands.
    fn stage(&self) -> Stage {
        match self {
            State::Empty => Stage::Empty,
            State::Running(_) | State::Paused(_) => Stage::Run,
            State::Zygote(_) => Stage::Zygote,
        }
    }
}

struct Process {
    channel: Arc<Channel>,
    state: State,
}

/// A control socket, which last words go to from now on.
fn adopted(socket: OwnedFd) -> Arc<Channel> {
    let channel = Arc::new(Channel::new(socket));
    last_words::adopt(Arc::clone(&channel));
    channel
}

enum Next {
    Again,
    End,
}

/// What became of a command.
enum Done {
    /// The reply, and a descriptor to go with it.
    Reply(Reply, Option<OwnedFd>),
    /// This is the new process now; the reply is the other one's to send.
    Elsewhere,
}

impl Process {
    /// Waits for a request or for something to happen by itself, and deals with it.
    fn step(&mut self) -> Result<Next, ChannelError> {
        if let State::Running(vm) | State::Paused(vm) = &self.state {
            let mut events =
                [PollFd::new(&vm.ready, PollFlags::IN), PollFd::new(&self.channel, PollFlags::IN)];
            rustix::io::retry_on_intr(|| poll(&mut events, None))?;
            if !events[0].revents().is_empty() {
                return self.report(vm);
            }
        }
        let malformed = |message: String| Refusal { code: RefusalCode::Malformed, message };
        let (message, descriptors) = match self.channel.receive::<serde_json::Value>() {
            Ok(received) => received,
            Err(error @ (ChannelError::Malformed(_) | ChannelError::TooLarge)) => {
                return self.reply(0, Err(malformed(error.to_string())), None);
            }
            Err(error) => return Err(error),
        };
        let RequestHeader { version, id } = match RequestHeader::deserialize(&message) {
            Ok(header) => header,
            Err(error) => return self.reply(0, Err(malformed(error.to_string())), None),
        };
        if version != VERSION {
            let message = format!("version {version} of the protocol; this process speaks {VERSION}");
            return self.reply(id, Err(Refusal { code: RefusalCode::Version, message }), None);
        }
        let request = match serde_json::from_value::<Request>(message) {
            Ok(request) => request,
            Err(error) => return self.reply(id, Err(malformed(error.to_string())), None),
        };
        let named = request.command.descriptors();
        if named.len() != descriptors.len() {
            let (name, found) = (request.command.name(), descriptors.len());
            let message = format!("{name} comes with {named:?}, not {found} descriptors");
            return self.reply(id, Err(malformed(message)), None);
        }
        if request.command == Command::Shutdown {
            self.reply(request.id, Ok(Reply::Done), None)?;
            return Ok(Next::End);
        }
        let descriptors = Descriptors::new(named.into_iter().zip(descriptors).collect());
        let carried_out = self.carry_out(request.command, descriptors);
        last_words::enter(self.state.stage());
        match carried_out {
            Ok(Done::Reply(reply, descriptor)) => self.reply(request.id, Ok(reply), descriptor),
            Ok(Done::Elsewhere) => Ok(Next::Again),
            Err(refusal) => self.reply(request.id, Err(refusal), None),
        }
    }

    fn reply(
        &self,
        id: u64,
        result: Result<Reply, Refusal>,
        descriptor: Option<OwnedFd>,
    ) -> Result<Next, ChannelError> {
        let descriptors: Vec<_> = descriptor.iter().map(AsFd::as_fd).collect();
        self.channel.send(&Message::Reply { id, result }, &descriptors)?;
        Ok(Next::Again)
    }

    /// Tells what has happened by itself, up to the end of the VM.
    fn report(&self, vm: &LiveVm) -> Result<Next, ChannelError> {
        for event in vm.take_notices() {
            let ended = matches!(event, Event::Exited { .. });
            self.channel.send(&Message::Event(event), &[])?;
            if ended {
                return Ok(Next::End);
            }
        }
        Ok(Next::Again)
    }

    /// Decides every pair of a state and a command.
    fn carry_out(&mut self, command: Command, descriptors: Descriptors) -> Result<Done, Refusal> {
        let done = Ok(Done::Reply(Reply::Done, None));
        // Taken out, so that a verb can consume it; every arm puts a state back.
        let state = std::mem::replace(&mut self.state, State::Empty);
        match (state, command) {
            (state, Command::Stats) => {
                self.state = state;
                Ok(Done::Reply(Reply::Stats(self.stats()), None))
            }
            (State::Empty, Command::Boot(request)) => self.boot(&request, descriptors),
            (State::Running(vm), Command::Pause) => {
                vm.pause();
                self.state = State::Paused(vm);
                done
            }
            (State::Paused(vm), Command::Resume) => {
                vm.run();
                self.state = State::Running(vm);
                done
            }
            (State::Running(vm), Command::Freeze) => self.freeze(vm, true),
            (State::Paused(vm), Command::Freeze) => self.freeze(vm, false),
            (State::Running(vm), Command::Branch(request)) => self.branch(vm, true, &request, descriptors),
            (State::Paused(vm), Command::Branch(request)) => self.branch(vm, false, &request, descriptors),
            (State::Zygote(frozen), Command::Fork(request)) => self.fork(frozen, &request, descriptors),
            (
                state,
                command @ (Command::Boot(_)
                | Command::Pause
                | Command::Resume
                | Command::Freeze
                | Command::Fork(_)
                | Command::Branch(_)
                | Command::Shutdown),
            ) => {
                let message =
                    format!("{} is not possible while the process is {:?}", command.name(), state.name());
                self.state = state;
                Err(Refusal { code: RefusalCode::State, message })
            }
        }
    }

    fn stats(&self) -> Stats {
        let (vcpus, memory_bytes, exits) = match &self.state {
            State::Empty => (0, 0, 0),
            State::Running(vm) | State::Paused(vm) => (vm.vcpu_count(), vm.ram.layout().size(), vm.exits()),
            State::Zygote(frozen) => (frozen.state.vcpus.len(), frozen.ram.layout().size(), 0),
        };
        Stats { state: self.state.name(), vcpus: u8::try_from(vcpus).unwrap_or(u8::MAX), memory_bytes, exits }
    }

    fn boot(&mut self, request: &Boot, mut descriptors: Descriptors) -> Result<Done, Refusal> {
        last_words::enter(Stage::Boot);
        let vm = boot::boot(request, &mut descriptors).map_err(|error| failed(&error))?;
        vm.run();
        self.state = State::Running(vm);
        Ok(Done::Reply(Reply::Done, None))
    }

    /// Takes the state of a VM and closes KVM. A VM whose state cannot be taken is left as it was.
    fn freeze(&mut self, vm: LiveVm, was_running: bool) -> Result<Done, Refusal> {
        last_words::enter(Stage::Freeze);
        if was_running {
            vm.pause();
        }
        match vm.save(None) {
            Ok((state, devices)) => {
                vm.take_notices().into_iter().for_each(|event| self.say(event));
                self.state = State::Zygote(FrozenVm { ram: vm.end(), state, devices });
                Ok(Done::Reply(Reply::Done, None))
            }
            Err(error) if was_running => {
                vm.run();
                self.state = State::Running(vm);
                Err(failed(&error))
            }
            Err(error) => {
                self.state = State::Paused(vm);
                Err(failed(&error))
            }
        }
    }

    /// Makes a VM of this zygote in a new process, and does not wait for it to be up.
    fn fork(
        &mut self,
        frozen: FrozenVm,
        request: &Fork,
        mut descriptors: Descriptors,
    ) -> Result<Done, Refusal> {
        let forked = clone_with(&mut descriptors, request.cgroup);
        if let Ok((control, Side::Child)) = forked {
            self.channel = adopted(control);
            last_words::enter(Stage::Restore);
            match LiveVm::restore(&frozen, request.devices.clone(), &mut descriptors) {
                Ok(vm) => {
                    vm.run();
                    self.state = State::Running(vm);
                    self.say(Event::Running);
                }
                Err(error) => {
                    let (stage, reason) = (Stage::Restore, ExitReason::Error);
                    self.say(Event::Exited { stage, reason, detail: failed(&error).message });
                    self.end();
                }
            }
            return Ok(Done::Elsewhere);
        }
        self.state = State::Zygote(frozen);
        match forked? {
            (_, Side::Parent { pid, pidfd }) => Ok(Done::Reply(Reply::Forked { pid }, Some(pidfd))),
            (_, Side::Child) => Ok(Done::Elsewhere),
        }
    }

    /// Makes a zygote of a VM that goes on: pause, save, clone, resume. Whatever fails in between, the VM goes on.
    fn branch(
        &mut self,
        vm: LiveVm,
        was_running: bool,
        request: &Branch,
        mut descriptors: Descriptors,
    ) -> Result<Done, Refusal> {
        last_words::enter(Stage::Freeze);
        let paused_at = Instant::now();
        if was_running {
            vm.pause();
        }
        let branched = save_for_branch(&vm, request, &mut descriptors)
            .and_then(|frozen| Ok((frozen, clone_with(&mut descriptors, request.cgroup)?)));
        if let Ok(((state, devices), (control, Side::Child))) = branched {
            self.channel = adopted(control);
            self.state = State::Zygote(FrozenVm { ram: vm.forget(), state, devices });
            self.say(Event::Zygote);
            return Ok(Done::Elsewhere);
        }
        self.state = if was_running {
            vm.run();
            State::Running(vm)
        } else {
            State::Paused(vm)
        };
        let pause_us = u64::try_from(paused_at.elapsed().as_micros()).unwrap_or(u64::MAX);
        match branched?.1 {
            (_, Side::Parent { pid, pidfd }) => {
                Ok(Done::Reply(Reply::Branched { pid, pause_us }, Some(pidfd)))
            }
            (_, Side::Child) => Ok(Done::Elsewhere),
        }
    }

    /// Tells the other end, which may be gone: then the next receive finds out.
    fn say(&self, event: Event) {
        let _ = self.channel.send(&Message::Event(event), &[]);
    }

    /// Makes the next receive find nobody.
    fn end(&self) {
        let _ = rustix::net::shutdown(&self.channel, rustix::net::Shutdown::Both);
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

/// Takes the state of a paused VM that goes on, above a new top layer of its disk.
fn save_for_branch(
    vm: &LiveVm,
    request: &Branch,
    descriptors: &mut Descriptors,
) -> Result<(VmState, FrozenDevices), Refusal> {
    if vm.has_disk() != request.disk {
        let message =
            "a VM with a disk is branched with a new top layer for it, and one without is not".into();
        return Err(Refusal { code: RefusalCode::Malformed, message });
    }
    let top = match request.disk {
        true => Some(File::from(descriptors.take(Descriptor::DiskTop).map_err(|error| failed(&error))?)),
        false => None,
    };
    vm.save(top).map_err(|error| failed(&error))
}

fn failed(error: &dyn std::error::Error) -> Refusal {
    Refusal { code: RefusalCode::Failed, message: with_causes(error) }
}

/// An error and what it comes from, on one line.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        message += &format!(": {error}");
        cause = error.source();
    }
    message
}
