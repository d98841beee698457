//! Snapshots.

use forkd_api::library::{LibraryProgress, Publish};
use forkd_api::named::Named;
use forkd_api::snapshot::{
    AddSnapshotSignature, BuildSnapshot, BuiltSnapshot, CreateSnapshot, ListRepository, LoadSnapshot,
    Progress, PruneSnapshots, PrunedSnapshots, PullSnapshot, PushSnapshot, PushedSnapshot, RemoveSnapshot,
    RemovedSnapshots, RepositoryTags, ResolveSnapshot, ResolvedSnapshot, Snapshot, SnapshotHistory,
    SnapshotList, SnapshotSignature, SnapshotVerification,
};
use hyper::Method;

use crate::body::{Body, Upload};
use crate::error::ClientError;
use crate::exchange::{Client, Request, part, query};
use crate::files::{BYTES, Download};

impl Client {
    /// Makes a snapshot of an image. What is done is told as it is done; giving up ends it.
    pub async fn create_snapshot(
        &self,
        wanted: &CreateSnapshot,
        mut tell: impl FnMut(Progress),
    ) -> Result<Snapshot, ClientError> {
        let mut lines = self.lines(Request::post("/v1/snapshots".into()).json(wanted)).await?;
        while let Some(progress) = lines.next().await? {
            match progress {
                Progress::Snapshot(snapshot) => return Ok(*snapshot),
                Progress::Error(error) => return Err(error.into()),
                step => tell(step),
            }
        }
        Err(ClientError::CutOff)
    }

    /// Builds a snapshot, as [`Client::create_snapshot`] makes one. Giving up ends nothing: others may wait for it.
    pub async fn build_snapshot(
        &self,
        wanted: &BuildSnapshot,
        mut tell: impl FnMut(Progress),
    ) -> Result<BuiltSnapshot, ClientError> {
        let mut lines = self.lines(Request::post("/v1/snapshots/build".into()).json(wanted)).await?;
        while let Some(progress) = lines.next().await? {
            match progress {
                Progress::Built(built) => return Ok(*built),
                Progress::Error(error) => return Err(error.into()),
                step => tell(step),
            }
        }
        Err(ClientError::CutOff)
    }

    pub async fn snapshots(&self) -> Result<Vec<Snapshot>, ClientError> {
        let list: SnapshotList = self.ask(Request::get("/v1/snapshots".into())).await?;
        Ok(list.snapshots)
    }

    pub async fn snapshot(&self, tag: &str) -> Result<Snapshot, ClientError> {
        self.ask(Request::get(format!("/v1/snapshots/{}", part(tag)))).await
    }

    /// What a snapshot is based on, and what is based on it.
    pub async fn snapshot_history(&self, tag: &str) -> Result<SnapshotHistory, ClientError> {
        self.ask(Request::get(format!("/v1/snapshots/{}/history", part(tag)))).await
    }

    /// Reads and checks every file of a snapshot and of what it is based on. Giving up ends it.
    pub async fn verify_snapshot(&self, tag: &str) -> Result<SnapshotVerification, ClientError> {
        self.ask(Request::post(format!("/v1/snapshots/{}/verify", part(tag)))).await
    }

    /// Makes a snapshot one that needs no other. Giving up ends it.
    pub async fn compact_snapshot(&self, tag: &str) -> Result<Snapshot, ClientError> {
        self.ask(Request::post(format!("/v1/snapshots/{}/compact", part(tag)))).await
    }

    /// Removes unused snapshots, or says which.
    pub async fn prune_snapshots(&self, wanted: &PruneSnapshots) -> Result<PrunedSnapshots, ClientError> {
        self.ask(Request::post("/v1/snapshots/prune".into()).json(wanted)).await
    }

    /// What a name means: a snapshot, or else a sandbox.
    pub async fn named(&self, name: &str) -> Result<Named, ClientError> {
        self.ask(Request::get(format!("/v1/names/{}", part(name)))).await
    }

    /// A snapshot as an archive, with all that it stands on. What breaks off is not whole.
    pub async fn save_snapshot(&self, tag: &str) -> Result<Download, ClientError> {
        let answer = self.exchange(Request::get(format!("/v1/snapshots/{}/archive", part(tag)))).await?;
        Ok(Download(answer.streamed()))
    }

