//! The daemon itself, and what happens in it.

use forkd_api::event::{Event, EventQuery};
use forkd_api::system::{Health, ProblemList, Version};
use forkd_api::token::Caller;

use crate::error::ClientError;
use crate::exchange::{Client, Request, query};
use crate::lines::Lines;

impl Client {
    /// Whether the daemon takes requests. Needs no token.
    pub async fn health(&self) -> Result<Health, ClientError> {
        self.ask(Request::get("/healthz".into())).await
    }

    pub async fn version(&self) -> Result<Version, ClientError> {
        self.ask(Request::get("/version".into())).await
    }

    /// The certificate of the daemon's own CA, in PEM. Needs no token.
    pub async fn ca(&self) -> Result<String, ClientError> {
        self.text(Request::get("/v1/ca".into())).await
    }

    /// Who the daemon takes this client to be, and what its token allows.
    pub async fn caller(&self) -> Result<Caller, ClientError> {
        self.ask(Request::get("/v1/caller".into())).await
    }

    /// What the daemon cannot read of its own files. Needs the scope admin.
    pub async fn problems(&self) -> Result<ProblemList, ClientError> {
        self.ask(Request::get("/v1/problems".into())).await
    }

    /// The daemon's metrics, as Prometheus reads them.
    pub async fn metrics(&self) -> Result<String, ClientError> {
        self.text(Request::get("/metrics".into())).await
    }

    /// What happens from now on, or since a cursor.
    pub async fn events(&self, wanted: &EventQuery) -> Result<Lines<Event>, ClientError> {
        let EventQuery { after, sandbox, snapshot, event } = wanted.clone();
        let query = query([("after", after), ("sandbox", sandbox), ("snapshot", snapshot), ("event", event)]);
        self.lines(Request::get(format!("/v1/events{query}"))).await
    }
}
