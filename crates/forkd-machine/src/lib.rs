//! The software host: a Linux machine with KVM, cgroup v2 and a stock kernel, in QEMU, for hosts whose own KVM cannot
//! run guests.
//!
//! ```text
//!            init                 start                      stop
//!  (nothing) ────▶ stopped ─────▶ starting ────▶ running ─────────▶ stopped ──── rm ──▶ (nothing)
//!                     ▲              │ QEMU ends    │ QEMU ends
//!                     │ start        ▼              ▼
//!                     └────────── crashed ◀─────────┤
//!                                                   ├─▶ unresponsive   QEMU lives, the heartbeat does not
//!                                                   └─▶ paused         QEMU stopped it: the host's disk is full
//! ```
//!
//! No file says which of these holds: [`status::inspect`] finds out, from `run.json` (written when QEMU is started), the
//! process it names, and the heartbeat. So a killed QEMU, a killed `forkd` or a reboot of the host leave nothing that
//! must be repaired first. Every verb that changes a machine holds a lock on its directory.
//!
//! The machine's directory:
//!
//! | file | what |
//! |---|---|
//! | `machine.json` | what `init` was asked for |
//! | `disk.qcow2` | the disk: a copy-on-write layer over the cached image |
//! | `key`, `known_hosts` | how ssh gets in, and knows where it got |
//! | `host/` | what the machine reads from the host (9p): its name, its host key, who may log in |
//! | `run.json`, `*.sock` | the running QEMU |
//! | `token` | what the machine's daemon knows its host by |
//! | `console.log`, `qemu.log` | what the machine and QEMU printed |

mod control;
mod daemon;
mod evidence;
mod files;
mod image;
mod init;
mod lock;
mod machine;
mod name;
mod process;
mod qemu;
mod qmp;
mod rm;
mod run_state;
mod socket;
mod ssh;
mod start;
mod status;
mod stop;

pub use control::{ControlError, Pulse};
pub use daemon::{DaemonAddress, DaemonError};
pub use evidence::collect as collect_evidence;
pub use files::FileError;
pub use image::{ImageError, prune as prune_images};
pub use init::{InitError, InitOptions, init};
pub use lock::LockError;
pub use machine::{Home, Machine, MachineConfig, OpenError};
pub use name::{Name, NameError};
pub use qemu::Accelerator;
pub use rm::{RmError, rm};
pub use start::{StartError, StartOptions, Started, start};
pub use status::{MachineState, MachineStatus, NotRunning, list};
pub use stop::{StopError, Stopped, stop};

/// Where a machine sees its host's kernels and images, and forkd itself.
pub const LIBRARY: &str = "/srv/forkd";
pub const FORKD: &str = "/opt/forkd/bin/forkd";

/// Where long operations say what they are doing. Nothing in this crate prints.
pub trait Progress {
    /// A new step has begun.
    fn step(&self, what: &str);
    /// Something happened inside the step.
    fn detail(&self, what: &str);
    /// Something that the user should know whatever becomes of the operation.
    fn warn(&self, what: &str);
}
