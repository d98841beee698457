//! Taking an identity: the steps in their order, and what became of each.
//!
//! A step that fails is reported and does not keep the others from being done: a child without DNS can still be asked what is
//! wrong. The gate opens at the end in any case, and the host decides what a failure means.

use std::sync::Arc;

use super::guest::{self, Guest, GuestError};
use super::hooks;
use crate::account;
use crate::agent::Agent;
use crate::interpreter::ForkIdentity;
use crate::runtime::blocking;
use forkd_proto::agent::VERSION;
use forkd_proto::agent::identity::{IdentityRequest, IdentityResponse, Step, StepName};

const MAX_ID: usize = 200;

#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error("generation {asked} is older than {current}, which this sandbox has")]
    Stale { asked: u64, current: u64 },
    #[error("an id has 1 to {MAX_ID} characters")]
    Id,
}

/// Applies an identity once: the same generation again gets the same answer.
pub async fn apply(agent: &Arc<Agent>, request: IdentityRequest) -> Result<IdentityResponse, IdentityError> {
    if request.id.is_empty() || request.id.len() > MAX_ID {
        return Err(IdentityError::Id);
    }
    let mut last = agent.gate.last.lock().await;
    if let Some(last) = &*last {
        if last.generation == request.generation {
            return Ok(last.clone());
        }
        if last.generation > request.generation {
            return Err(IdentityError::Stale { asked: request.generation, current: last.generation });
        }
    }
    agent.gate.close();
    let (steps, busy) = take(agent, &request).await;
    let ok = steps.iter().all(|step| step.ok);
    let (version, generation) = (VERSION, request.generation);
    let response = IdentityResponse { version, generation, ok, steps, busy: Some(busy) };
    *last = Some(response.clone());
    agent.gate.open();
    Ok(response)
}

/// The steps, and the contexts in which code was running.
async fn take(agent: &Arc<Agent>, request: &IdentityRequest) -> (Vec<Step>, Vec<String>) {
    let mut steps = Vec::new();
    // First, because every moment makes it staler, and because hooks and logs should see the right time. Here, because a
    // thread would have to be started.
    if let Some(time) = request.unix_time_ns {
        steps.push(outcome(StepName::Clock, agent.guest.set_clock(time)));
    }
    // Before anything that might draw a random number.
    if let Some(seed) = request.seed.clone() {
        let credit = move |guest: &dyn Guest| guest.credit_entropy(&guest::decode_seed(&seed)?);
        steps.push(system(agent, StepName::Entropy, credit).await);
    }
    if let Some(name) = request.hostname.clone() {
        let set = move |guest: &dyn Guest| {
            guest::check_hostname(&name)?;
            guest.set_hostname(&name)
        };
        steps.push(system(agent, StepName::Hostname, set).await);
    }
    if let Some(id) = request.machine_id.clone() {
        let set = move |guest: &dyn Guest| {
            guest::check_machine_id(&id)?;
            guest.set_machine_id(&id)
        };
        steps.push(system(agent, StepName::MachineId, set).await);
    }
    if let Some(account) = request.account.clone().filter(|_| !agent.settings().has_account) {
        steps.push(outcome(StepName::Account, account::adopt(agent, account).await));
    }
    agent.change(|settings| {
        settings.environment.extend(request.env.clone());
        if let Some(token) = &request.access_token {
            settings.access_token = Some(token.clone());
        }
    });
    steps.push(done(StepName::Settings, Vec::new()));
    if let Some(network) = request.network.clone() {
        steps.push(system(agent, StepName::Network, move |guest| guest.set_network(&network)).await);
    }
    let identity =
        ForkIdentity { id: request.id.clone(), index: request.index, generation: request.generation };
    let forked = agent.contexts.fork(&identity, &request.env).await;
    steps.push(done(StepName::Interpreters, forked.problems));
    if let Some(directory) = agent.guest.hooks() {
        steps.push(done(StepName::Hooks, hooks::run(agent, directory, request).await));
    }
    (steps, forked.busy)
}

/// A step that changes the guest's system, off the thread that serves.
async fn system(
    agent: &Arc<Agent>,
    step: StepName,
    change: impl FnOnce(&dyn Guest) -> Result<(), GuestError> + Send + 'static,
) -> Step {
    let agent = Arc::clone(agent);
    match blocking(move || change(&*agent.guest)).await {
        Ok(result) => outcome(step, result),
        Err(error) => done(step, vec![error.to_string()]),
    }
}

fn outcome(step: StepName, result: Result<(), GuestError>) -> Step {
    match result {
        Ok(()) => done(step, Vec::new()),
        Err(GuestError::Foreign) => Step { step, ok: true, skipped: true, error: None },
        Err(error) => done(step, vec![error.to_string()]),
    }
}

