//! An orderly end: everybody is asked, then made to stop; the disk is whole; the machine is off.

use std::fs;
use std::io;
use std::time::Duration;

use rustix::mount::{MountFlags, mount_remount};
use rustix::process::{Pid, Signal, kill_process_group};
use rustix::system::{RebootCommand, reboot};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

use crate::agent::Agent;

/// How long processes have to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(5);
/// Between two looks whether all are gone: PID 1 is not notified when no process is left.
const FIRST_LOOK: Duration = Duration::from_millis(2);
const LONGEST_LOOK: Duration = Duration::from_millis(100);
/// PF_KTHREAD of the kernel's <linux/sched.h>.
const KERNEL_THREAD: u64 = 0x0020_0000;

/// Waits for a reason to end: a signal, Ctrl-Alt-Del, or the host's word.
pub async fn asked(host: &Notify) -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    // From now on Ctrl-Alt-Del is a SIGINT to PID 1 and not a reboot at once. Not every platform has the key.
    let _ = reboot(RebootCommand::CadOff);
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        () = host.notified() => {}
    }
    Ok(())
}

/// Ends everything and turns the machine off. It only returns if the kernel refuses.
pub async fn power_off(agent: &Agent) -> io::Result<()> {
    // Interactive shells ignore SIGTERM, and so would cost every guest all of its grace.
    agent.contexts.remove_all().await;
    stop_processes().await;
    rustix::fs::sync();
    // Read-only is as good as unmounted, and works while PID 1 stands on it.
    let _ = mount_remount("/", MountFlags::RDONLY, c"");
    rustix::fs::sync();
    Ok(reboot(RebootCommand::PowerOff)?)
}

async fn stop_processes() {
    // The group of process 1 is, to kill(2), everybody but process 1.
    let _ = kill_process_group(Pid::INIT, Signal::TERM);
    // Stopped ones would never see it.
    let _ = kill_process_group(Pid::INIT, Signal::CONT);
    if tokio::time::timeout(GRACE, all_gone()).await.is_err() {
        let _ = kill_process_group(Pid::INIT, Signal::KILL);
        // A process in the middle of a disk access ends after it.
        let _ = tokio::time::timeout(GRACE, all_gone()).await;
    }
}

async fn all_gone() {
    let mut pause = FIRST_LOOK;
    while processes_remain() {
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_LOOK);
    }
}

/// kill(2) cannot be asked: to it, the kernel's own threads are processes like others.
fn processes_remain() -> bool {
    let Ok(entries) = fs::read_dir("/proc") else { return false };
    entries
        .flatten()
        .filter(|entry| {
            entry.file_name().to_str().and_then(|name| name.parse().ok()).is_some_and(|pid: u32| pid > 1)
        })
        .filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok())
        .any(|stat| runs_programs(&stat))
}

/// Whether a line of /proc/PID/stat is of a process that is neither the kernel's nor dead. Its name may hold anything, so what
/// follows the last parenthesis is read: state, parent, group, session, terminal, its group, flags.
fn runs_programs(stat: &str) -> bool {
    let Some((_, rest)) = stat.rsplit_once(") ") else { return false };
    let mut fields = rest.split(' ');
    let alive = fields.next().is_some_and(|state| state != "Z" && state != "X");
    let flags = fields.nth(5).and_then(|flags| flags.parse::<u64>().ok());
    alive && flags.is_some_and(|flags| flags & KERNEL_THREAD == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_threads_and_the_dead_do_not_count() {
        assert!(!runs_programs("2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0"));
        assert!(!runs_programs("99 (sh) Z 1 99 99 0 -1 4227084 0 0 0 0"));
        assert!(runs_programs("77 (a) S) (b) S 1 77 77 0 -1 4194560 85 0 0 0"));
        assert!(!runs_programs("nonsense"));
        let own = fs::read_to_string("/proc/self/stat").unwrap();
        assert!(runs_programs(&own), "{own}");
        assert!(processes_remain());
    }
}
