//! Taking an identity: the steps in their order, and what became of each.
//!
//! A step that fails is reported and does not keep the others from being done: a child without DNS can still be asked what is
//! wrong. The gate opens at the end in any case, and the host decides what a failure means.
//!
//! The guest's programs are frozen in a child of a snapshot that was made. They are thawed when everything is new and the hooks have
//! run. Interpreters have to run to be reseeded, so theirs is the last step before the hooks that need programs. In a child of a
//! live branch nothing is frozen, and running code is reseeded as early as can be: before keys and hooks, which take time.

use std::sync::Arc;
use std::time::Instant;

use super::guest::{self, Guest, GuestError};
use super::hooks;
use super::host_keys::{self, Renewed};
use crate::account;
use crate::agent::Agent;
use crate::interpreter::{ForkIdentity, Forked};
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
    if let Some((_, last)) = &*last {
        if last.generation == request.generation {
            return Ok(last.clone());
        }
        if last.generation > request.generation {
            return Err(IdentityError::Stale { asked: request.generation, current: last.generation });
        }
    }
    agent.gate.close();
    let other = last.as_ref().is_none_or(|(id, _)| *id != request.id);
    let (steps, Forked { busy, resting, .. }) = take(agent, &request, other).await;
    let ok = steps.iter().all(|step| step.ok);
    let (version, generation) = (VERSION, request.generation);
    let response = IdentityResponse { version, generation, ok, steps, busy: Some(busy), resting };
    *last = Some((request.id, response.clone()));
    agent.gate.open();
    Ok(response)
}