    /// Sends an archive that becomes a snapshot. Where its size is known, the daemon can say at once that it has no room.
    pub async fn load_snapshot(
        &self,
        wanted: &LoadSnapshot,
        archive: Upload,
        size: Option<u64>,
        tell: impl FnMut(LibraryProgress),
    ) -> Result<Snapshot, ClientError> {
        let query = query([("tag", wanted.tag.clone())]);
        let request = Request::post(format!("/v1/snapshots/load{query}"));
        self.make(request.body(BYTES, Body::stream(archive, size)), tell, arrived).await
    }

    /// Fetches a snapshot from a registry. What is done is told as it is done; giving up ends it.
    pub async fn pull_snapshot(
        &self,
        wanted: &PullSnapshot,
        tell: impl FnMut(LibraryProgress),
    ) -> Result<Snapshot, ClientError> {
        self.make(Request::post("/v1/snapshots/pull".into()).json(wanted), tell, arrived).await
    }

    /// The tags of a repository of a registry, and what they name.
    pub async fn repository(&self, wanted: &ListRepository) -> Result<RepositoryTags, ClientError> {
        self.ask(Request::post("/v1/snapshots/repository".into()).json(wanted)).await
    }

    /// Sends a snapshot to a registry, as [`Client::pull_snapshot`] fetches one.
    pub async fn push_snapshot(
        &self,
        tag: &str,
        wanted: &PushSnapshot,
        tell: impl FnMut(LibraryProgress),
    ) -> Result<PushedSnapshot, ClientError> {
        let request = Request::post(format!("/v1/snapshots/{}/push", part(tag)));
        self.make(request.json(wanted), tell, pushed).await
    }

    /// The digest of the snapshot that a reference to a registry names now.
    pub async fn resolve_snapshot(&self, wanted: &ResolveSnapshot) -> Result<ResolvedSnapshot, ClientError> {
        self.ask(Request::post("/v1/snapshots/resolve".into()).json(wanted)).await
    }

    /// Stores a signature of a snapshot that is in a registry. The private key stays with the caller.
    pub async fn add_snapshot_signature(
        &self,
        signature: &AddSnapshotSignature,
    ) -> Result<SnapshotSignature, ClientError> {
        self.ask(Request::post("/v1/snapshots/signatures".into()).json(signature)).await
    }

    /// Lets every project fork from a snapshot, or only its own.
    pub async fn publish_snapshot(&self, tag: &str, public: bool) -> Result<Snapshot, ClientError> {
        let path = format!("/v1/snapshots/{}/public", part(tag));
        self.ask(Request::new(Method::PUT, path).json(&Publish { public })).await
    }

    /// Gives a snapshot another name; with `force`, also one that another snapshot has.
    pub async fn add_snapshot_name(
        &self,
        tag: &str,
        name: &str,
        force: bool,
    ) -> Result<Snapshot, ClientError> {
        let query = query([("force", force.then(|| "true".into()))]);
        let path = format!("/v1/snapshots/{}/names/{}{query}", part(tag), part(name));
        self.ask(Request::new(Method::PUT, path)).await
    }

    /// Removes a snapshot, or another name of one.
    pub async fn remove_snapshot(
        &self,
        tag: &str,
        removal: RemoveSnapshot,
    ) -> Result<RemovedSnapshots, ClientError> {
        let flag = |name, is_set: bool| (name, is_set.then(|| "true".into()));
        let query = query([flag("cascade", removal.cascade), flag("all_names", removal.all_names)]);
        self.ask(Request::new(Method::DELETE, format!("/v1/snapshots/{}{query}", part(tag)))).await
    }
}

fn arrived(progress: LibraryProgress) -> Result<Snapshot, LibraryProgress> {
    match progress {
        LibraryProgress::Snapshot(snapshot) => Ok(*snapshot),
        other => Err(other),
    }
}

fn pushed(progress: LibraryProgress) -> Result<PushedSnapshot, LibraryProgress> {
    match progress {
        LibraryProgress::Pushed(pushed) => Ok(pushed),
        other => Err(other),
    }
}
