//! Waits for any child, when the kernel says that one ended.

use std::io;
use std::sync::Arc;

use rustix::process::{WaitOptions, wait};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Mutex;

use super::Table;
use super::exit::exit_of;

pub(super) fn start(table: Arc<Mutex<Table>>) -> io::Result<()> {
    // Listening starts here, not in the task: no signal of a child spawned after this is missed.
    let mut ended = signal(SignalKind::child())?;
    tokio::spawn(async move {
        while ended.recv().await.is_some() {
            let mut table = table.lock().await;
            reap(&mut table);
        }
    });
    Ok(())
}

/// Signals of several children merge into one, so every child that has ended is taken.
fn reap(table: &mut Table) {
    while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
        let Some(exit) = exit_of(status) else { continue };
        let sender = u32::try_from(pid.as_raw_nonzero().get()).ok().and_then(|pid| table.remove(&pid));
        if let Some(sender) = sender {
            sender.send_replace(Some(exit));
        }
    }
}
