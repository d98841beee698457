//! What is served at which port: the protocols behind the gate, and the host's own calls beside them.

use std::sync::Arc;

use axum::Router;

use crate::agent::Agent;
use crate::{account, envd as processes_and_files, identity, interpreter as code, startup};

pub fn envd(agent: &Arc<Agent>) -> Router {
    let calls =
        identity::routes().merge(startup::routes()).merge(account::routes()).with_state(Arc::clone(agent));
    identity::behind_gate(agent, processes_and_files::router(Arc::clone(agent))).merge(calls)
}

pub fn interpreter(agent: &Arc<Agent>) -> Router {
    identity::behind_gate(agent, code::router(Arc::clone(agent)))
}
