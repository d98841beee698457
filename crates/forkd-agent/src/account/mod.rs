//! The account that the host wants this guest to have: E2B's `user`, with a home and passwordless sudo.
//!
//! ```text
//!   POST /forkd/config     at the first boot, before anything of the image runs      ─┐
//!   POST /forkd/identity   in a fork of a guest that was not told of one             ─┼─▶ make, then the default user
//!   POST /forkd/account    in a sandbox that runs                                    ─┘
//! ```
//!
//! It is done once in a guest's life: a second request, or one to a fork of such a guest, changes nothing.

mod http;
mod make;
mod sudo;

use std::sync::Arc;

use axum::Router;
use axum::routing::post;
use forkd_proto::agent::account::Account;

pub use make::{AccountError, make};
pub use sudo::{is_sudo, run as run_sudo};

use crate::agent::Agent;
use crate::identity::GuestError;
use crate::runtime::blocking;

pub fn routes() -> Router<Arc<Agent>> {
    Router::new().route("/forkd/account", post(http::account))
}

/// Makes the account and makes it the default user, in its home.
pub async fn adopt(agent: &Arc<Agent>, account: Account) -> Result<(), GuestError> {
    if agent.settings().has_account {
        return Ok(());
    }
    add(agent, account.clone()).await?;
    agent.change(|settings| {
        settings.has_account = true;
        settings.default_user = account.name;
        settings.default_workdir = None;
    });
    Ok(())
}

/// Makes the account, and leaves the defaults as they are.
pub async fn add(agent: &Arc<Agent>, account: Account) -> Result<(), GuestError> {
    let agent = Arc::clone(agent);
    blocking(move || agent.guest.add_account(&account)).await?
}
