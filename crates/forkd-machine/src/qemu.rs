//! QEMU's command line.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use forkd_host::tool::{self, MissingTool};
use forkd_proto::probe::KvmFinding;
use serde::{Deserialize, Serialize};

use crate::control;
use crate::image::Image;
use crate::machine::Machine;
use crate::qmp;
use crate::run_state::Ports;

/// The port that sshd listens on in the machine, and the one that the daemon will.
const GUEST_SSH_PORT: u16 = 22;
const GUEST_API_PORT: u16 = 8889;

/// What executes the machine's code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accelerator {
    /// The host's KVM, which lets the machine have a KVM of its own.
    Kvm,
    /// QEMU's emulator, with emulated AMD SVM.
    Tcg,
}

impl Accelerator {
    /// KVM where it runs a stock kernel and passes virtualisation on; the emulator otherwise.
    pub(crate) fn choose(kvm: &KvmFinding) -> Accelerator {
        let nested = || {
            ["kvm_intel", "kvm_amd"].iter().any(|module| {
                let parameter = std::fs::read_to_string(format!("/sys/module/{module}/parameters/nested"));
                parameter.is_ok_and(|value| matches!(value.trim(), "Y" | "1"))
            })
        };
        match kvm {
            KvmFinding::Good { .. } if nested() => Accelerator::Kvm,
            _ => Accelerator::Tcg,
        }
    }

    /// The machine's CPUs where nothing else was asked for. With two, QEMU's emulated SVM now and then mixes host and
    /// guest state around VMRUN, and a guest or the machine's kernel dies.
    pub(crate) fn default_cpus(self) -> u32 {
        match self {
            Accelerator::Kvm => {
                std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(1))
            }
            Accelerator::Tcg => 1,
        }
    }

    fn arguments(self) -> [&'static str; 4] {
        match self {
            Accelerator::Kvm => ["-accel", "kvm", "-cpu", "host"],
            Accelerator::Tcg => ["-accel", "tcg,thread=multi,tb-size=1024", "-cpu", "EPYC"],
        }
    }

    fn kernel_arguments(self, tsc_khz: u64) -> String {
        match self {
            Accelerator::Kvm => String::new(),
            // The watchdogs mistake a busy emulator for a dead CPU. Without the rate of the TSC, its calibration fails
            // in one boot of ten and the kernel hangs. The emulator's caches need no protection.
            Accelerator::Tcg => format!(
                " nowatchdog nmi_watchdog=0 nosoftlockup tsc=reliable tsc_early_khz={tsc_khz} mitigations=off"
            ),
        }
    }
}

/// Directories of the host that the machine can read.
#[derive(Debug)]
pub(crate) struct Shares<'a> {
    pub binaries: &'a Path,
    pub library: &'a Path,
}

