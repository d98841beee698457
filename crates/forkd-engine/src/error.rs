//! Errors of the engine.

use std::io;

use forkd_image::images::ImageError;
use forkd_net::NetError;
use forkd_proto::control::Reply;
use forkd_store::{AssembleError, ChainError, RemoveError, StoreError, Tag, TagError, WriteError};

use crate::agent::AgentError;
use crate::background::BackgroundError;
use crate::boot::BootError;
use crate::bring_up::BringUpError;
use crate::ids::LayerId;
use crate::library::LibraryError;
use crate::limits::admission::Refusal;
use crate::limits::cgroup::CgroupError;
use crate::paths::PathError;
use crate::process::ProcessError;
use crate::process::control::CallError;
use crate::snapshot::persist::PersistError;

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("there is no sandbox {0:?}")]
    NoSandbox(String),
    #[error("there is no snapshot {0:?}")]
    NoSnapshot(String),
    #[error("no snapshot or sandbox is named {0}")]
    NoSource(String),
    #[error(transparent)]
    Tag(#[from] TagError),
    #[error(transparent)]
    Travel(#[from] crate::snapshot::travel::TravelError),
    #[error(transparent)]
    Receive(#[from] forkd_store::ReceiveError),
    #[error("there is a snapshot {0} already")]
    NameTaken(Tag),
    #[error("the name {name} is in use: it is a name of snapshot {snapshot}")]
    NameInUse { name: Tag, snapshot: Tag },
    #[error("snapshot {snapshot} does not have the name {name}")]
    NoName { name: Tag, snapshot: Tag },
    #[error("snapshot {tag} already has {most} names, the maximum; remove one first")]
    TooManyNames { tag: Tag, most: usize },
    #[error("snapshot {tag} has other names: {}", listed(names))]
    HasNames { tag: Tag, names: Vec<Tag> },
    #[error("snapshot {tag} is the parent of {}", dependents.join(", "))]
    IsParent { tag: Tag, dependents: Vec<String> },
    #[error("cannot read the memory of the snapshot")]
    Damaged(#[source] AssembleError),
    #[error("snapshot {tag} is needed by {}", dependents.join(", "))]
    HasDependents { tag: Tag, dependents: Vec<String> },
    #[error("snapshot {tag} is not a branch of sandbox {sandbox}")]
    NotItsBranch { tag: Tag, sandbox: String },
    #[error("the sandbox already has {0} branches, the maximum")]
    TooManyBranches(usize),
    #[error("cannot merge the {layers} layers of the sandbox's disk: {reason}")]
    TooManyLayers { layers: usize, reason: String },
    #[error("the VM process still has disk layer {} open for writing; the sandbox is ended to protect its branches", .0.as_str())]
    LayerKept(LayerId),
    #[error("cannot merge the layers of a disk")]
    Merge(#[from] forkd_devices::disk::MergeError),
    #[error("{}", wrong_state(.0))]
    WrongState(&'static str),
    #[error("the sandbox ended while the request ran: {0}")]
    EndedMeanwhile(String),
    #[error("snapshot {tag} cannot be used: {reason}")]
    Failed { tag: Tag, reason: String },
    #[error("disk limit {wanted_mib} MiB: the snapshot's disk has {most_mib} MiB")]
    DiskLimit { wanted_mib: u64, most_mib: u64 },
    #[error("this daemon has no network for sandboxes: {0}")]
    NoNetwork(String),
    #[error("the sandbox has no network device, because its snapshot was made without one")]
    NoNetworkDevice,
    #[error(transparent)]
    Network(#[from] NetError),
    #[error("this daemon has no cgroups, so it can limit disk use only")]
    NoCgroups,
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("the guest did not start")]
    BringUp(#[from] BringUpError),
    #[error("the guest's agent failed")]
    Agent(#[from] AgentError),
    #[error("the guest booted, but its agent did not respond; its console ends with:\n{console}")]
    NoAgent { console: String, source: AgentError },
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("unexpected response of a VM process: {0:?}")]
    Answer(Reply),
    #[error("the VM did not start: {0}")]
    Ended(String),
    #[error("the VM process did not respond in time")]
    Timeout,
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error(transparent)]
    Path(#[from] PathError),
    #[error("cannot {verb}")]
    Io { verb: &'static str, source: io::Error },
    #[error(transparent)]
    Image(#[from] ImageError),
    #[error(transparent)]
    Library(#[from] LibraryError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Chain(#[from] ChainError),
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error(transparent)]
    Remove(#[from] RemoveError),
    #[error("cannot write the snapshot")]
    Persist(#[from] PersistError),
    #[error("cannot run background work")]
    Background(#[from] BackgroundError),
    /// Its owner is gone, which happens when it is removed meanwhile.
    #[error("it was removed while the request ran")]
    Removed,
    #[error("the daemon is stopping, and the VM process does not respond")]
    Stopping,
}

/// What a sandbox is that a request about its guest needs an agent for, and that has none.
pub(crate) const NO_AGENT: &str = "without an agent";

fn wrong_state(state: &str) -> String {
    match state {
        "ended" => "the sandbox has ended".to_owned(),
        "paused" => "the sandbox is paused; resume it first".to_owned(),
        "starting" => "the sandbox is still starting; try again".to_owned(),
        NO_AGENT => "the sandbox has no guest agent, which this request needs".to_owned(),
        other => format!("the sandbox is {other}"),
    }
}

/// Names that are listed in an error.
const MAX_LISTED: usize = 10;

fn listed(names: &[Tag]) -> String {
    let some: Vec<&str> = names.iter().take(MAX_LISTED).map(Tag::as_str).collect();
    match names.len().saturating_sub(MAX_LISTED) {
        0 => some.join(", "),
        more => format!("{} and {more} more", some.join(", ")),
    }
}

impl From<BootError> for EngineError {
    fn from(error: BootError) -> EngineError {
        match error {
            BootError::Layers(layers) => {
                EngineError::TooManyLayers { layers, reason: "it is booted from them".into() }
            }
            BootError::File(error) => error.into(),
            BootError::Start(error) => error.into(),
            BootError::Boot(error) => error.into(),
            BootError::Limit(error) => error.into(),
            BootError::Ended(reason) => EngineError::Ended(reason),
            BootError::Agent { console, source } => EngineError::NoAgent { console, source },
        }
    }
}

impl EngineError {
    pub(crate) fn io(verb: &'static str) -> impl FnOnce(io::Error) -> EngineError {
        move |source| EngineError::Io { verb, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_some_of_many_names_are_told() {
        let names = |count: usize| (0..count).map(|number| format!("n{number}").parse().unwrap()).collect();
        let text =
            |count| EngineError::HasNames { tag: "t".parse().unwrap(), names: names(count) }.to_string();
        assert_eq!(text(2), "snapshot t has other names: n0, n1");
        assert!(text(2000).ends_with("n9 and 1990 more"));
    }
}
