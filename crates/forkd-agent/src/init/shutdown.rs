//! An orderly end: everybody is asked, then made to stop; the disk is whole; the machine is off.

use std::io;
use std::time::Duration;

use rustix::io::Errno;
use rustix::mount::{MountFlags, mount_remount};
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use rustix::system::{RebootCommand, reboot};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

/// How long processes have to end by themselves.
const GRACE: Duration = Duration::from_secs(5);
/// Between two looks whether all are gone: nobody tells PID 1 that no process is left.
const FIRST_LOOK: Duration = Duration::from_millis(2);
const LONGEST_LOOK: Duration = Duration::from_millis(100);

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
pub async fn power_off() -> io::Result<()> {
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
    while test_kill_process_group(Pid::INIT) != Err(Errno::SRCH) {
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_LOOK);
    }
}