/// The steps, and how the interpreters took it. Whether it is `other` than the last one: a sandbox that was rolled back
/// keeps its keys.
async fn take(agent: &Arc<Agent>, request: &IdentityRequest, other: bool) -> (Vec<Step>, Forked) {
    let mut steps = Steps::begin();
    let frozen = agent.children.are_frozen().await;
    // First, because every moment makes it staler, and because hooks and logs should see the right time.
    if let Some(time) = request.unix_time_ns {
        steps.push(outcome(StepName::Clock, agent.guest.set_clock(time)));
    }
    // Before anything that might draw a random number.
    if let Some(seed) = &request.seed {
        let credit = |guest: &dyn Guest| guest.credit_entropy(&guest::decode_seed(seed)?);
        steps.push(system(agent, StepName::Entropy, credit));
    }
    if let Some(name) = &request.hostname {
        let set = |guest: &dyn Guest| {
            guest::check_hostname(name)?;
            guest.set_hostname(name)
        };
        steps.push(system(agent, StepName::Hostname, set));
    }
    if let Some(id) = &request.machine_id {
        let set = |guest: &dyn Guest| {
            guest::check_machine_id(id)?;
            guest.set_machine_id(id)
        };
        steps.push(system(agent, StepName::MachineId, set));
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
    if let Some(network) = &request.network {
        steps.push(system(agent, StepName::Network, |guest| guest.set_network(network)));
    }
    if request.renew {
        steps.push(system(agent, StepName::Connections, |guest| guest.destroy_connections()));
    }
    let mut forked = Forked::default();
    if !frozen {
        forked = interpreters(agent, request, &mut steps).await;
    }
    if let Some(directory) = agent.guest.host_keys().filter(|_| request.renew && other)
        && let Some(step) = host_keys_step(host_keys::renew(agent, directory).await)
    {
        steps.push(step);
    }
    let mut problems = match agent.guest.hooks() {
        Some(directory) => hooks::run(agent, &directory, request).await,
        None => Vec::new(),
    };
    if frozen {
        let still_frozen = agent.children.thaw().await;
        if request.renew {
            steps.push(done(StepName::Thaw, still_frozen));
        }
        forked = interpreters(agent, request, &mut steps).await;
    }
    if let Some(directory) = agent.guest.thaw_hooks() {
        problems.extend(hooks::run(agent, &directory, request).await);
        steps.push(done(StepName::Hooks, problems));
    }
    (steps.done, forked)
}

/// The steps that were done, each with the time since the one before it.
struct Steps {
    done: Vec<Step>,
    last: Instant,
}

impl Steps {
    fn begin() -> Steps {
        Steps { done: Vec::new(), last: Instant::now() }
    }

    fn push(&mut self, step: Step) {
        let now = Instant::now();
        let took = now.duration_since(std::mem::replace(&mut self.last, now));
        self.done.push(Step { took_us: u64::try_from(took.as_micros()).ok(), ..step });
    }
}

/// Reseeds the interpreters, which is a step.
async fn interpreters(agent: &Agent, request: &IdentityRequest, steps: &mut Steps) -> Forked {
    let identity =
        ForkIdentity { id: request.id.clone(), index: request.index, generation: request.generation };
    let mut forked = agent.contexts.fork(&identity, &request.env).await;
    steps.push(done(StepName::Interpreters, std::mem::take(&mut forked.problems)));
    forked
}

/// An image without keys has no such step.
fn host_keys_step(renewed: Renewed) -> Option<Step> {
    let step = StepName::HostKeys;
    match renewed {
        Renewed::Nothing => None,
        Renewed::NoProgram => Some(skipped(step, "the image has no ssh-keygen, and keeps its keys")),
        Renewed::Done(problems) => Some(done(step, problems)),
    }
}

/// A step that changes the guest's system. On the thread that serves: no request is served meanwhile, and a thread that has to be started
/// costs a child more pages than the step itself.
fn system(agent: &Agent, step: StepName, change: impl FnOnce(&dyn Guest) -> Result<(), GuestError>) -> Step {
    outcome(step, change(&*agent.guest))
}

fn outcome(step: StepName, result: Result<(), GuestError>) -> Step {
    match result {
        Ok(()) => done(step, Vec::new()),
        Err(GuestError::Foreign) => Step { step, ok: true, skipped: true, error: None, took_us: None },
        Err(error @ GuestError::Unsupported(_)) => skipped(step, &error.to_string()),
        Err(error) => done(step, vec![error.to_string()]),
    }
}

fn skipped(step: StepName, why: &str) -> Step {
    Step { step, ok: true, skipped: true, error: Some(why.to_owned()), took_us: None }
}

fn done(step: StepName, problems: Vec<String>) -> Step {
    let error = (!problems.is_empty()).then(|| problems.join("; "));
    Step { step, ok: error.is_none(), skipped: false, error, took_us: None }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::fs::PermissionsExt;
    use std::path::{Path, PathBuf};
    use std::sync::Mutex;

    use super::*;
    use crate::agent::Settings;
    use crate::children::imitation;
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
        fn destroy_connections(&self) -> Result<(), GuestError> {
            self.note("connections".into())
        }
        fn prepare_for_forks(&self) -> Result<(), GuestError> {
            self.note("prepare".into())
        }
        fn sync(&self) -> Result<(), GuestError> {
            self.note("sync".into())
        }
        fn hooks(&self) -> Option<PathBuf> {
            Some(self.hooks.clone())
        }
        fn thaw_hooks(&self) -> Option<PathBuf> {
            Some(self.hooks.join("thaw.d"))
        }
        fn host_keys(&self) -> Option<PathBuf> {
            Some(self.hooks.join("ssh"))
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

    /// A child must not begin with what its parent has not written yet.
    #[test]
    fn the_disk_is_synced_before_a_freeze_and_not_after_it() {
        let directory = tempfile::tempdir().unwrap();
        for broken in [false, true] {
            with_agent(directory.path(), broken, async |agent, calls| {
                let _ = super::super::http::close(axum::extract::State(Arc::clone(&agent))).await;
                assert_eq!(*calls.lock().unwrap(), ["prepare", "sync"]);
                super::super::http::open(axum::extract::State(agent)).await;
                assert_eq!(*calls.lock().unwrap(), ["prepare", "sync"]);
            });
        }
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

    /// A snapshot that was made: programs stand still until all is new and the hooks of fork.d have run.
    #[test]
    fn programs_are_thawed_after_everything_that_is_new() {
        let directory = tempfile::tempdir().unwrap();
        let cgroups = tempfile::tempdir().unwrap();
        let freeze = imitation(cgroups.path());
        let out = directory.path().join("out");
        let look = |when: &str| {
            format!("read state < {}; echo {when} $state >> {}", freeze.display(), out.display())
        };
        hook(directory.path(), "10-before", &look("fork.d"));
        std::fs::create_dir(directory.path().join("thaw.d")).unwrap();
        hook(&directory.path().join("thaw.d"), "10-after", &look("thaw.d"));
        std::fs::create_dir(directory.path().join("ssh")).unwrap();
        std::fs::write(directory.path().join("ssh/ssh_host_ed25519_key"), "the image's").unwrap();
        let names = |response: &IdentityResponse| -> Vec<StepName> {
            response.steps.iter().map(|step| step.step).collect()
        };
        with_agent(directory.path(), false, async |agent, calls| {
            let mut agent = Arc::into_inner(agent).unwrap();
            agent.children = agent.children.clone().below(cgroups.path());
            // Not the host's ssh-keygen.
            agent.change(|settings| drop(settings.environment.insert("PATH".into(), "/nonexistent".into())));
            let agent = Arc::new(agent);
            agent.gate.close();
            agent.children.freeze().await.unwrap();
            let renew = IdentityRequest { renew: true, ..request() };
            let response = apply(&agent, renew.clone()).await.unwrap();
            assert!(response.ok && !agent.children.are_frozen().await, "{response:?}");
            let expected = [
                StepName::Clock,
                StepName::Entropy,
                StepName::Hostname,
                StepName::MachineId,
                StepName::Settings,
                StepName::Network,
                StepName::Connections,
                StepName::HostKeys,
                StepName::Thaw,
                StepName::Interpreters,
                StepName::Hooks,
            ];
            assert_eq!(names(&response), expected);
            assert_eq!(calls.lock().unwrap().last().map(String::as_str), Some("connections"));
            let keys = &response.steps[7];
            assert!(keys.skipped && keys.error.as_ref().is_some_and(|why| why.contains("ssh-keygen")));

            // The same sandbox after a rollback keeps its keys; nothing was frozen, so interpreters come before the hooks.
            let again = IdentityRequest { generation: 8, ..renew };
            let response = apply(&agent, again).await.unwrap();
            assert_eq!(
                names(&response)[6..],
                [StepName::Connections, StepName::Interpreters, StepName::Hooks]
            );
            assert!(agent.gate.pass().await.is_ok());
        });
        let seen = std::fs::read_to_string(out).unwrap();
        assert_eq!(seen, "fork.d 1\nthaw.d 0\nfork.d 0\nthaw.d 0\n");
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
