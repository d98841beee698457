//! Snapshots.

use forkd_api::library::Publish;
use forkd_api::named::Named;
use forkd_api::snapshot::{
    CreateSnapshot, Progress, RemoveSnapshot, RemovedSnapshots, Snapshot, SnapshotHistory, SnapshotList,
    SnapshotVerification,
};
use hyper::Method;

use crate::error::ClientError;
use crate::exchange::{Client, Request, part, query};

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

    /// What a name means: a snapshot, or else a sandbox.
    pub async fn named(&self, name: &str) -> Result<Named, ClientError> {
        self.ask(Request::get(format!("/v1/names/{}", part(name)))).await
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