/// The command that runs a machine. Its working directory is the machine's own, so most paths are plain names.
pub(crate) fn command(
    machine: &Machine,
    image: &Image,
    shares: &Shares<'_>,
    accelerator: Accelerator,
    tsc_khz: u64,
) -> Result<Command, MissingTool> {
    let mut qemu = tool::QEMU.command()?;
    qemu.current_dir(machine.directory());
    qemu.args(["-nodefaults", "-no-user-config", "-display", "none"]);
    qemu.args(["-name", &format!("forkd-machine-{}", machine.name)]);
    // A panic or a reboot ends QEMU, and so shows as a crash instead of a machine that lost its state in silence.
    qemu.arg("-no-reboot");
    qemu.args(["-M", "microvm,pit=off,pic=off,rtc=on,isa-serial=off"]);
    qemu.args(accelerator.arguments());
    qemu.args(["-smp", &machine.config.cpus.to_string()]);
    qemu.args(["-m", &format!("{}M", machine.config.memory_mib)]);

    qemu.arg("-kernel").arg(image.kernel()).arg("-initrd").arg(image.initrd());
    let arguments = accelerator.kernel_arguments(tsc_khz);
    // After an oops, anything that waits for the lost thread hangs. A panic ends the machine, which is noticed.
    qemu.args(["-append", &format!("console=ttyS0 quiet loglevel=4 panic=1 oops=panic{arguments}")]);

    qemu.args(["-chardev", "file,id=console,path=console.log"]);
    qemu.args(["-device", "isa-serial,index=0,chardev=console"]);
    qemu.args(["-chardev", &format!("socket,id=control,path={},server=on,wait=off", control::SOCKET)]);
    qemu.args(["-device", "isa-serial,index=1,chardev=control"]);
    qemu.args(["-qmp", &format!("unix:{},server=on,wait=off", qmp::SOCKET)]);

    qemu.args(["-drive", "if=none,id=root,file=disk.qcow2,format=qcow2,discard=unmap"]);
    qemu.args(["-device", "virtio-blk-device,drive=root"]);
    // Port 0: the kernel picks one that is free and QEMU has it at once, so no other process can take it in between.
    let forward = |port| format!("hostfwd=tcp:127.0.0.1:0-:{port}");
    qemu.args(["-netdev", &format!("user,id=net,{},{}", forward(GUEST_SSH_PORT), forward(GUEST_API_PORT))]);
    qemu.args(["-device", "virtio-net-device,netdev=net"]);
    qemu.args(["-device", "virtio-rng-device"]);

    let shares = [
        ("forkd-host", Path::new("host")),
        ("forkd-bin", shares.binaries),
        ("forkd-library", shares.library),
    ];
    for (tag, path) in shares {
        let mut share = OsString::from(format!("local,id={tag},security_model=none,readonly=on,path="));
        share.push(escape_commas(path));
        qemu.arg("-fsdev").arg(share);
        qemu.args(["-device", &format!("virtio-9p-device,fsdev={tag},mount_tag={tag}")]);
    }
    qemu.args(["-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"]);
    Ok(qemu)
}

/// In QEMU's options a comma in a value is written twice.
fn escape_commas(path: &Path) -> OsString {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let bytes = path.as_os_str().as_bytes();
    OsString::from_vec(
        bytes.iter().flat_map(|&byte| if byte == b',' { vec![b','; 2] } else { vec![byte] }).collect(),
    )
}

/// Reads the host's side of the forwarded ports from what QEMU's monitor says to `info usernet`:
///
/// ```text
///   Protocol[State]    FD  Source Address  Port   Dest. Address  Port RecvQ SendQ
///   TCP[HOST_FORWARD]  14       127.0.0.1 38461       10.0.2.15    22     0     0
/// ```
pub(crate) fn forwarded_ports(usernet: &str) -> Option<Ports> {
    let port_to = |guest_port: u16| {
        usernet.lines().find_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            match fields[..] {
                ["TCP[HOST_FORWARD]", _, _, host, _, guest, ..] if guest.parse() == Ok(guest_port) => {
                    host.parse().ok().filter(|port| *port != 0)
                }
                _ => None,
            }
        })
    };
    Some(Ports { ssh: port_to(GUEST_SSH_PORT)?, api: port_to(GUEST_API_PORT)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read_from_the_monitor() {
        let usernet = "Hub -1 (net):\r\n  Protocol[State]    FD  Source Address  Port   Dest. Address  Port RecvQ SendQ\r\n  \
             TCP[HOST_FORWARD]  14       127.0.0.1 38461       10.0.2.15    22     0     0\r\n  \
             TCP[ESTABLISHED]   15       127.0.0.1 38461       10.0.2.15    8889   0     0\r\n  \
             TCP[HOST_FORWARD]  13       127.0.0.1 40109       10.0.2.15  8889     0     0\r\n";
        assert_eq!(forwarded_ports(usernet), Some(Ports { ssh: 38461, api: 40109 }));
        assert_eq!(forwarded_ports(&usernet.replace("38461", "0")), None);
        assert_eq!(forwarded_ports(&usernet.replace("8889", "99")), None);
        assert_eq!(forwarded_ports(""), None);
    }

    #[test]
    fn commas_in_paths_do_not_end_an_option() {
        assert_eq!(escape_commas(Path::new("/a,b/c")), "/a,,b/c");
    }

    #[test]
    fn only_a_good_kvm_is_used() {
        assert_eq!(Accelerator::choose(&KvmFinding::NoDevice), Accelerator::Tcg);
        let emulated = KvmFinding::Emulated { reason: String::new(), slowdown: None };
        assert_eq!(Accelerator::choose(&emulated), Accelerator::Tcg);
    }
}
