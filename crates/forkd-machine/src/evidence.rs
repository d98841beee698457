//! What can still be learned from a machine that has stopped answering, written down before it is ended.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use crate::machine::Machine;
use crate::qmp::Qmp;
use crate::run_state::RunState;

const QMP_LIMIT: Duration = Duration::from_secs(5);

/// Saves the logs, QEMU's view of the CPUs and the kernel's view of QEMU into `destination`. What cannot be had is noted
/// there too; only a destination that cannot be written is an error.
pub fn collect(machine: &Machine, destination: &Path) -> io::Result<()> {
    fs::create_dir_all(destination)?;
    for name in ["console.log", "console.log.1", "qemu.log", "ssh.log", "run.json", "machine.json"] {
        match fs::copy(machine.file(name), destination.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    fs::write(destination.join("qemu-monitor.txt"), monitor(machine))?;
    fs::write(destination.join("qemu-process.txt"), process(machine))
}

fn monitor(machine: &Machine) -> String {
    let mut qmp = match Qmp::connect(machine.directory(), QMP_LIMIT) {
        Ok(qmp) => qmp,
        Err(error) => return format!("{error}\n"),
    };
    let mut text = String::new();
    for command in
        ["info status", "info cpus", "info registers -a", "info usernet", "info blockstats", "info irq"]
    {
        let answer = qmp.human(command).unwrap_or_else(|error| error.to_string());
        text += &format!("== {command}\n{answer}\n");
    }
    text
}

/// Each thread's state and CPU time tell an emulator that spins from one that waits.
fn process(machine: &Machine) -> String {
    let Ok(Some(run)) = RunState::read(machine.directory()) else {
        return "no run.json\n".into();
    };
    let proc = Path::new("/proc").join(run.process.pid.to_string());
    let mut text = format!("process {} alive: {}\n", run.process.pid, run.process.is_alive());
    for task in fs::read_dir(proc.join("task")).into_iter().flatten().flatten() {
        for name in ["comm", "stat", "wchan", "stack"] {
            let content =
                fs::read_to_string(task.path().join(name)).unwrap_or_else(|error| error.to_string());
            text += &format!("{} {name}: {}\n", task.file_name().to_string_lossy(), content.trim());
        }
    }
    text
}
