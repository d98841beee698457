//! Signals: SIGTERM and SIGINT stop the daemon, SIGHUP has it open its files again.

use std::io;

use tokio::signal::unix::{SignalKind, signal};

use crate::error::chain;
use crate::server::Handle;

/// Listens to signals from now on. The first SIGTERM or SIGINT lets requests come to their end; the returned future resolves
/// at the second.
pub fn listen(handle: Handle) -> io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    Ok(async move {
        let mut asked = 0;
        while asked < 2 {
            tokio::select! {
                _ = hang_up.recv() => match handle.reload().await {
                    Ok(()) => tracing::info!("reopened the audit log and the certificate"),
                    Err(error) => tracing::error!(error = %chain(&error), "cannot reopen the audit log: keeping the old one"),
                },
                _ = terminate.recv() => asked += 1,
                _ = interrupt.recv() => asked += 1,
            }
            if asked == 1 {
                tracing::info!("stopping");
                handle.stop();
            }
        }
    })
}
