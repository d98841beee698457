//! Sandboxes: from their beginning to their end.

use forkd_api::sandbox::{
    BranchSandbox, CreateSandboxes, CreatedSandboxes, Egress, ListSandboxes, Rollback, Sandbox, SandboxList,
    SandboxStats, SetBandwidth, SetTtl,
};
use forkd_api::snapshot::Snapshot;
use hyper::Method;

use crate::error::ClientError;
use crate::exchange::{Client, Request, Streamed, TEXT, part, query};

/// How many sandboxes a page of a list has.
const PAGE: u32 = 1000;

pub(crate) fn path(id: &str, below: &str) -> String {
    format!("/v1/sandboxes/{}{below}", part(id))
}

impl Client {
    /// Forks sandboxes. The answer comes when all are ready. They are made even if the caller does not wait for it.
    pub async fn create_sandboxes(&self, wanted: &CreateSandboxes) -> Result<CreatedSandboxes, ClientError> {
        self.ask(Request::post("/v1/sandboxes".into()).json(wanted)).await
    }

    /// All sandboxes that a filter lets through, page by page.
    pub async fn sandboxes(&self, wanted: &ListSandboxes) -> Result<Vec<Sandbox>, ClientError> {
        let mut all = Vec::new();
        let mut after = wanted.after.clone();
        loop {
            // States are one word on the wire.
            let state =
                wanted.state.and_then(|state| Some(serde_json::to_value(state).ok()?.as_str()?.to_owned()));
            let query = query([
                ("state", state),
                ("snapshot_tag", wanted.snapshot_tag.clone()),
                ("metadata", wanted.metadata.clone()),
                ("limit", Some(wanted.limit.unwrap_or(PAGE).to_string())),
                ("after", after),
            ]);
            let page: SandboxList = self.ask(Request::get(format!("/v1/sandboxes{query}"))).await?;
            all.extend(page.sandboxes);
            match page.next {
                Some(next) if wanted.limit.is_none() => after = Some(next),
                _ => return Ok(all),
            }
        }
    }

    pub async fn sandbox(&self, id: &str) -> Result<Sandbox, ClientError> {
        self.ask(Request::get(path(id, ""))).await
    }

    /// Ends a sandbox, and forgets it.
    pub async fn remove_sandbox(&self, id: &str) -> Result<(), ClientError> {
        self.tell(Request::new(Method::DELETE, path(id, ""))).await
    }

    pub async fn pause(&self, id: &str) -> Result<Sandbox, ClientError> {
        self.ask(Request::post(path(id, "/pause"))).await
    }

    pub async fn resume(&self, id: &str) -> Result<Sandbox, ClientError> {
        self.ask(Request::post(path(id, "/resume"))).await
    }

    /// Makes a snapshot of a sandbox, which keeps running.
    pub async fn branch(&self, id: &str, wanted: &BranchSandbox) -> Result<Snapshot, ClientError> {
        self.ask(Request::post(path(id, "/branch")).json(wanted)).await
    }

    /// Takes a sandbox back to one of its own branches.
    pub async fn rollback(&self, id: &str, tag: &str) -> Result<Sandbox, ClientError> {
        self.ask(Request::post(path(id, "/rollback")).json(&Rollback { tag: tag.into() })).await
    }

    pub async fn set_ttl(&self, id: &str, ttl_secs: Option<u64>) -> Result<Sandbox, ClientError> {
        self.ask(Request::new(Method::PUT, path(id, "/ttl")).json(&SetTtl { ttl_secs })).await
    }

    /// Changes what a sandbox may reach.
    pub async fn set_egress(&self, id: &str, egress: &Egress) -> Result<Sandbox, ClientError> {
        self.ask(Request::new(Method::PUT, path(id, "/egress")).json(egress)).await
    }

    /// Changes how much a sandbox may send and receive: MiB per second, or the daemon's default.
    pub async fn set_bandwidth(&self, id: &str, bandwidth_mib: Option<u64>) -> Result<Sandbox, ClientError> {
        self.ask(Request::new(Method::PUT, path(id, "/bandwidth")).json(&SetBandwidth { bandwidth_mib }))
            .await
    }

    pub async fn stats(&self, id: &str) -> Result<SandboxStats, ClientError> {
        self.ask(Request::get(path(id, "/stats"))).await
    }

    /// The last of what a guest has printed on its console.
    pub async fn console(&self, id: &str, bytes: Option<u64>) -> Result<String, ClientError> {
        let query = query([("bytes", bytes.map(|bytes| bytes.to_string()))]);
        self.text(Request::get(path(id, &format!("/console{query}")))).await
    }

    /// The same, and then what the guest prints until its sandbox ends.
    pub async fn follow_console(&self, id: &str, bytes: Option<u64>) -> Result<Streamed, ClientError> {
        let query = query([("follow", Some("true".into())), ("bytes", bytes.map(|bytes| bytes.to_string()))]);
        let request = Request::get(path(id, &format!("/console{query}"))).accept(TEXT);
        Ok(self.exchange(request).await?.streamed())
    }
}
