//! Signals to processes that tests look after.

use rustix::process::{Pid, Signal, kill_process};

/// Sends a signal to one process.
pub fn signal(signal: Signal, pid: u32) -> crate::TestResult {
    let pid = Pid::from_raw(i32::try_from(pid)?).ok_or("process 0 is nobody's")?;
    Ok(kill_process(pid, signal)?)
}
