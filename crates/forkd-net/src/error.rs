//! What can go wrong with a network.

use std::io;

use crate::nft::TransactionError;
use crate::plan::Slot;
use crate::policy::PolicyError;

#[derive(Debug, thiserror::Error)]
pub enum NetError {
    #[error("cannot {what}")]
    Kernel { what: &'static str, source: io::Error },
    #[error("rules for packets cannot be set; does this kernel have nf_tables?")]
    Rules(#[from] TransactionError),
    #[error("the network of slot {0} cannot be made")]
    Make(Slot, #[source] Box<NetError>),
    #[error("all {0} networks are taken")]
    Full(usize),
    #[error("another daemon of this host has the networks")]
    Taken,
    #[error("this process is ending")]
    Ended,
    #[error("the sandbox no longer has this network")]
    Released,
    #[error("the network of slot {0} cannot be used again: {1}")]
    NotReusable(Slot, String),
    #[error(transparent)]
    Policy(#[from] PolicyError),
    #[error("{setting} is 0, and this may not be changed; set it to 1")]
    Forwarding { setting: &'static str },
}

impl NetError {
    pub(crate) fn when(what: &'static str) -> impl FnOnce(io::Error) -> NetError {
        move |source| NetError::Kernel { what, source }
    }
}

/// Runs what blocks where it may.
pub(crate) async fn blocking<T: Send + 'static>(
    run: impl FnOnce() -> Result<T, NetError> + Send + 'static,
) -> Result<T, NetError> {
    let joined = tokio::task::spawn_blocking(run).await;
    joined.unwrap_or_else(|error| {
        Err(NetError::Kernel { what: "finish", source: io::Error::other(error.to_string()) })
    })
}
