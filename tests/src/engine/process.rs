//! A VM process and the host's ends of its sockets.

use std::error::Error;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command as Program, Stdio};
use std::sync::Arc;
use std::time::Duration;

use forkd_proto::channel::Channel;
use forkd_proto::control::{
    Boot, Branch, Command, CpuModel, Devices, Disk, Event, Fork, Message, Refusal, Reply, Request, Stats,
    VERSION,
};

use rustix::event::{PollFd, PollFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::guest::{self, Order};
use crate::binaries;

pub type Failure = Box<dyn Error + Send + Sync>;

/// No answer takes longer, on the slowest host.
const PATIENCE: Duration = Duration::from_secs(60);

/// The control socket of a process: requests in, replies out, events kept until they are asked for.
#[derive(Debug)]
pub struct Control {
    channel: Channel,
    events: Vec<Event>,
    next_id: u64,
}

impl Control {
    /// A new socket, and the end that a process gets.
    pub fn new() -> Result<(Control, OwnedFd), Failure> {
        let (ours, theirs) = Channel::pair()?;
        Ok((Control::over(ours)?, theirs.into_inner()))
    }

    /// A connection to a process whose socket listens.
    pub fn connect(path: &Path) -> Result<Control, Failure> {
        let socket = seqpacket()?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        Control::over(Channel::new(socket))
    }

    fn over(channel: Channel) -> Result<Control, Failure> {
        let timeout = rustix::net::sockopt::Timeout::Recv;
        rustix::net::sockopt::set_socket_timeout(&channel, timeout, Some(PATIENCE))?;
        Ok(Control { channel, events: Vec::new(), next_id: 1 })
    }

    /// Sends a request and waits for its reply.
    pub fn call(
        &mut self,
        command: Command,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Result<(Reply, Option<OwnedFd>), Refusal>, Failure> {
        let id = self.send(command, descriptors)?;
        self.reply(id)
    }

    /// Sends a request and returns its id.
    pub fn send(&mut self, command: Command, descriptors: &[BorrowedFd<'_>]) -> Result<u64, Failure> {
        let id = self.next_id;
        self.next_id += 1;
        self.channel.send(&Request { version: VERSION, id, command }, descriptors)?;
        Ok(id)
    }

    /// Sends anything at all.
    pub fn send_raw(&mut self, message: &serde_json::Value) -> Result<(), Failure> {
        Ok(self.channel.send(message, &[])?)
    }

    /// Waits for the reply to a request.
    pub fn reply(&mut self, id: u64) -> Result<Result<(Reply, Option<OwnedFd>), Refusal>, Failure> {
        Ok(self.whole_reply(id)?.map(|(reply, descriptors)| (reply, descriptors.into_iter().next())))
    }

    /// The same with all descriptors.
    fn whole_reply(&mut self, id: u64) -> Result<Result<(Reply, Vec<OwnedFd>), Refusal>, Failure> {
        loop {
            let (message, descriptors) = self.channel.receive::<Message>()?;
            match message {
                Message::Event(event) => self.events.push(event),
                Message::Reply { id: replied, result } if replied == id => {
                    return Ok(result.map(|reply| (reply, descriptors)));
                }
                Message::Reply { id: replied, .. } => {
                    return Err(format!("a reply to {replied}, not to {id}").into());
                }
            }
        }
    }

    /// A request that must be carried out.
    pub fn must(
        &mut self,
        command: Command,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(Reply, Option<OwnedFd>), Failure> {
        let name = command.name();
        self.call(command, descriptors)?.map_err(|refusal| format!("{name}: {}", refusal.message).into())
    }

    /// The same, with all descriptors of the reply.
    pub fn must_all(
        &mut self,
        command: Command,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(Reply, Vec<OwnedFd>), Failure> {
        let name = command.name();
        let id = self.send(command, descriptors)?;
        self.whole_reply(id)?.map_err(|refusal| format!("{name}: {}", refusal.message).into())
    }

    /// The next event.
    pub fn event(&mut self) -> Result<Event, Failure> {
        if !self.events.is_empty() {
            return Ok(self.events.remove(0));
        }
        match self.channel.receive::<Message>()?.0 {
            Message::Event(event) => Ok(event),
            Message::Reply { id, .. } => Err(format!("a reply to {id} that nobody waits for").into()),
        }
    }

    /// An event that came with a reply and was not asked for yet.
    pub fn waiting(&mut self) -> Option<Event> {
        (!self.events.is_empty()).then(|| self.events.remove(0))
    }

    pub fn stats(&mut self) -> Result<Stats, Failure> {
        match self.must(Command::Stats, &[])?.0 {
            Reply::Stats(stats) => Ok(stats),
            other => Err(format!("stats are {other:?}").into()),
        }
    }
}

/// A tiny guest's mailbox.
#[derive(Debug)]
pub struct Mailbox(UnixStream);

impl Mailbox {
    /// A new mailbox, and the end that the VM gets.
    pub fn new() -> Result<(Mailbox, OwnedFd), Failure> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_read_timeout(Some(PATIENCE))?;
        Ok((Mailbox(ours), theirs.into()))
    }

    /// Gives the guest an order and waits for its result.
    pub fn order(&mut self, order: Order, first: u64, second: u64) -> Result<u64, Failure> {
        self.tell(order, first, second)?;
        self.result()
    }

    pub fn tell(&mut self, order: Order, first: u64, second: u64) -> Result<(), Failure> {
        let words = [order as u64, first, second].map(u64::to_le_bytes);
        Ok(self.0.write_all(words.as_flattened())?)
    }

    pub fn result(&mut self) -> Result<u64, Failure> {
        let mut result = [0; 8];
        self.0.read_exact(&mut result)?;
        Ok(u64::from_le_bytes(result))
    }
}

/// A running VM with a tiny guest.
#[derive(Debug)]
pub struct TinyVm {
    pub control: Control,
    pub mailbox: Mailbox,
    /// Of a VM that was forked.
    pub pidfd: Option<OwnedFd>,
    pub pid: i32,
    pub disks: Vec<OwnDisk>,
}

/// A VM's disk, its frozen layers, and the file that it writes to.
#[derive(Debug)]
pub struct OwnDisk {
    pub below: FrozenDisk,
    pub top: Arc<File>,
}

/// What the VMs of a zygote share of a disk.
#[derive(Debug, Clone)]
pub struct FrozenDisk {
    pub disk: Disk,
    /// From the bottom up.
    pub layers: Vec<Arc<File>>,
}

impl OwnDisk {
    pub fn new(below: FrozenDisk) -> Result<OwnDisk, Failure> {
        Ok(OwnDisk { below, top: Arc::new(tempfile::tempfile()?) })
    }

    /// What is below the next top layer: with the old one, if there was anything in it.
    fn freeze(&self, is_layer: bool) -> FrozenDisk {
        let mut below = self.below.clone();
        below.layers.extend(is_layer.then(|| Arc::clone(&self.top)));
        below
    }
}

/// Empty top layers.
pub fn own_disks(below: &[FrozenDisk]) -> Result<Vec<OwnDisk>, Failure> {
    below.iter().cloned().map(OwnDisk::new).collect()
}

/// A process that can be forked from.
#[derive(Debug)]
pub struct Zygote {
    pub control: Control,
    pub pid: i32,
    /// What is below the disks of its VMs.
    pub disks: Vec<FrozenDisk>,
}

/// The first process of a family, which the test has started.
#[derive(Debug)]
pub struct Started(Child);

impl Started {
    pub fn pid(&self) -> Result<i32, Failure> {
        Ok(i32::try_from(self.0.id())?)
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn seqpacket() -> Result<OwnedFd, Failure> {
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Starts a process without a VM.
pub fn start() -> Result<(Started, Control), Failure> {
    let (control, theirs) = Control::new()?;
    Ok((start_with(theirs)?, control))
}

fn start_with(theirs: OwnedFd) -> Result<Started, Failure> {
    let child = Program::new(binaries::directory().join("forkd-vmm"))
        .arg("run")
        .stdin(Stdio::from(theirs))
        .spawn()?;
    Ok(Started(child))
}

/// Gives a process what it cannot open itself, as the engine does.
pub fn give_page_table(control: &mut Control, pid: i32) -> Result<(), Failure> {
    // A VM that another has taken the place of has another number.
    if let Ok(file) = forkd_engine::page_table::open(pid, None) {
        control.must(Command::PageTable, &[file.as_fd()])?;
    }
    Ok(())
}

/// A file without a name that has this content.
pub(super) fn temporary(content: &[u8]) -> Result<File, Failure> {
    let mut file = tempfile::tempfile()?;
    file.write_all(content)?;
    file.rewind()?;
    Ok(file)
}

/// The devices of a tiny guest.
pub fn tiny_devices(disks: impl Iterator<Item = Disk>) -> Devices {
    Devices { mailbox: true, disks: disks.collect(), ..Devices::default() }
}

/// A request that boots a tiny guest. Its kernel comes first, its mailbox last.
pub fn tiny_boot(vcpus: u8, memory_bytes: u64, disks: &[Disk]) -> Boot {
    Boot {
        vcpus,
        memory_bytes,
        command_line: String::new(),
        initramfs: false,
        cpu: CpuModel::Host,
        devices: tiny_devices(disks.iter().copied()),
    }
}

/// The kernel of a tiny guest.
pub fn tiny_kernel() -> Result<OwnedFd, Failure> {
    Ok(temporary(&guest::elf())?.into())
}

/// The descriptors of a request, of which the disks' top layers come behind the first.
fn with_tops<'a>(first: &'a OwnedFd, disks: &'a [OwnDisk], rest: &'a [OwnedFd]) -> Vec<BorrowedFd<'a>> {
    let tops = disks.iter().map(|disk| disk.top.as_fd());
    [first.as_fd()].into_iter().chain(tops).chain(rest.iter().map(AsFd::as_fd)).collect()
}

/// Boots a tiny guest with one vCPU and this much memory.
pub fn boot(memory_bytes: u64) -> Result<(Started, TinyVm), Failure> {
    boot_with(1, memory_bytes)
}

/// Boots a tiny guest with one vCPU of this model.
pub fn boot_on(cpu: CpuModel, memory_bytes: u64) -> Result<(Started, TinyVm), Failure> {
    let (started, control) = start()?;
    boot_in(started, control, Boot { cpu, ..tiny_boot(1, memory_bytes, &[]) })
}

/// Boots a tiny guest with this many vCPUs.
pub fn boot_with(vcpus: u8, memory_bytes: u64) -> Result<(Started, TinyVm), Failure> {
    let (started, control) = start()?;
    boot_in(started, control, tiny_boot(vcpus, memory_bytes, &[]))
}

/// Boots a tiny guest with this many vCPUs and a disk without an image below.
pub fn boot_with_disk(
    vcpus: u8,
    memory_bytes: u64,
    disk_bytes: u64,
    limit_bytes: u64,
) -> Result<(Started, TinyVm), Failure> {
    boot_with_disks(
        vcpus,
        memory_bytes,
        &[Disk { bytes: disk_bytes, limit_bytes, base: false, layers: 0, read_only: false }],
    )
}

/// The same with these disks, none of which has anything below.
pub fn boot_with_disks(vcpus: u8, memory_bytes: u64, disks: &[Disk]) -> Result<(Started, TinyVm), Failure> {
    let (started, control) = start()?;
    boot_in(started, control, tiny_boot(vcpus, memory_bytes, disks))
}

/// Boots a tiny guest in a process that listens at this path for whoever wants to talk to it.
pub fn boot_listening(memory_bytes: u64, path: &Path) -> Result<(Started, TinyVm), Failure> {
    let listener = seqpacket()?;
    rustix::net::bind(&listener, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&listener, 4)?;
    let started = start_with(listener)?;
    boot_in(started, Control::connect(path)?, tiny_boot(1, memory_bytes, &[]))
}

fn boot_in(started: Started, mut control: Control, request: Boot) -> Result<(Started, TinyVm), Failure> {
    let pid = started.pid()?;
    let (mailbox, theirs) = Mailbox::new()?;
    let empty = |disk: &Disk| OwnDisk::new(FrozenDisk { disk: *disk, layers: Vec::new() });
    let disks = request.devices.disks.iter().map(empty).collect::<Result<Vec<_>, _>>()?;
    control.must(Command::Boot(request), &with_tops(&tiny_kernel()?, &disks, &[theirs]))?;
    Ok((started, TinyVm { control, mailbox, pidfd: None, pid, disks }))
}

impl TinyVm {
    /// Makes this process a zygote.
    pub fn freeze(mut self) -> Result<Zygote, Failure> {
        let reply = self.control.must(Command::Freeze, &[])?;
        let (Reply::Frozen { disk_layers }, None) = reply else {
            return Err(format!("a freeze is {reply:?}").into());
        };
        let disks = self.frozen(&disk_layers);
        Ok(Zygote { control: self.control, pid: self.pid, disks })
    }

    /// What is below its disks when their top layers are frozen, of which the process says which had anything in them.
    fn frozen(&self, disk_layers: &[bool]) -> Vec<FrozenDisk> {
        self.disks.iter().zip(disk_layers).map(|(disk, is_layer)| disk.freeze(*is_layer)).collect()
    }

    /// Branches off a zygote and says how long the VM stood still.
    pub fn branch(&mut self) -> Result<(Zygote, Duration), Failure> {
        let (control, theirs) = Control::new()?;
        let below: Vec<_> = self.disks.iter().map(|disk| disk.below.clone()).collect();
        let mut next = own_disks(&below)?;
        give_page_table(&mut self.control, self.pid)?;
        let request = Branch { cgroup: false, disks: u8::try_from(next.len())? };
        let reply = self.control.must(Command::Branch(request), &with_tops(&theirs, &next, &[]))?;
        let (Reply::Branched { pid, pause_us, disk_layers }, Some(_)) = reply else {
            return Err(format!("a branch is {reply:?}").into());
        };
        let disks = self.frozen(&disk_layers);
        next.iter_mut().zip(&disks).for_each(|(disk, below)| disk.below = below.clone());
        self.disks = next;
        let mut zygote = Zygote { control, pid, disks };
        match zygote.control.event()? {
            Event::Zygote => Ok((zygote, Duration::from_micros(pause_us))),
            other => Err(format!("a branch says {other:?}").into()),
        }
    }
}

/// A fork that was asked for.
#[derive(Debug)]
pub struct Pending {
    id: u64,
    control: Control,
    pub mailbox: Mailbox,
    disks: Vec<OwnDisk>,
}

/// A fork whose process is there.
#[derive(Debug)]
pub struct Forked {
    control: Control,
    mailbox: Mailbox,
    pidfd: Option<OwnedFd>,
    pid: i32,
    disks: Vec<OwnDisk>,
}

impl Zygote {
    /// Ends the process and waits until its memory is gone.
    pub fn end(mut self) -> Result<(), Failure> {
        let pidfd = rustix::process::pidfd_open(
            rustix::process::Pid::from_raw(self.pid).ok_or("no process")?,
            rustix::process::PidfdFlags::empty(),
        )?;
        self.control.must(Command::Shutdown, &[])?;
        let mut events = [PollFd::new(&pidfd, PollFlags::IN)];
        rustix::event::poll(&mut events, None)?;
        Ok(())
    }

    /// Asks for a fork without waiting for anything. Whoever asks for many takes the replies in between: a zygote that
    /// cannot get rid of its replies takes no more requests.
    pub fn ask(&mut self) -> Result<Pending, Failure> {
        let (control, control_theirs) = Control::new()?;
        let (mailbox, mailbox_theirs) = Mailbox::new()?;
        let disks = own_disks(&self.disks)?;
        let devices = tiny_devices(self.disks.iter().map(|below| below.disk));
        let request = Command::Fork(Fork { cgroup: false, successor: false, uid: None, devices });
        let id = self.control.send(request, &with_tops(&control_theirs, &disks, &[mailbox_theirs]))?;
        Ok(Pending { id, control, mailbox, disks })
    }

    /// Takes the reply: the process is there, its VM perhaps not yet.
    pub fn accept(&mut self, pending: Pending) -> Result<Forked, Failure> {
        let Pending { id, control, mailbox, disks } = pending;
        let (reply, pidfd) =
            self.control.reply(id)?.map_err(|refusal| format!("fork: {}", refusal.message))?;
        let Reply::Forked { pid } = reply else {
            return Err(format!("a fork is {reply:?}").into());
        };
        Ok(Forked { control, mailbox, pidfd, pid, disks })
    }

    pub fn fork(&mut self) -> Result<TinyVm, Failure> {
        let pending = self.ask()?;
        self.accept(pending)?.running()
    }
}

impl Forked {
    /// The first thing it says.
    pub fn first_words(mut self) -> Result<Event, Failure> {
        self.control.event()
    }

    /// Waits until the VM runs.
    pub fn running(self) -> Result<TinyVm, Failure> {
        let Forked { mut control, mailbox, pidfd, pid, disks } = self;
        match control.event()? {
            Event::Running => Ok(TinyVm { control, mailbox, pidfd, pid, disks }),
            other => Err(format!("a fork says {other:?}").into()),
        }
    }
}
