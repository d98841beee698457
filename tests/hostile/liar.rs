//! A VM process that was taken over, as the daemon sees it: it has no VM, and answers what it likes. Of a new process it says that it
//! is the daemon itself, and shows a pidfd to prove it: whoever believes that ends itself with the sandbox.
//!
//! `liar-vmm run <CONTROL-SOCKET`, as the daemon starts `forkd-vmm`. The kernel that it is to boot says when it lies: `fork`, or
//! `branch`, and then what it forks is an honest process, which lies when it is branched.

use std::error::Error;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::parent_id;
use std::process::{Command as Program, Stdio};
use std::thread;

use forkd_proto::channel::Channel;
use forkd_proto::control::{Command, Event, Message, Refusal, RefusalCode, Reply, Request};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

type Failed = Box<dyn Error>;

/// What this process is.
#[derive(Clone, Copy)]
struct Liar {
    daemon: i32,
    is_child: bool,
}

fn main() -> Result<(), Failed> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let liar = match arguments.as_slice() {
        [role, daemon] if role == "child" => Liar { daemon: daemon.parse()?, is_child: true },
        _ => Liar { daemon: parent_id().try_into()?, is_child: false },
    };
    liar.serve(io::stdin().as_fd().try_clone_to_owned()?)
}

impl Liar {
    /// Answers whoever connects.
    fn serve(self, listener: OwnedFd) -> Result<(), Failed> {
        loop {
            let channel = Channel::new(rustix::net::accept(&listener)?);
            thread::spawn(move || self.answer_all(&channel).map_err(|error| error.to_string()));
        }
    }

    fn answer_all(self, channel: &Channel) -> Result<(), Failed> {
        if self.is_child {
            channel.send(&Message::Event(Event::Running), &[])?;
        }
        let mut lies_at_fork = false;
        loop {
            let (Request { id, command, .. }, descriptors) = channel.receive()?;
            if let (Command::Boot(_), Some(kernel)) = (&command, descriptors.first()) {
                let mut text = String::new();
                std::fs::File::from(kernel.try_clone()?).take(64).read_to_string(&mut text)?;
                lies_at_fork = text == "fork";
            }
            let (result, pidfd) = self.answer(&command, descriptors, lies_at_fork)?;
            let pidfds: Vec<_> = pidfd.iter().map(AsFd::as_fd).collect();
            channel.send(&Message::Reply { id, result }, &pidfds)?;
        }
    }

    fn answer(
        self,
        command: &Command,
        descriptors: Vec<OwnedFd>,
        lies: bool,
    ) -> Result<(Result<Reply, Refusal>, Option<OwnedFd>), Failed> {
        let control = descriptors.into_iter().next();
        let the_daemon = || open(self.daemon).map(Some);
        Ok(match command {
            Command::Fork(_) if !lies => {
                let control = control.ok_or("no socket")?;
                let child = Program::new(std::env::current_exe()?)
                    .args(["child", &self.daemon.to_string()])
                    .stdin(Stdio::from(control))
                    .spawn()?;
                let pid = child.id().try_into()?;
                (Ok(Reply::Forked { pid }), Some(open(pid)?))
            }
            Command::Fork(_) | Command::Branch(_) => {
                // Whoever asks at the new socket is told the same.
                let control = control.ok_or("no socket")?;
                thread::spawn(move || self.serve(control).map_err(|error| error.to_string()));
                let reply = match command {
                    Command::Fork(_) => Reply::Forked { pid: self.daemon },
                    _ => Reply::Branched { pid: self.daemon, pause_us: 1, disk_layer: false },
                };
                (Ok(reply), the_daemon()?)
            }
            Command::Identify => {
                (Ok(Reply::Identified { pid: self.daemon, disk: Vec::new() }), the_daemon()?)
            }
            Command::Freeze => (Ok(Reply::Frozen { disk_layer: false }), None),
            Command::Persist(_) => (Err(Refusal { code: RefusalCode::Failed, message: "no".into() }), None),
            Command::Shutdown => std::process::exit(0),
            _ => (Ok(Reply::Done), None),
        })
    }
}

fn open(pid: i32) -> Result<OwnedFd, Failed> {
    let pid = Pid::from_raw(pid).ok_or("no process")?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}
