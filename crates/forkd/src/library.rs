//! Who works on images and kernels. One rule for all verbs of `forkd image` and `forkd kernel`:
//!
//! ```text
//!   an address is given (--address, FORKD_ADDRESS, FORKD_URL) ──▶ that daemon
//!   else a daemon listens at this host's socket               ──▶ that daemon
//!   else                                                      ──▶ a daemon that is started for this command, and ends with it
//! ```
//!
//! The last one is for hosts without a daemon, where an image can be pulled before there is one, and for hosts whose daemon is in
//! the machine: that one reads this host's library, so what is made here is there at once, and nothing is downloaded, unpacked
//! or installed in an emulator. What only looks (`ls`, `inspect`) asks the machine's daemon, if it answers: it has what is here,
//! and what was made through its API.

use forkd_api::error::ErrorCode;
use forkd_api::library::{Image, ImageSummary, Kernel, RemoveKernel, RemovedImage};
use forkd_client::{Client, ClientError};

use crate::arguments::DaemonOptions;
use crate::commands::asynchronously;
use crate::daemon;
use crate::error::CliError;
use crate::progress::Progress;
use crate::signals::Signals;
use crate::temporary_daemon::TemporaryDaemon;

/// The daemon that has the library, and that ends with this value if it was started for it.
#[derive(Debug)]
struct Keeper {
    client: Client,
    temporary: Option<TemporaryDaemon>,
}

impl Keeper {
    /// The one that is there, or a new one.
    async fn of(found: Option<Client>, options: &DaemonOptions) -> Result<Keeper, CliError> {
        if let Some(client) = found {
            return Ok(Keeper { client, temporary: None });
        }
        let (daemon, client) = TemporaryDaemon::start(&options.machine).await?;
        Ok(Keeper { client, temporary: Some(daemon) })
    }

    /// The log of a daemon that was started for this command is not kept, so its errors are shown.
    fn explain(&self, error: CliError) -> CliError {
        match (error, &self.temporary) {
            (CliError::Client(error), Some(daemon)) if error.code() == Some(ErrorCode::Internal) => {
                CliError::TemporaryDaemon { said: daemon.log() }
            }
            (error, _) => error,
        }
    }

    /// Ends what was started.
    async fn end(self) {
        let Keeper { client, temporary } = self;
        drop(client);
        if let Some(daemon) = temporary {
            daemon.end().await;
        }
    }
}

/// Changes something. A Ctrl-C ends what the daemon does, which leaves nothing of it.
pub fn change<T>(
    options: &DaemonOptions,
    work: impl AsyncFnOnce(&Client, &Progress) -> Result<T, CliError>,
) -> Result<T, CliError> {
    asynchronously(async {
        let mut signals = Signals::new()?;
        let keeper = Keeper::of(daemon::look_here(options).await?, options).await?;
        let progress = Progress::new();
        let made = tokio::select! {
            made = work(&keeper.client, &progress) => made,
            asked = signals.end() => Err(CliError::Interrupted(asked.status())),
        };
        progress.finish();
        let made = made.map_err(|error| keeper.explain(error));
        keeper.end().await;
        made
    })
}

/// Looks at something, also with the eyes of a machine's daemon.
fn look<T>(
    options: &DaemonOptions,
    work: impl AsyncFnOnce(&Client) -> Result<T, ClientError>,
) -> Result<T, CliError> {
    asynchronously(async {
        let keeper = Keeper::of(daemon::look(options).await?, options).await?;
        let seen = work(&keeper.client).await.map_err(|error| keeper.explain(error.into()));
        keeper.end().await;
        seen
    })
}

pub fn images(options: &DaemonOptions) -> Result<Vec<ImageSummary>, CliError> {
    look(options, async |client| client.images().await)
}

pub fn image(options: &DaemonOptions, image: &str) -> Result<Image, CliError> {
    look(options, async |client| client.image(image).await)
}

pub fn kernels(options: &DaemonOptions) -> Result<Vec<Kernel>, CliError> {
    look(options, async |client| client.kernels().await)
}

/// Who removes images and kernels: what a machine's daemon has for itself is removed there. What it reads from this host is
/// removed here, unless snapshots of the machine need it.
#[derive(Debug)]
pub struct Remover {
    keeper: Keeper,
    machine: Option<Client>,
}

/// Removes something.
pub fn remove<T>(
    options: &DaemonOptions,
    work: impl AsyncFnOnce(&Remover) -> Result<T, CliError>,
) -> Result<T, CliError> {
    asynchronously(async {
        let found = daemon::look_here(options).await?;
        let machine = match &found {
            Some(_) => None,
            None => daemon::look_in_machine(options).await?,
        };
        let remover = Remover { keeper: Keeper::of(found, options).await?, machine };
        let removed = work(&remover).await;
        remover.keeper.end().await;
        removed
    })
}

impl Remover {
    pub async fn image(&self, image: &str) -> Result<RemovedImage, CliError> {
        self.remove_image(image).await.map_err(|error| self.keeper.explain(error))
    }

    pub async fn kernel(&self, kernel: &str, force: bool) -> Result<Kernel, CliError> {
        self.remove_kernel(kernel, force).await.map_err(|error| self.keeper.explain(error))
    }

    async fn remove_image(&self, image: &str) -> Result<RemovedImage, CliError> {
        let here = &self.keeper.client;
        if let Some(machine) = &self.machine {
            match machine.image(image).await {
                Ok(found) if !found.summary.shared => return Ok(machine.remove_image(image).await?),
                Ok(_) => {}
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error.into()),
            }
            refuse_needed(machine, image, &here.image(image).await?.summary).await?;
        }
        Ok(here.remove_image(image).await?)
    }

    async fn remove_kernel(&self, kernel: &str, force: bool) -> Result<Kernel, CliError> {
        let wanted = RemoveKernel { force };
        if let Some(machine) = &self.machine {
            let known = machine.kernels().await?;
            if known.iter().any(|known| !known.shared && known.name.starts_with(kernel)) {
                return Ok(machine.remove_kernel(kernel, wanted).await?);
            }
        }
        Ok(self.keeper.client.remove_kernel(kernel, wanted).await?)
    }
}

/// Refuses to remove the last name of an image that snapshots of the machine have below their disks.
async fn refuse_needed(machine: &Client, image: &str, found: &ImageSummary) -> Result<(), CliError> {
    if !is_last_name(image, &found.names) {
        return Ok(());
    }
    let snapshots = machine.snapshots().await?;
    let users: Vec<String> = snapshots
        .into_iter()
        .filter(|snapshot| snapshot.image.as_ref() == Some(&found.id))
        .map(|snapshot| format!("snapshot {}", snapshot.tag))
        .collect();
    if users.is_empty() {
        return Ok(());
    }
    Err(CliError::ImageNeeded { image: image.to_owned(), users: users.join(", ") })
}

/// Whether an image goes with a name, or with an id. A name may be given without its tag if that is `latest`.
fn is_last_name(image: &str, names: &[String]) -> bool {
    let is_name = names.iter().any(|name| name == image || name.strip_suffix(":latest") == Some(image));
    !is_name || names.len() == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_goes_with_its_last_name_or_its_id() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert!(is_last_name("a", &names(&["a:latest"])));
        assert!(!is_last_name("a", &names(&["a:latest", "b:1"])));
        assert!(!is_last_name("b:1", &names(&["a:latest", "b:1"])));
        assert!(is_last_name("0123", &names(&["a:latest", "b:1"])));
        assert!(is_last_name("0123", &[]));
    }
}
