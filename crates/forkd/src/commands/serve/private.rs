//! A private daemon: it ends, with everything that it has, when its last client has left. `crates/forkd/src/private` says how that
//! is known.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forkd_daemon::server::Handle;
use forkd_engine::{Engine, Recovered, Settings};

use super::ROOT;
use crate::error::CliError;
use crate::private::keeper::Keeper;
use crate::private::{Kept, Private};

/// How long snapshots may take that are being written when it ends.
const WRITING: Duration = Duration::from_secs(60);

/// An ordinary daemon has taken this directory: what a private one that was killed has left there is its own from now on.
pub fn take_over(home: &Path, root: &Path) -> Result<(), CliError> {
    match root == home.join(ROOT) && Private::is_known(home) {
        true => Private::open(home)?.hand_over(),
        false => Ok(()),
    }
}

/// What a private daemon has to end.
#[derive(Debug)]
pub struct PrivateKeeper {
    keeper: Keeper,
    /// The cgroup of all VM processes, if there was none before.
    cgroup: Option<PathBuf>,
    has_ended: bool,
}

impl PrivateKeeper {
    pub fn take(home: &Path, settings: &Settings) -> Result<PrivateKeeper, CliError> {
        let keeper = Keeper::take(home)?;
        let is_new = |path: &PathBuf| keeper.is_successor || !path.exists();
        let cgroup = settings.cgroup.clone().filter(is_new);
        Ok(PrivateKeeper { keeper, cgroup, has_ended: false })
    }

    /// From now on it ends what is there. Sandboxes that an ordinary daemon has left are not its own.
    pub async fn begin(&mut self, engine: &Engine, recovered: &Recovered) -> Result<(), CliError> {
        if !self.keeper.is_successor && !recovered.sandboxes.is_empty() {
            let _ = engine.stop_networks().await;
            return Err(CliError::SandboxesOfAnother(recovered.sandboxes.len()));
        }
        self.keeper.begin(&Kept::Daemon)
    }

    /// Stops the daemon when its last holder has gone. Requests to its sandboxes end with these.
    pub fn stop_when_left(&self, handle: Handle, engine: Engine) {
        let last_lease = self.keeper.last_lease();
        tokio::spawn(async move {
            if let Ok(Err(error)) = last_lease.await {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "cannot check the clients of this private daemon"
                );
            }
            tracing::info!("the last client of this private daemon has left");
            handle.stop();
            engine.end_sandboxes().await;
        });
    }

    /// Ends all sandboxes, and the processes of all snapshots, which are on disk then.
    pub async fn end_everything(&mut self, engine: &Engine) {
        let left = engine.end_everything(WRITING).await;
        for name in &left {
            tracing::error!(name, "did not exit; the next private daemon tries again");
        }
        self.has_ended = left.is_empty();
    }

    /// The last thing that it does.
    pub fn end(self) -> Result<(), CliError> {
        if !self.has_ended {
            return Ok(());
        }
        if let Some(cgroup) = &self.cgroup {
            // One that another process uses is not empty.
            let _ = fs::remove_dir(cgroup);
        }
        self.keeper.end()
    }
}
