//! What can go wrong with a network.

use std::io;

use crate::nft::TransactionError;
use crate::plan::Slot;
use crate::policy::PolicyError;

#[derive(Debug, thiserror::Error)]
pub enum NetError {
    #[error("cannot {what}")]
    Kernel { what: &'static str, source: io::Error },
    #[error("cannot set packet filter rules; does this kernel have nf_tables?")]
    Rules(#[from] TransactionError),
    #[error("cannot make the network of slot {0}")]
    Make(Slot, #[source] Box<NetError>),
    #[error("all {0} networks are in use")]
    Full(usize),
    #[error("another daemon on this host uses the networks")]
    Taken,
    #[error("this process is ending")]
    Ended,
    #[error("the sandbox no longer has this network")]
    Released,
    #[error("the network of slot {0} cannot be used again: {1}")]
    NotReusable(Slot, String),
    #[error(transparent)]
    Policy(#[from] PolicyError),
    #[error("{setting} is 0 and cannot be changed from here; set it to 1")]
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
