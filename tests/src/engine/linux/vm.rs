//! A guest that runs, and a zygote of one.

use std::fs::{self, File};
use std::io::{ErrorKind, PipeWriter, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forkd_proto::channel::ChannelError;
use forkd_proto::control::{Branch, Command, Descriptor, Event, ExitReason, Fork, Reply};
use forkd_store::{Digest, DiskLayer, LayerEntry, Store, Stored};

use super::{Setup, copies, disk};
use crate::engine::process::{Control, Failure, Started};
use crate::engine::snapshot::{Host, load_with, persist_with};

/// Nothing that a guest is asked for takes longer, on the slowest host.
const PATIENCE: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_millis(20);

/// What a healthy guest's kernel never says.
const COMPLAINTS: [&str; 5] = ["BUG", "Oops", "panic", "Call Trace", "EXT4-fs error"];

/// A running guest.
#[derive(Debug)]
pub struct LinuxVm {
    pub control: Control,
    console: PathBuf,
    keyboard: PipeWriter,
    socket: PathBuf,
    /// The layers of its disk, from the one above the image to its own top.
    layers: Vec<File>,
    commands: u32,
}

/// A process that guests can be forked from.
#[derive(Debug)]
pub struct LinuxZygote {
    pub control: Control,
    /// The frozen layers of its disk.
    pub(super) layers: Vec<File>,
}

impl LinuxVm {
    pub(super) fn new(
        control: Control,
        console: PathBuf,
        keyboard: PipeWriter,
        socket: PathBuf,
        layers: Vec<File>,
    ) -> LinuxVm {
        LinuxVm { control, console, keyboard, socket, layers, commands: 0 }
    }

    /// Where the host reaches the guest's vsock.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// What is on the console.
    pub fn console(&self) -> Result<String, Failure> {
        Ok(String::from_utf8_lossy(&fs::read(&self.console)?).into_owned())
    }

    /// Waits until the console says this.
    pub fn wait_for(&mut self, words: &str) -> Result<(), Failure> {
        let begun = Instant::now();
        while !self.console()?.contains(words) {
            if begun.elapsed() > PATIENCE {
                return Err(self.trouble(&format!("it did not say {words:?}")));
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// What happens next by itself.
    pub fn event(&mut self) -> Result<Event, Failure> {
        next_event(&mut self.control).map_err(|error| self.trouble(&format!("nothing happens: {error}")))
    }

    /// What went wrong, with all there is to know: whether the vCPUs still do anything, and what the guest said.
    fn trouble(&mut self, what: &str) -> Failure {
        let mut exits =
            || self.control.stats().map_or_else(|error| error.to_string(), |stats| stats.exits.to_string());
        let before = exits();
        std::thread::sleep(Duration::from_secs(2));
        let after = exits();
        let console = self.console().unwrap_or_default();
        format!("the guest: {what}; its exits went from {before} to {after} in 2 s; it said:\n{console}")
            .into()
    }

    /// Waits for the shell.
    pub fn wait_for_shell(&mut self) -> Result<(), Failure> {
        self.wait_for("guest# ")
    }

    /// Types a line.
    pub fn enter(&mut self, line: &str) -> Result<(), Failure> {
        Ok(self.keyboard.write_all(format!("{line}\n").as_bytes())?)
    }

    /// Types a command, waits until it has ended, and returns what it printed.
    pub fn run(&mut self, command: &str) -> Result<String, Failure> {
        self.commands += 1;
        // The terminal shows what is typed too. Only the shell makes numbers of these.
        let number = self.commands;
        self.enter(&format!("echo begin-$(({number})); {command}; echo end-$(({number}))"))?;
        self.wait_for(&format!("end-{number}\r\n"))?;
        let console = self.console()?;
        let between = console
            .split_once(&format!("begin-{number}\r\n"))
            .and_then(|(_, after)| after.split_once(&format!("end-{number}\r\n")));
        let (output, _) = between.ok_or_else(|| format!("no answer to {command:?} in:\n{console}"))?;
        Ok(output.replace("\r\n", "\n").trim_end().to_owned())
    }

    /// The guest's end, as its process tells it.
    pub fn wait_for_end(&mut self) -> Result<(), Failure> {
        match self.event()? {
            Event::Exited { reason: ExitReason::Shutdown, .. } => Ok(()),
            other => Err(format!("the guest ended with {other:?}:\n{}", self.console()?).into()),
        }
    }

    /// Waits until the guest has unmounted its disk and switched itself off. Its kernel must not have complained, and the
    /// disk must be whole.
    pub fn finish(&mut self, setup: &Setup) -> Result<(), Failure> {
        self.wait_for("guest: done")?;
        self.wait_for_end()?;
        let console = self.console()?;
        if COMPLAINTS.iter().any(|word| console.contains(word)) {
            return Err(format!("the guest's kernel complains:\n{console}").into());
        }
        disk::check(setup.base(), &self.layers)
    }

    /// Leaves the shell, and the rest.
    pub fn switch_off(&mut self, setup: &Setup) -> Result<(), Failure> {
        self.enter("exit")?;
        self.finish(setup)
    }

    /// Branches off a zygote; the guest goes on with a new top layer.
    pub fn branch(&mut self, setup: &Setup, name: &str) -> Result<(LinuxZygote, Duration), Failure> {
        let (mut control, theirs) = Control::new()?;
        let top = setup.file(&format!("{name}.top"))?;
        let request = Branch { cgroup: false, disks: 1 };
        let reply = self.control.must(Command::Branch(request), &[theirs.as_fd(), top.as_fd()])?;
        match (reply.0, next_event(&mut control)?) {
            (Reply::Branched { pause_us, disk_layers, .. }, Event::Zygote) => {
                if disk_layers != [true] {
                    self.layers.pop();
                }
                let layers = copies(&self.layers)?;
                self.layers.push(top);
                Ok((LinuxZygote { control, layers }, Duration::from_micros(pause_us)))
            }
            other => Err(format!("a branch says {other:?}").into()),
        }
    }

    /// Goes back to one of the guest's own branches: another process has its place then, with a new top layer.
    pub fn roll_back(&mut self, setup: &Setup, zygote: &mut LinuxZygote, name: &str) -> Result<(), Failure> {
        let (predecessor, successor) = UnixStream::pair()?;
        let (reply, handed) = self.control.must_all(Command::HandOver, &[successor.as_fd()])?;
        drop(successor);
        let Reply::HandedOver { devices } = reply else {
            return Err(format!("the guest's process answers {reply:?}").into());
        };
        let top = setup.file(&format!("{name}.top"))?;
        let request = Command::Fork(Fork { cgroup: false, successor: true, uid: None, devices });
        let mut handed = handed.iter().map(AsFd::as_fd);
        let mut descriptors = Vec::new();
        for wanted in request.descriptors() {
            descriptors.push(match wanted {
                Descriptor::Predecessor => predecessor.as_fd(),
                Descriptor::DiskTop => top.as_fd(),
                // The control socket and the devices' descriptors, in this order.
                _ => handed.next().ok_or_else(|| format!("no {wanted:?} was handed over"))?,
            });
        }
        zygote.control.must(request, &descriptors)?;
        drop(predecessor);
        match self.event()? {
            Event::Running => {}
            other => return Err(format!("the successor says {other:?}").into()),
        }
        self.layers = copies(&zygote.layers)?;
        self.layers.push(top);
        Ok(())
    }
}

/// The next event of a process, for which it may take its time.
pub(super) fn next_event(control: &mut Control) -> Result<Event, Failure> {
    let begun = Instant::now();
    loop {
        match control.event() {
            Err(error) if is_timeout(&error) && begun.elapsed() < PATIENCE => {}
            result => return result,
        }
    }
}

/// Whether nothing has come yet.
fn is_timeout(error: &Failure) -> bool {
    let error = error.downcast_ref::<ChannelError>();
    matches!(error, Some(ChannelError::Io(error)) if error.kind() == ErrorKind::WouldBlock)
}

impl LinuxZygote {
    /// Writes a snapshot: a full one, or a diff to `parent`.
    pub fn persist(
        &mut self,
        setup: &Setup,
        store: &Store,
        tag: &str,
        parent: Option<&Stored>,
    ) -> Result<Stored, Failure> {
        let files: Vec<&File> = std::iter::once(setup.base()).chain(&self.layers).collect();
        persist_with(store, &mut self.control, tag, parent, || {
            let layer = |(number, file): (usize, &&File)| {
                let (size, digest) = Digest::of_image(file)?;
                Ok(DiskLayer { id: format!("layer-{number}").parse()?, entry: LayerEntry { digest, size } })
            };
            files.iter().enumerate().map(layer).collect()
        })
    }

    /// A new zygote from a snapshot with these layers.
    pub fn load(
        setup: &Setup,
        store: &Store,
        tag: &str,
        layers: &[File],
    ) -> Result<(Started, LinuxZygote), Failure> {
        let disk_layers = layers.iter().collect();
        let host = Host { disk_bases: vec![setup.base()], disk_layers, ..Host::default() };
        let (started, zygote) = load_with(store, tag, &host)?;
        Ok((started, LinuxZygote { control: zygote.control, layers: copies(layers)? }))
    }

    /// The frozen layers of its disk.
    pub fn layers(&self) -> &[File] {
        &self.layers
    }
}