fn done(step: StepName, problems: Vec<String>) -> Step {
    let error = (!problems.is_empty()).then(|| problems.join("; "));
    Step { step, ok: error.is_none(), skipped: false, error }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::fs::PermissionsExt;
    use std::path::{Path, PathBuf};
    use std::sync::Mutex;

    use super::*;
    use crate::agent::Settings;
    use forkd_proto::agent::Network;
    use forkd_proto::agent::account::Account;

    /// Notes what it was asked to do.
    #[derive(Debug)]
    struct Recorded {
        calls: Arc<Mutex<Vec<String>>>,
        hooks: PathBuf,
        broken: bool,
    }

    impl Recorded {
        fn note(&self, call: String) -> Result<(), GuestError> {
            self.calls.lock().unwrap().push(call);
            if self.broken { Err(GuestError::System(std::io::Error::other("broken"))) } else { Ok(()) }
        }
    }

    impl Guest for Recorded {
        fn set_clock(&self, time: u64) -> Result<(), GuestError> {
            self.note(format!("clock {time}"))
        }
        fn credit_entropy(&self, seed: &[u8]) -> Result<(), GuestError> {
            self.note(format!("entropy {}", seed.len()))
        }
        fn set_hostname(&self, name: &str) -> Result<(), GuestError> {
            self.note(format!("hostname {name}"))
        }
        fn set_machine_id(&self, id: &str) -> Result<(), GuestError> {
            self.note(format!("machine id {id}"))
        }
        fn set_network(&self, network: &Network) -> Result<(), GuestError> {
            self.note(format!("network {}", network.address))
        }
        fn add_account(&self, account: &Account) -> Result<(), GuestError> {
            self.note(format!("account {}", account.name))
        }
        fn hooks(&self) -> Option<PathBuf> {
            Some(self.hooks.clone())
        }
    }

    fn request() -> IdentityRequest {
        serde_json::from_str(include_str!("../../../forkd-proto/protocol/gen-1/identity-request.json"))
            .unwrap()
    }

    fn with_agent<F: Future<Output = ()>>(
        hooks: &Path,
        broken: bool,
        test: impl FnOnce(Arc<Agent>, Arc<Mutex<Vec<String>>>) -> F,
    ) {
        crate::runtime::new().unwrap().block_on(async {
            let calls = Arc::new(Mutex::new(Vec::new()));
            let guest = Recorded { calls: Arc::clone(&calls), hooks: hooks.to_owned(), broken };
            let settings =
                Settings { environment: BTreeMap::from([("A".into(), "1".into())]), ..Settings::default() };
            let mut agent = crate::testing::agent(settings);
            agent.guest = Box::new(guest);
            test(Arc::new(agent), calls).await;
        });
    }

    fn hook(directory: &Path, name: &str, script: &str) {
        let path = directory.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn every_step_is_done_once_and_in_order() {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("out");
        hook(directory.path(), "20-b", &format!("echo b $FORKD_INDEX $COLOUR >> {}", out.display()));
        hook(directory.path(), "10-a", &format!("echo a $FORKD_ID $A >> {}", out.display()));
        std::fs::write(directory.path().join("30-not-executable"), "exit 1").unwrap();
        with_agent(directory.path(), false, async |agent, calls| {
            let response = apply(&agent, request()).await.unwrap();
            assert!(response.ok, "{response:?}");
            let expected = [
                "clock 1700000000123456789",
                "entropy 64",
                "hostname sandbox-3",
                "machine id 0123456789abcdef0123456789abcdef",
                "network 172.16.0.2",
            ];
            assert_eq!(*calls.lock().unwrap(), expected);
            assert_eq!(agent.settings().access_token.as_deref(), Some("a-token"));
            assert_eq!(agent.settings().environment.len(), 3);
            assert_eq!(apply(&agent, request()).await.unwrap(), response);
            assert_eq!(calls.lock().unwrap().len(), expected.len());
            let older = IdentityRequest { generation: 6, ..request() };
            assert!(matches!(apply(&agent, older).await, Err(IdentityError::Stale { .. })));
        });
        assert_eq!(std::fs::read_to_string(out).unwrap(), "a i4k2h8d0s9f7g6h5j4k3l 1\nb 3 red\n");
    }

    #[test]
    fn an_account_is_made_once_and_becomes_the_default() {
        let directory = tempfile::tempdir().unwrap();
        with_agent(directory.path(), false, async |agent, calls| {
            agent.change(|settings| settings.default_workdir = Some("/app".into()));
            let with = |generation| IdentityRequest {
                generation,
                account: Some(Account::e2b()),
                ..IdentityRequest {
                    unix_time_ns: None,
                    seed: None,
                    hostname: None,
                    machine_id: None,
                    network: None,
                    ..request()
                }
            };
            assert!(apply(&agent, with(8)).await.unwrap().ok);
            let settings = agent.settings();
            assert_eq!((settings.default_user.as_str(), settings.default_workdir), ("user", None));
            // What a fork of this one is told changes nothing.
            agent.change(|settings| settings.default_user = "app".into());
            assert!(apply(&agent, with(9)).await.unwrap().ok);
            assert_eq!(agent.settings().default_user, "app");
            assert_eq!(*calls.lock().unwrap(), ["account user"]);
        });
    }

    #[test]
    fn failures_are_told_by_step_and_the_gate_opens() {
        let directory = tempfile::tempdir().unwrap();
        hook(directory.path(), "fails", "exit 4");
        with_agent(directory.path(), true, async |agent, calls| {
            agent.gate.close();
            let wrong = IdentityRequest { hostname: Some("no name".into()), ..request() };
            let response = apply(&agent, wrong).await.unwrap();
            let failed: Vec<_> =
                response.steps.iter().filter(|step| !step.ok).map(|step| step.step).collect();
            let expected = [
                StepName::Clock,
                StepName::Entropy,
                StepName::Hostname,
                StepName::MachineId,
                StepName::Network,
                StepName::Hooks,
            ];
            assert_eq!(failed, expected);
            assert!(!response.ok && !calls.lock().unwrap().iter().any(|call| call.starts_with("hostname")));
            let hooks = response.steps.last().unwrap().error.clone().unwrap();
            assert!(hooks.contains("fails: exit status 4"), "{hooks}");
            assert!(agent.gate.pass().await.is_ok());
        });
    }

    #[test]
    fn a_foreign_system_is_skipped() {
        crate::runtime::new().unwrap().block_on(async {
            let agent = Arc::new(crate::testing::agent(Settings::default()));
            let response = apply(&agent, request()).await.unwrap();
            let skipped = response.steps.iter().filter(|step| step.skipped).count();
            assert_eq!((response.ok, skipped), (true, 5), "{response:?}");
        });
    }
}
