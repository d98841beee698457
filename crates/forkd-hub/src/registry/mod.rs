//! Snapshots in registries.
//!
//! ```text
//! push   blobs (8 at a time: there already? mounted? sent) ─▶ config ─▶ manifest ─▶ tag
//! open   tag ─▶ [index ─▶ variant ─▶] manifest ─▶ config        checked, nothing of the streams was fetched
//! fetch  frames that are wanted ─▶ checked ─▶ sink
//! ```
//!
//! Everything here blocks, and must not be called from an asynchronous task.

mod challenge;
mod error;
mod list;
mod pull;
mod push;
mod retry;
mod transport;
mod upload;

#[cfg(test)]
mod tests;

pub use error::RegistryError;
pub use list::Tagged;
pub use push::{PushError, PushOptions, Pushed};

/// Parsers of headers and small answers of registries. Public for the fuzz targets.
pub mod answers {
    pub use super::challenge::{Challenge, token};
    pub use super::list::tags_of;
    pub use super::pull::first_byte;
    pub use super::retry::parse_retry_after;
}

pub(crate) use transport::{Request, Transport, body};

use std::future::Future;

use forkd_source::credentials::Credentials;
use forkd_source::digest::Digest;
use oci_client::Reference;

use crate::artifact::{Artifact, OpenError, Selector};
use crate::byte_io::ByteSink;
use crate::config::Stream;
use crate::fetch::{self, FetchError, Fetched, Have, Wanted};
use crate::outgoing::Snapshot;
use crate::progress::{Progress, Tracker, cancelled};
use crate::workers::with_workers;

/// A repository of a registry, and a tag or digest in it: `registry.example/team/snapshot:v1`.
pub struct Repository {
    reference: Reference,
    transport: Transport,
    /// Connections live in it, so it lives as long as they may be used.
    runtime: tokio::runtime::Runtime,
}

impl std::fmt::Debug for Repository {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Repository").field("reference", &self.reference.whole()).finish_non_exhaustive()
    }
}

impl Repository {
    /// Nothing is asked yet. Without credentials, the registry is asked anonymously.
    pub fn new(reference: &str, credentials: Option<&Credentials>) -> Result<Repository, RegistryError> {
        let bad =
            |reason: String| RegistryError::Reference { text: reference.chars().take(200).collect(), reason };
        let parsed: Reference = reference.parse().map_err(|error| bad(format!("{error}")))?;
        if let Some(digest) = parsed.digest() {
            digest.parse::<Digest>().map_err(|error| bad(format!("{error}")))?;
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        Ok(Repository {
            transport: Transport::new(parsed.resolve_registry(), credentials)?,
            reference: parsed,
            runtime: runtime.map_err(RegistryError::Runtime)?,
        })
    }

    /// The whole reference.
    pub fn reference(&self) -> String {
        self.reference.whole()
    }

    /// Registry and repository, without tag and digest: what policies and signatures name.
    pub fn name(&self) -> String {
        format!("{}/{}", self.reference.registry(), self.reference.repository())
    }

    /// Those of these repositories that are other ones of this registry, by the names that [`PushOptions::mount_from`] takes.
    pub fn mountable(&self, names: &[String]) -> Vec<String> {
        let prefix = format!("{}/", self.reference.registry());
        let others = names.iter().filter_map(|name| name.strip_prefix(&prefix));
        others
            .filter(|name| *name != self.repository() && push::is_repository(name))
            .map(str::to_owned)
            .collect()
    }

    /// The digest in the reference, if it has one.
    pub fn digest(&self) -> Option<Digest> {
        self.reference.digest()?.parse().ok()
    }

    /// The last part of the repository's name, with the tag if there is one: what a reader would call it.
    pub fn short_name(&self) -> String {
        let last = self.repository().rsplit('/').next().unwrap_or_default();
        match (self.reference.digest(), self.reference.tag()) {
            (None, Some(tag)) => format!("{last}-{tag}"),
            _ => last.to_owned(),
        }
    }

    /// Sends a snapshot. The tag, if the reference has one, is set last.
    pub fn push(
        &self,
        snapshot: Snapshot<'_>,
        options: &PushOptions,
        progress: &dyn Progress,
    ) -> Result<Pushed, PushError> {
        with_workers(|workers| {
            self.block_on(progress, PushError::Cancelled, |repository| {
                repository.push_snapshot(workers, snapshot, options, progress)
            })
        })
    }

    /// Gets and checks manifest and config. If the tag has several variants, `select` chooses one.
    pub fn open(&self, select: Selector<'_>, progress: &dyn Progress) -> Result<Artifact, OpenError> {
        self.block_on(progress, OpenError::Cancelled, |repository| repository.open_artifact(None, select))
    }

    /// The same for what has this digest, whatever the reference names by now: what was verified is what is opened.
    pub fn open_digest(
        &self,
        digest: Digest,
        select: Selector<'_>,
        progress: &dyn Progress,
    ) -> Result<Artifact, OpenError> {
        self.block_on(progress, OpenError::Cancelled, |repository| {
            repository.open_artifact(Some(digest), select)
        })
    }

    /// Gives the frames of a stream that the caller does not have to a sink.
    pub fn fetch(
        &self,
        stream: &Stream,
        have: Have<'_>,
        sink: &dyn ByteSink,
        progress: &dyn Progress,
    ) -> Result<Fetched, FetchError> {
        self.fetch_all(&[Wanted { stream, have, sink }], progress)
    }

    /// The same of several streams, whose blobs are fetched at the same time.
    pub fn fetch_all(&self, wanted: &[Wanted<'_>], progress: &dyn Progress) -> Result<Fetched, FetchError> {
        let tracker = Tracker::new(progress, wanted.iter().map(Wanted::missing).sum());
        with_workers(|workers| {
            self.block_on(progress, FetchError::Cancelled, |repository| {
                fetch::fetch(repository, workers, wanted, &tracker)
            })
        })
    }

    /// Runs an operation until it ends or is cancelled.
    pub(crate) fn block_on<'a, T, E, F: Future<Output = Result<T, E>>>(
        &'a self,
        progress: &dyn Progress,
        cancelled_error: E,
        operation: impl FnOnce(&'a Repository) -> F,
    ) -> Result<T, E> {
        self.runtime.block_on(async {
            tokio::select! {
                done = operation(self) => done,
                // A registry that says nothing would be waited for otherwise.
                () = cancelled(progress) => Err(cancelled_error),
            }
        })
    }

    fn repository(&self) -> &str {
        self.reference.repository()
    }
}
