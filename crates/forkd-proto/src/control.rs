//! The control protocol of a VM process (`forkd-vmm run`).
//!
//! One socket a process. The holder of the other end sends [`Request`]s; the process answers each with one [`Message::Reply`]
//! of the same id, in order, and sends [`Message::Event`]s for events of the VM. Descriptors travel with the
//! request that they belong to, in the order that its [`Command::descriptors`] names.
//!
//! ```text
//!                Boot                    Freeze
//!   empty ──────────────▶ running ─────────────────▶ zygote ──▶ Fork: another process, running
//!     │                    │   ▲ Resume                ▲ ▲  └───▶ Persist: another process, which writes a snapshot
//!     │              Pause ▼   │                       │ │
//!     │                   paused ──────────────────────┘ │
//!     │                   (both) Branch: another process, a zygote
//!     └──────────────────────────────────────────────────┘
//!                Load
//! ```
//!
//! A control socket is one of a connected pair, and then the process ends with the other end; or it listens, and then the
//! process outlives its client and waits for the next one, which gets the events of the time between.
//!
//! A VM goes back to one of its branches in three steps. `HandOver` stops it and answers with its control socket and its
//! devices' descriptors. `Fork` of the branch's zygote is given those, and the successor has the VM's place: the same
//! control socket, the same network, the same id. The two are connected by a socket of their own: when the successor can
//! run, it tells the VM to end; if it cannot, the socket closes, and the VM resumes and says [`Event::Kept`].

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::one_or_many;
use crate::page_runs::PageRuns;

/// The version of this protocol. A process refuses requests of another.
pub const VERSION: u32 = 1;

/// The most disks of a VM: each takes an interrupt, and the descriptors of all of them travel in one message.
pub const MAX_DISKS: usize = 4;

/// What the other end asks for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Request {
    pub version: u32,
    /// Chosen by the sender; comes back in the reply.
    pub id: u64,
    pub command: Command,
}

/// What every version of a request has: looked at before anything else, since another version's commands may be unknown here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct RequestHeader {
    pub version: u32,
    pub id: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Makes a VM and runs it.
    Boot(Boot),
    /// Stops all vCPUs at a point where their state is whole.
    Pause,
    /// Lets them go on.
    Resume,
    /// Ends the VM and keeps its memory and state: the process is a zygote from then on.
    Freeze,
    /// Makes a running VM of a zygote: a process of its own.
    Fork(Fork),
    /// Makes a zygote of a VM that keeps running: a process of its own.
    Branch(Branch),
    /// Makes a zygote of a snapshot.
    Load(Load),
    /// Writes a snapshot of a zygote, in a process of its own: the zygote can be forked from meanwhile.
    Persist(Persist),
    /// Makes the files of the frozen layers of a VM's or zygote's disks complete: a process that opens them finds all that was written. They
    /// are not synced.
    SettleDisk,
    /// Puts one frozen layer of a disk of a VM's or zygote's in the place of `count`, from the `first` on. Its contents are theirs.
    ReplaceLayers {
        /// The disk's number in [`Devices::disks`].
        #[serde(default, skip_serializing_if = "is_zero")]
        disk: u8,
        first: u16,
        count: u16,
    },
    /// Stops a VM and hands its place to a successor.
    HandOver,
    /// Gives the process what the kernel knows of its pages, which it cannot open: for the next `Branch` or `Persist`.
    PageTable,
    /// Tells a zygote which pages its children use first, in the place of what it was told before.
    Prefault(Prefault),
    /// Which pages of its memory a VM has copied: those that it has written since it was forked. After `PageTable`.
    OwnPages,
    /// The identity of the process, for a daemon that finds its socket again.
    Identify,
    /// What the process takes and has done.
    Stats,
    /// Ends the process.
    Shutdown,
}

