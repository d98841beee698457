//! A VM process that was taken over, as the daemon sees it: it has no VM, and answers what it likes.
//!
//! `liar-vmm run <CONTROL-SOCKET`, as the daemon starts `forkd-vmm`. The kernel that it is to boot says how it lies:
//!
//! | kernel | lie |
//! |---|---|
//! | `fork`, `branch` | of what it forks, or what is branched from that, it says that it is the daemon itself, and shows a pidfd to prove it: a daemon that believes that ends itself with the sandbox |
//! | `keep` | the layer that was frozen by a branch, which it says it has given up, is still open for writing: in the process that everything was forked from |
//! | `keep-empty` | the same, and it says that nothing was written to the layer |
//! | `keep-boot` | the same with the layer that was written while it booted |
//! | `give` | none of these: layers are frozen, and given up |

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
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Booted,
    Forked,
    Branched,
}

#[derive(Clone, Copy)]
struct Liar {
    daemon: i32,
    role: Role,
    lie: Lie,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Lie {
    Fork,
    Branch,
    Keep,
    KeepEmpty,
    KeepBoot,
    Give,
}

impl Lie {
    const ALL: [(&str, Lie); 6] = [
        ("fork", Lie::Fork),
        ("branch", Lie::Branch),
        ("keep", Lie::Keep),
        ("keep-empty", Lie::KeepEmpty),
        ("keep-boot", Lie::KeepBoot),
        ("give", Lie::Give),
    ];

    fn named(name: &str) -> Result<Lie, Failed> {
        Ok(Lie::ALL.into_iter().find(|(known, _)| *known == name).ok_or("no such lie")?.1)
    }

    fn name(self) -> &'static str {
        Lie::ALL.into_iter().find(|(_, lie)| *lie == self).map_or("", |(name, _)| name)
    }
}

fn main() -> Result<(), Failed> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let liar = match arguments.as_slice() {
        [role, daemon, lie] if role == "forked" || role == "branched" => {
            let role = if role == "forked" { Role::Forked } else { Role::Branched };
            Liar { daemon: daemon.parse()?, role, lie: Lie::named(lie)? }
        }
        _ => Liar { daemon: parent_id().try_into()?, role: Role::Booted, lie: Lie::Branch },
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

    fn answer_all(mut self, channel: &Channel) -> Result<(), Failed> {
        match self.role {
            Role::Booted => {}
            Role::Forked => channel.send(&Message::Event(Event::Running), &[])?,
            Role::Branched => channel.send(&Message::Event(Event::Zygote), &[])?,
        }
        loop {
            let (Request { id, command, .. }, descriptors) = channel.receive()?;
            if let (Command::Boot(_), Some(kernel)) = (&command, descriptors.first()) {
                let mut text = String::new();
                std::fs::File::from(kernel.try_clone()?).take(64).read_to_string(&mut text)?;
                self.lie = Lie::named(&text)?;
            }
            let keeps = match (&command, self.lie) {
                (Command::Boot(_), lie) => lie == Lie::KeepBoot,
                (Command::Fork(_), lie) => matches!(lie, Lie::Keep | Lie::KeepEmpty),
                _ => false,
            };
            if keeps {
                // Open as long as this process is there.
                descriptors.iter().try_for_each(|file| file.try_clone().map(std::mem::forget))?;
            }
            let (result, pidfd) = self.answer(&command, descriptors)?;
            let pidfds: Vec<_> = pidfd.iter().map(AsFd::as_fd).collect();
            channel.send(&Message::Reply { id, result }, &pidfds)?;
        }
    }

    fn answer(
        self,
        command: &Command,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(Result<Reply, Refusal>, Option<OwnedFd>), Failed> {
        let control = descriptors.into_iter().next();
        let the_daemon = || open(self.daemon).map(Some);
        Ok(match (command, self.lie) {
            (Command::Fork(_), Lie::Fork) | (Command::Branch(_), Lie::Fork | Lie::Branch) => {
                // Whoever asks at the new socket is told the same.
                let control = control.ok_or("no socket")?;
                thread::spawn(move || self.serve(control).map_err(|error| error.to_string()));
                let reply = match command {
                    Command::Fork(_) => Reply::Forked { pid: self.daemon },
                    _ => Reply::Branched { pid: self.daemon, pause_us: 1, disk_layers: vec![false] },
                };
                (Ok(reply), the_daemon()?)
            }
            (Command::Fork(_), _) => {
                let pid = self.start("forked", control.ok_or("no socket")?)?;
                (Ok(Reply::Forked { pid }), Some(open(pid)?))
            }
            (Command::Branch(_), lie) => {
                let pid = self.start("branched", control.ok_or("no socket")?)?;
                let disk_layers = vec![lie != Lie::KeepEmpty];
                (Ok(Reply::Branched { pid, pause_us: 1, disk_layers }), Some(open(pid)?))
            }
            (Command::Identify, _) => {
                (Ok(Reply::Identified { pid: self.daemon, disks: Vec::new() }), the_daemon()?)
            }
            (Command::Freeze, lie) => (Ok(Reply::Frozen { disk_layers: vec![lie == Lie::KeepBoot] }), None),
            (Command::Persist(_), _) => {
                (Err(Refusal { code: RefusalCode::Failed, message: "no".into() }), None)
            }
            (Command::Shutdown, _) => std::process::exit(0),
            _ => (Ok(Reply::Done), None),
        })
    }

    /// Starts a child that is what it says, with nothing of this process's but its socket.
    fn start(self, role: &str, control: OwnedFd) -> Result<i32, Failed> {
        let child = Program::new(std::env::current_exe()?)
            .args([role, &self.daemon.to_string(), self.lie.name()])
            .stdin(Stdio::from(control))
            .spawn()?;
        Ok(child.id().try_into()?)
    }
}

fn open(pid: i32) -> Result<OwnedFd, Failed> {
    let pid = Pid::from_raw(pid).ok_or("no process")?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}
