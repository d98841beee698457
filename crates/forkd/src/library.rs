//! Where images and kernels are worked on. One rule for all verbs of `forkd image` and `forkd kernel`:
//!
//! ```text
//!   an address is given (--address, FORKD_ADDRESS, FORKD_URL) ──▶ by that daemon, through the API
//!   else somebody listens at this host's socket               ──▶ by that daemon, through the API
//!   else                                                      ──▶ in this host's library, by this command itself
//! ```
//!
//! The last one is for hosts without a daemon, where an image can be pulled before there is one, and for hosts whose daemon is in
//! the machine: that one reads this host's library, so what is made here is there at once, and nothing is downloaded, unpacked
//! or installed in an emulator. What only looks (`ls`, `inspect`) asks the machine's daemon, if it answers: it has what is here,
//! and what was made through its API.

use forkd_client::{Client, ClientError};
use forkd_daemon::library_view as view;
use forkd_host::home;
use forkd_image::images::{ImageStore, Removal};
use forkd_image::kernels::KernelStore;

use forkd_api::library::{Image, ImageSummary, Kernel, RemoveKernel, RemovedImage};

use crate::arguments::DaemonOptions;
use crate::commands::asynchronously;
use crate::daemon;
use crate::error::CliError;
use crate::progress::Progress;
use crate::signals::Signals;

/// The images of this host's library.
pub fn images_here() -> Result<ImageStore, CliError> {
    Ok(ImageStore::new(&home::library()?))
}

/// The kernels of this host's library.
pub fn kernels_here() -> Result<KernelStore, CliError> {
    Ok(KernelStore::new(&home::library()?))
}

/// Changes something: through the API, or here. A Ctrl-C ends what a daemon does, which leaves nothing of it.
pub fn change<T>(
    options: &DaemonOptions,
    there: impl AsyncFnOnce(&Client, &Progress) -> Result<T, CliError>,
    here: impl FnOnce() -> Result<T, CliError>,
) -> Result<T, CliError> {
    let made = asynchronously(async {
        let Some(client) = daemon::look_here(options).await? else { return Ok(None) };
        let mut signals = Signals::new()?;
        let progress = Progress::new();
        let made = tokio::select! {
            made = there(&client, &progress) => made?,
            asked = signals.end() => return Err(CliError::Interrupted(asked.status())),
        };
        progress.finish();
        Ok(Some(made))
    })?;
    match made {
        Some(made) => Ok(made),
        None => here(),
    }
}

/// Looks at something: through the API, also that of a machine's daemon, or here.
pub fn look<T>(
    options: &DaemonOptions,
    there: impl AsyncFnOnce(&Client) -> Result<T, ClientError>,
    here: impl FnOnce() -> Result<T, CliError>,
) -> Result<T, CliError> {
    let seen = asynchronously(async {
        match daemon::look(options).await? {
            Some(client) => Ok(Some(there(&client).await?)),
            None => Ok(None),
        }
    })?;
    match seen {
        Some(seen) => Ok(seen),
        None => here(),
    }
}

pub fn images(options: &DaemonOptions) -> Result<Vec<ImageSummary>, CliError> {
    let here = || Ok(images_here()?.list()?.iter().map(view::summary).collect());
    look(options, async |client| client.images().await, here)
}

pub fn image(options: &DaemonOptions, image: &str) -> Result<Image, CliError> {
    let here = || Ok(view::image(&images_here()?.find(image)?));
    look(options, async |client| client.image(image).await, here)
}

pub fn kernels(options: &DaemonOptions) -> Result<Vec<Kernel>, CliError> {
    let here = || Ok(kernels_here()?.list()?.iter().map(view::kernel).collect());
    look(options, async |client| client.kernels().await, here)
}

/// Removes an image, where it is: what a machine's daemon has for itself is removed there. What it reads from this host is removed
/// here, unless snapshots of the machine need it.
pub async fn remove_image(options: &DaemonOptions, image: &str) -> Result<RemovedImage, CliError> {
    if let Some(client) = daemon::look_here(options).await? {
        return Ok(client.remove_image(image).await?);
    }
    let machine = daemon::look_in_machine(options).await?;
    if let Some(client) = &machine {
        match client.image(image).await {
            Ok(found) if !found.summary.shared => return Ok(client.remove_image(image).await?),
            Ok(_) => {}
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error.into()),
        }
    }
    let store = images_here()?;
    let Removal { image: found, names, whole } = store.removal(image)?;
    let id = found.id().to_string();
    if let Some(client) = machine.filter(|_| whole) {
        refuse_needed(&client, image, &id).await?;
    }
    let freed_bytes = store.remove(image)?;
    Ok(RemovedImage {
        id,
        names: names.iter().map(ToString::to_string).collect(),
        removed: whole,
        freed_bytes,
    })
}

async fn refuse_needed(client: &Client, image: &str, id: &str) -> Result<(), CliError> {
    let snapshots = client.snapshots().await?;
    let users: Vec<String> = snapshots
        .into_iter()
        .filter(|snapshot| snapshot.image.as_deref() == Some(id))
        .map(|snapshot| format!("snapshot {}", snapshot.tag))
        .collect();
    if users.is_empty() {
        return Ok(());
    }
    Err(CliError::ImageNeeded { image: image.to_owned(), users: users.join(", ") })
}

/// Removes a kernel, where it is as well.
pub async fn remove_kernel(options: &DaemonOptions, kernel: &str, force: bool) -> Result<Kernel, CliError> {
    let wanted = RemoveKernel { force };
    if let Some(client) = daemon::look_here(options).await? {
        return Ok(client.remove_kernel(kernel, wanted).await?);
    }
    if let Some(client) = daemon::look_in_machine(options).await? {
        let known = client.kernels().await?;
        if known.iter().any(|known| !known.shared && known.name.starts_with(kernel)) {
            return Ok(client.remove_kernel(kernel, wanted).await?);
        }
    }
    Ok(view::kernel(&kernels_here()?.remove(kernel, force)?))
}