/// What a descriptor is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Descriptor {
    /// The kernel, an ELF file.
    Kernel,
    /// The initial RAM disk.
    Initramfs,
    /// The control socket of the new process.
    Control,
    /// The directory of the cgroup that the new process begins in.
    Cgroup,
    /// The file that the serial port's output goes to.
    #[serde(rename = "console")]
    Serial,
    /// A pipe or a socket whose bytes are typed at the serial port. No other process reads from it.
    #[serde(rename = "console_input")]
    SerialInput,
    /// The image below a disk, which is only read.
    DiskBase,
    /// An empty file for what the VM writes to a disk.
    DiskTop,
    /// The tap device of the network.
    Tap,
    /// The listening socket through which the host reaches the guest.
    Vsock,
    /// Where random numbers come from.
    Entropy,
    /// The host's end of the tiny guest's mailbox.
    Mailbox,
    /// A snapshot's manifest.
    Manifest,
    /// A snapshot's memory.
    Memory,
    /// Which pages a diff has.
    PageMap,
    /// `/proc/PID/pagemap` of the process that it is sent to.
    PageTable,
    /// A snapshot's VM state.
    VmState,
    /// A frozen layer of a disk, which is only read.
    DiskLayer,
    /// An empty file for a snapshot's VM state.
    NewVmState,
    /// An empty file for a snapshot's memory.
    NewMemory,
    /// An empty file for the map of a diff.
    NewPageMap,
    /// The socket to the process that takes this one's place.
    Successor,
    /// The socket to the process whose place is taken.
    Predecessor,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Boot {
    pub vcpus: u8,
    pub memory_bytes: u64,
    pub command_line: String,
    /// Whether an initial RAM disk comes with the request.
    pub initramfs: bool,
    #[serde(default)]
    pub cpu: CpuModel,
    pub devices: Devices,
}

/// The CPU that a guest is shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum CpuModel {
    /// The host's, without what no guest has: virtualisation, counters, enclaves.
    #[default]
    #[serde(rename = "host")]
    Host,
    /// What every CPU of this level has, and no more.
    #[serde(rename = "x86-64-v2")]
    V2,
    #[serde(rename = "x86-64-v3")]
    V3,
}

impl fmt::Display for CpuModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CpuModel::Host => "host",
            CpuModel::V2 => "x86-64-v2",
            CpuModel::V3 => "x86-64-v3",
        })
    }
}

/// The devices of a VM.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Devices {
    /// A serial port, which is the guest's console. Its name on the wire and in records is older.
    #[serde(rename = "console")]
    pub serial: bool,
    /// Whether it has input.
    #[serde(default, rename = "console_input")]
    pub serial_input: bool,
    /// At most [`MAX_DISKS`]. The first is the one that the guest's root file system is on.
    #[serde(flatten, with = "disk_fields")]
    pub disks: Vec<Disk>,
    pub net: Option<Net>,
    pub vsock: Option<Vsock>,
    pub entropy: bool,
    /// For tests and benchmarks.
    pub mailbox: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    pub bytes: u64,
    /// The most that the VM may write to its own layer.
    pub limit_bytes: u64,
    /// Whether there is an image below.
    pub base: bool,
    /// How many frozen layers are between the image and the top, the oldest first.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub layers: u8,
    /// Whether the guest can only read it. It has a top layer like any other, in which there is never anything.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
}

impl Disk {
    /// The descriptors of the disk, in order. A VM that is forked has the image and the frozen layers already.
    fn descriptors(self, with_base: bool) -> impl Iterator<Item = Descriptor> {
        let base = (with_base && self.base).then_some(Descriptor::DiskBase);
        let layers = if with_base { self.layers } else { 0 };
        let layers = (0..layers).map(|_| Descriptor::DiskLayer);
        base.into_iter().chain(layers).chain([Descriptor::DiskTop])
    }
}

/// The disks among the fields of [`Devices`]. The layers of the first are counted beside it, where they were when it was the only
/// one, so that a VM with one disk is the same to processes and daemons, and in records and snapshots, of every version.
mod disk_fields {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::{Disk, MAX_DISKS, one_or_many};

    #[derive(Serialize, Deserialize)]
    struct Fields {
        #[serde(default, rename = "disk", with = "one_or_many")]
        disks: Vec<Disk>,
        #[serde(default)]
        disk_layers: u8,
    }

    pub fn serialize<S: Serializer>(disks: &[Disk], serializer: S) -> Result<S::Ok, S::Error> {
        let mut disks = disks.to_vec();
        let disk_layers = disks.first_mut().map_or(0, |first| std::mem::take(&mut first.layers));
        Fields { disks, disk_layers }.serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Disk>, D::Error> {
        let Fields { mut disks, disk_layers } = Fields::deserialize(deserializer)?;
        if disks.len() > MAX_DISKS {
            return Err(D::Error::custom(format!("{} disks, expected at most {MAX_DISKS}", disks.len())));
        }
        if let Some(first) = disks.first_mut() {
            first.layers = disk_layers;
        }
        Ok(disks)
    }
}

fn is_zero(number: &u8) -> bool {
    *number == 0
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Net {
    pub mac: [u8; 6],
    pub mtu: Option<u16>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vsock {
    pub cid: u32,
}

impl Devices {
    /// The disk that the guest's root file system is on.
    pub fn root_disk(&self) -> Option<&Disk> {
        self.disks.first()
    }

    /// The descriptors that a VM hands to its successor, in order: all but those of the disks.
    pub fn own(&self) -> Vec<Descriptor> {
        Devices { disks: Vec::new(), ..self.clone() }.descriptors(false).collect()
    }

    /// The descriptors of the devices, in order.
    fn descriptors(&self, with_base: bool) -> impl Iterator<Item = Descriptor> {
        let before = [(self.serial, Descriptor::Serial), (self.serial_input, Descriptor::SerialInput)];
        let after = [
            (self.net.is_some(), Descriptor::Tap),
            (self.vsock.is_some(), Descriptor::Vsock),
            (self.entropy, Descriptor::Entropy),
            (self.mailbox, Descriptor::Mailbox),
        ];
        let wanted = |(wanted, descriptor): (bool, Descriptor)| wanted.then_some(descriptor);
        let disks = self.disks.iter().flat_map(move |disk| disk.descriptors(with_base));
        before.into_iter().filter_map(wanted).chain(disks).chain(after.into_iter().filter_map(wanted))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fork {
    /// Whether a cgroup comes with the request.
    pub cgroup: bool,
    /// Whether the child takes the place of another VM, whose socket comes with the request.
    pub successor: bool,
    /// The user id of the child. Only a zygote that was loaded can give one; children of others have their zygote's.
    #[serde(default)]
    pub uid: Option<u32>,
    /// The devices of the zygote. Only what is the child's own may differ: the vsock id, and lower limits of its disks.
    pub devices: Devices,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Branch {
    /// Whether a cgroup comes with the request.
    pub cgroup: bool,
    /// How many disks the VM has: a new top layer for each comes with the request, and the old one is frozen under both
    /// sides.
    #[serde(rename = "disk", with = "one_or_many::count")]
    pub disks: u8,
}

/// A snapshot whose files come with a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotParts {
    /// Where it is, for messages.
    pub name: String,
    /// Whether it has a page map.
    #[serde(rename = "diff")]
    pub map: bool,
}

/// The descriptors of a chain: for each snapshot its manifest and memory, and its page map if it has one; for the last one
/// its state.
fn chain(snapshots: &[SnapshotParts]) -> impl Iterator<Item = Descriptor> {
    let state = (!snapshots.is_empty()).then_some(Descriptor::VmState);
    let files = snapshots.iter().flat_map(|snapshot| {
        let map = snapshot.map.then_some(Descriptor::PageMap);
        [Descriptor::Manifest, Descriptor::Memory].into_iter().chain(map)
    });
    files.chain(state)
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// From the full one at the bottom to the one that is loaded.
    pub chain: Vec<SnapshotParts>,
    /// How many disks have an image below.
    #[serde(rename = "disk_base", with = "one_or_many::count")]
    pub disk_bases: u8,
    /// How many frozen layers all disks have. The snapshot says which are whose.
    pub disk_layers: u8,
    /// Whether images and layers are known to be what the snapshot says. If not, every byte of them is checked.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disks_checked: bool,
    /// Memory that is larger is refused.
    pub memory_limit_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Persist {
    /// Whether a cgroup comes with the request.
    pub cgroup: bool,
    /// What the snapshot will be a diff to; empty for a full one.
    pub base: Vec<SnapshotParts>,
    /// Whether only pages that are not zero are written, and a list of them. A process that does not know this writes a full snapshot with
    /// all pages at their places, and gets no file for a list.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub packed: bool,
}

/// The pages that every child of a zygote uses soon after it begins to run. A child makes them ready before it runs: what it is not
/// told it does when it gets there, and what it is told in vain costs memory and time, and nothing else.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prefault {
    /// Pages that children write. Each child copies them before KVM has mapped anything.
    pub written: PageRuns,
    /// Pages that they read. KVM maps them, and the written ones, before the guest runs, where the host's kernel can.
    pub touched: PageRuns,
    /// Memory that children use and that was not used before, in whole huge pages. The zygote has them made now: a child then copies the
    /// few small pages that it writes, instead of getting 2 MiB of zeroes.
    #[serde(default, skip_serializing_if = "PageRuns::is_empty")]
    pub fresh: PageRuns,
}

impl Command {
    /// The descriptors that come with the command, in order.
    pub fn descriptors(&self) -> Vec<Descriptor> {
        crate::passes!();
        let with = |wanted: bool, descriptor| wanted.then_some(descriptor);
        let several = |count: u8, descriptor| std::iter::repeat_n(descriptor, count.into());
        match self {
            Command::Boot(boot) => [Some(Descriptor::Kernel), with(boot.initramfs, Descriptor::Initramfs)]
                .into_iter()
                .flatten()
                .chain(boot.devices.descriptors(true))
                .collect(),
            Command::Fork(fork) => [
                Some(Descriptor::Control),
                with(fork.cgroup, Descriptor::Cgroup),
                with(fork.successor, Descriptor::Predecessor),
            ]
            .into_iter()
            .flatten()
            .chain(fork.devices.descriptors(false))
            .collect(),
            Command::Branch(branch) => [Some(Descriptor::Control), with(branch.cgroup, Descriptor::Cgroup)]
                .into_iter()
                .flatten()
                .chain(several(branch.disks, Descriptor::DiskTop))
                .collect(),
            Command::Load(load) => chain(&load.chain)
                .chain(several(load.disk_bases, Descriptor::DiskBase))
                .chain(several(load.disk_layers, Descriptor::DiskLayer))
                .collect(),
            Command::Persist(persist) => [
                Some(Descriptor::Control),
                with(persist.cgroup, Descriptor::Cgroup),
                Some(Descriptor::NewVmState),
                Some(Descriptor::NewMemory),
                with(persist.packed || !persist.base.is_empty(), Descriptor::NewPageMap),
            ]
            .into_iter()
            .flatten()
            .chain(chain(&persist.base))
            .collect(),
            Command::ReplaceLayers { .. } => vec![Descriptor::DiskLayer],
            Command::HandOver => vec![Descriptor::Successor],
            Command::PageTable => vec![Descriptor::PageTable],
            Command::Pause
            | Command::Resume
            | Command::Freeze
            | Command::SettleDisk
            | Command::Prefault(_)
            | Command::OwnPages
            | Command::Identify
            | Command::Stats
            | Command::Shutdown => Vec::new(),
        }
    }

    /// The command's name, for messages.
    pub fn name(&self) -> &'static str {
        match self {
            Command::Boot(_) => "boot",
            Command::Pause => "pause",
            Command::Resume => "resume",
            Command::Freeze => "freeze",
            Command::Fork(_) => "fork",
            Command::Branch(_) => "branch",
            Command::Load(_) => "load",
            Command::Persist(_) => "persist",
            Command::SettleDisk => "settle the disk",
            Command::ReplaceLayers { .. } => "replace layers",
            Command::HandOver => "hand over",
            Command::PageTable => "take its page table",
            Command::Prefault(_) => "prefault",
            Command::OwnPages => "list its own pages",
            Command::Identify => "identify",
            Command::Stats => "stats",
            Command::Shutdown => "shutdown",
        }
    }
}

/// What the process says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    Reply { id: u64, result: Result<Reply, Refusal> },
    Event(Event),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    Done,
    /// The process is a zygote.
    Frozen {
        /// Of each disk, whether its top layer is a frozen layer now. An empty one is gone.
        #[serde(rename = "disk_layer", with = "one_or_many::or_default")]
        disk_layers: Vec<bool>,
    },
    /// The new process. Its pidfd comes with the reply.
    Forked {
        pid: i32,
    },
    /// The new process, and the pause of the source. Its pidfd comes with the reply.
    Branched {
        pid: i32,
        pause_us: u64,
        /// Of each disk of the source, whether its top layer is a frozen layer now. An empty one is gone.
        #[serde(rename = "disk_layer", with = "one_or_many::or_default")]
        disk_layers: Vec<bool>,
    },
    /// The VM is stopped. With the reply come its control socket and what [`Devices::own`] names.
    HandedOver {
        devices: Devices,
    },
    /// The process. Its pidfd comes with the reply.
    Identified {
        pid: i32,
        /// The files of each disk by their inode numbers: the frozen layers from the bottom up, then the top layer. The image
        /// below is not among them.
        #[serde(rename = "disk", with = "one_or_many::or_default")]
        disks: Vec<Vec<u64>>,
    },
    /// As many of them as a list may have.
    OwnPages(PageRuns),
    Stats(Stats),
}

/// A request that was not carried out. The process is as it was before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    pub code: RefusalCode,
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalCode {
    /// Another version of the protocol.
    Version,
    /// Not a request, or not with the descriptors it needs.
    Malformed,
    /// Not possible in this state.
    State,
    /// Tried and failed.
    Failed,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    pub state: StateName,
    pub vcpus: u8,
    pub memory_bytes: u64,
    /// Exits to user space so far, of all vCPUs.
    pub exits: u64,
    /// What KVM has counted, where it counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kvm: Option<KvmCounts>,
}

/// Of all vCPUs of a VM, since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvmCounts {
    /// Exits to KVM, most of which never come to user space.
    pub exits: u64,
    /// Faults on guest memory that KVM had not mapped, or not for writing.
    pub page_faults: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StateName {
    Empty,
    Running,
    Paused,
    Zygote,
}

/// An event of the VM.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A forked process has made its VM and runs guest code: the first thing it says.
    Running,
    /// A branched process can be forked from: the first thing it says.
    Zygote,
    /// The snapshot is written: the last thing its process says.
    Persisted(Persisted),
    /// No successor has taken the VM's place, and it keeps running.
    Kept,
    /// The guest's kernel has panicked. The VM keeps running; the guest decides what comes next.
    Panicked,
    /// A write to a disk was refused for lack of room: the guest saw an error, and keeps running. Said once for each top layer.
    OutOfDisk {
        /// The disk's number in [`Devices::disks`].
        #[serde(default, skip_serializing_if = "is_zero")]
        disk: u8,
        limit_bytes: u64,
    },
    /// The VM has ended, and the process with it: its last words.
    Exited { stage: Stage, reason: ExitReason, detail: String },
}

/// What was written, for the manifest. The disks' frozen layers are complete and on stable storage too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Persisted {
    /// What the guest may use of the CPU.
    pub cpu_features: Vec<String>,
    /// Who has made the CPU, as CPUID says.
    #[serde(default)]
    pub cpu_vendor: Option<String>,
    /// The rate of the guest's TSC.
    #[serde(default)]
    pub tsc_khz: Option<u32>,
    /// The guest's memory: address and length of each region.
    pub regions: Vec<(u64, u64)>,
}

/// How far a process had come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Nothing was asked for yet.
    Empty,
    /// The VM is being made from a kernel.
    Boot,
    /// The VM is being made from a frozen one.
    Restore,
    /// The VM is there, running or paused.
    Run,
    /// The VM's state is being taken, to freeze or to branch it.
    Freeze,
    Zygote,
    /// A snapshot is being written.
    Persist,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitReason {
    /// The guest switched itself off.
    Shutdown,
    /// The guest asked for a reset, or faulted so badly that the CPU resets.
    Reset,
    /// KVM or the VMM could not go on.
    Error,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn disk(base: bool, layers: u8) -> Disk {
        Disk { bytes: 1 << 30, limit_bytes: 1 << 20, base, layers, read_only: false }
    }

    #[test]
    fn descriptors_are_named_in_order() {
        let devices =
            Devices { disks: vec![disk(true, 2), disk(false, 1)], mailbox: true, ..Devices::default() };
        let fork = Command::Fork(Fork { cgroup: true, successor: true, uid: None, devices: devices.clone() });
        assert_eq!(
            fork.descriptors(),
            [
                Descriptor::Control,
                Descriptor::Cgroup,
                Descriptor::Predecessor,
                Descriptor::DiskTop,
                Descriptor::DiskTop,
                Descriptor::Mailbox
            ]
        );
        let boot = Boot {
            vcpus: 1,
            memory_bytes: 1 << 26,
            command_line: String::new(),
            initramfs: false,
            cpu: CpuModel::Host,
            devices,
        };
        assert_eq!(
            Command::Boot(boot).descriptors(),
            [
                Descriptor::Kernel,
                Descriptor::DiskBase,
                Descriptor::DiskLayer,
                Descriptor::DiskLayer,
                Descriptor::DiskTop,
                Descriptor::DiskLayer,
                Descriptor::DiskTop,
                Descriptor::Mailbox
            ]
        );
        assert_eq!(
            Command::Branch(Branch { cgroup: false, disks: 2 }).descriptors(),
            [Descriptor::Control, Descriptor::DiskTop, Descriptor::DiskTop]
        );
        assert!(Command::Pause.descriptors().is_empty());
        let part = |map| SnapshotParts { name: "base".into(), map };
        let persist = Persist { cgroup: false, base: vec![part(false), part(true)], packed: true };
        assert_eq!(
            Command::Persist(persist).descriptors(),
            [
                Descriptor::Control,
                Descriptor::NewVmState,
                Descriptor::NewMemory,
                Descriptor::NewPageMap,
                Descriptor::Manifest,
                Descriptor::Memory,
                Descriptor::Manifest,
                Descriptor::Memory,
                Descriptor::PageMap,
                Descriptor::VmState,
            ]
        );
    }

    #[test]
    fn console_input_comes_right_after_the_console() {
        let devices: Devices = serde_json::from_value(serde_json::json!({
            "console": true, "disk": null, "net": null, "vsock": null, "entropy": true, "mailbox": false
        }))
        .unwrap();
        assert!(!devices.serial_input);
        let devices = Devices { serial_input: true, ..devices };
        assert_eq!(
            Command::Fork(Fork { cgroup: false, successor: false, uid: None, devices }).descriptors(),
            [Descriptor::Control, Descriptor::Serial, Descriptor::SerialInput, Descriptor::Entropy]
        );
    }

    /// As processes and daemons write it that know of one disk only.
    #[test]
    fn what_is_said_of_one_disk_is_the_same_in_every_version() {
        fn check<T>(value: &T, old: serde_json::Value)
        where
            T: Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug,
        {
            assert_eq!(serde_json::to_value(value).unwrap(), old);
            assert_eq!(&serde_json::from_value::<T>(old).unwrap(), value);
        }
        let bytes = json!({ "bytes": 1 << 30, "limit_bytes": 1 << 20, "base": true });
        check(
            &Devices { disks: vec![disk(true, 2)], ..Devices::default() },
            json!({
                "console": false, "console_input": false, "disk": bytes, "disk_layers": 2, "net": null, "vsock": null,
                "entropy": false, "mailbox": false
            }),
        );
        check(
            &Devices::default(),
            json!({
                "console": false, "console_input": false, "disk": null, "disk_layers": 0, "net": null, "vsock": null,
                "entropy": false, "mailbox": false
            }),
        );
        check(&Branch { cgroup: true, disks: 0 }, json!({ "cgroup": true, "disk": false }));
        check(&Branch { cgroup: true, disks: 1 }, json!({ "cgroup": true, "disk": true }));
        let load = json!({ "chain": [], "disk_base": true, "disk_layers": 3, "memory_limit_bytes": 1 });
        check(
            &Load {
                chain: vec![],
                disk_bases: 1,
                disk_layers: 3,
                disks_checked: false,
                memory_limit_bytes: 1,
            },
            load,
        );
        let replace = json!({ "replace_layers": { "first": 1, "count": 2 } });
        check(&Command::ReplaceLayers { disk: 0, first: 1, count: 2 }, replace);
        check(&Reply::Frozen { disk_layers: vec![true] }, json!({ "frozen": { "disk_layer": true } }));
        let branched = json!({ "branched": { "pid": 1, "pause_us": 2, "disk_layer": false } });
        check(&Reply::Branched { pid: 1, pause_us: 2, disk_layers: vec![false] }, branched);
        let identified = json!({ "identified": { "pid": 1, "disk": [7, 8] } });
        check(&Reply::Identified { pid: 1, disks: vec![vec![7, 8]] }, identified);
        let full = json!({ "out_of_disk": { "limit_bytes": 4096 } });
        check(&Event::OutOfDisk { disk: 0, limit_bytes: 4096 }, full);
    }

    #[test]
    fn several_disks_survive_the_wire() {
        let read_only = Disk { read_only: true, ..disk(false, 1) };
        let devices = Devices { disks: vec![disk(true, 2), read_only], ..Devices::default() };
        let json = serde_json::to_value(&devices).unwrap();
        assert_eq!(serde_json::from_value::<Devices>(json).unwrap(), devices);
        for reply in [
            Reply::Frozen { disk_layers: vec![false, true] },
            Reply::Branched { pid: 1, pause_us: 2, disk_layers: vec![true, true, false] },
            Reply::Identified { pid: 1, disks: vec![vec![1, 2], vec![], vec![3]] },
        ] {
            let json = serde_json::to_value(&reply).unwrap();
            assert_eq!(serde_json::from_value::<Reply>(json).unwrap(), reply);
        }
        for command in [
            Command::Branch(Branch { cgroup: false, disks: 4 }),
            Command::Load(Load {
                chain: vec![],
                disk_bases: 2,
                disk_layers: 9,
                disks_checked: false,
                memory_limit_bytes: 1,
            }),
            Command::ReplaceLayers { disk: 3, first: 0, count: 1 },
        ] {
            let json = serde_json::to_value(&command).unwrap();
            assert_eq!(serde_json::from_value::<Command>(json).unwrap(), command);
        }
    }

    #[test]
    fn too_many_disks_are_refused() {
        let devices = |count| Devices { disks: vec![disk(false, 0); count], ..Devices::default() };
        let read = |count| serde_json::from_value::<Devices>(serde_json::to_value(devices(count)).unwrap());
        assert_eq!(read(MAX_DISKS).unwrap(), devices(MAX_DISKS));
        assert_eq!(read(MAX_DISKS + 1).unwrap_err().to_string(), "5 disks, expected at most 4");
    }

    #[test]
    fn messages_survive_the_wire() {
        let message = Message::Reply {
            id: 7,
            result: Err(Refusal { code: RefusalCode::State, message: "not now".into() }),
        };
        let json = serde_json::to_string(&message).unwrap();
        assert_eq!(serde_json::from_str::<Message>(&json).unwrap(), message);
    }

    fn requests() -> [(&'static str, Command); 6] {
        let devices = Devices {
            serial: true,
            serial_input: false,
            disks: vec![disk(true, 0)],
            net: Some(Net { mac: [2, 0, 0, 0, 0, 1], mtu: Some(1400) }),
            vsock: Some(Vsock { cid: 3 }),
            entropy: true,
            mailbox: false,
        };
        let boot = Boot {
            vcpus: 2,
            memory_bytes: 1 << 28,
            command_line: "console=ttyS0".into(),
            initramfs: true,
            cpu: CpuModel::V2,
            devices: devices.clone(),
        };
        let chain = vec![
            SnapshotParts { name: "base".into(), map: false },
            SnapshotParts { name: "numpy".into(), map: true },
        ];
        let load = Load {
            chain: chain.clone(),
            disk_bases: 1,
            disk_layers: 2,
            disks_checked: true,
            memory_limit_bytes: 1 << 30,
        };
        let prefault = Prefault {
            written: PageRuns::first_of([3..6, 9..10]),
            touched: PageRuns::first_of([0..1, 7..8]),
            fresh: PageRuns::default(),
        };
        [
            ("boot", Command::Boot(boot)),
            ("fork", Command::Fork(Fork { cgroup: true, successor: false, uid: None, devices })),
            ("branch", Command::Branch(Branch { cgroup: false, disks: 1 })),
            ("load", Command::Load(load)),
            ("persist", Command::Persist(Persist { cgroup: true, base: chain, packed: true })),
            ("prefault", Command::Prefault(prefault)),
        ]
    }

    fn messages() -> [(&'static str, Message); 5] {
        let stats = Stats { state: StateName::Paused, vcpus: 2, memory_bytes: 1 << 28, exits: 12, kvm: None };
        let refusal = Refusal { code: RefusalCode::State, message: "not now".into() };
        let branched = Reply::Branched { pid: 7, pause_us: 900, disk_layers: vec![true] };
        let persisted = Persisted {
            cpu_features: vec!["avx2".into()],
            cpu_vendor: Some("AuthenticAMD".into()),
            tsc_khz: Some(2_400_000),
            regions: vec![(0, 1 << 28)],
        };
        let (stage, reason, detail) = (Stage::Run, ExitReason::Reset, "triple fault".into());
        [
            ("branched", Message::Reply { id: 1, result: Ok(branched) }),
            ("stats", Message::Reply { id: 2, result: Ok(Reply::Stats(stats)) }),
            ("persisted", Message::Event(Event::Persisted(persisted))),
            ("refused", Message::Reply { id: 3, result: Err(refusal) }),
            ("exited", Message::Event(Event::Exited { stage, reason, detail })),
        ]
    }

    /// The fuzzer begins with messages of each kind. `FORKD_WRITE_SEEDS=1` writes them anew.
    #[test]
    fn the_fuzzer_s_seeds_are_good_messages() {
        fn check<T>(name: &str, value: &T)
        where
            T: Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug,
        {
            let seeds = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/control");
            let seed = seeds.join(name);
            if std::env::var_os("FORKD_WRITE_SEEDS").is_some() {
                std::fs::create_dir_all(&seeds).unwrap();
                std::fs::write(&seed, serde_json::to_vec(value).unwrap()).unwrap();
            }
            let read: T = serde_json::from_slice(&std::fs::read(&seed).unwrap()).unwrap();
            assert_eq!(&read, value, "{name}");
        }
        for (name, command) in requests() {
            check(name, &Request { version: VERSION, id: 7, command });
        }
        for (name, message) in messages() {
            check(name, &message);
        }
    }
}
