//! From an image's configuration to a guest that is ready.
//!
//! ```text
//!                   POST /forkd/config                    the probe passes
//!   unconfigured ──────────────────────▶ starting ──────────────────────▶ ready
//!                                           │  the start command fails, or the time is over
//!                                           └────────────────────────────▶ failed
//! ```
//!
//! `GET /forkd/ready` waits for one of the two ends, so no client has to poll.

mod http;
mod probe;
mod program;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::{get, post};
use tokio::sync::watch;

use forkd_proto::agent::startup::{ConfigRequest, Probe, Ready, StartupState};

use crate::account;
use crate::agent::Agent;
use crate::identity::GuestError;

#[derive(Debug)]
pub struct Startup {
    status: watch::Sender<Status>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Status {
    state: StartupState,
    detail: Option<String>,
    /// What was configured, so that asking twice for the same is no error.
    config: Option<Arc<ConfigRequest>>,
}

#[derive(Debug, thiserror::Error)]
enum StartupError {
    #[error("this guest already has a different configuration")]
    Configured,
    #[error("{0} must be an absolute path")]
    Relative(String),
    #[error("a command needs at least a program")]
    Empty,
}

impl Default for Startup {
    fn default() -> Self {
        let status = Status { state: StartupState::Unconfigured, detail: None, config: None };
        Self { status: watch::Sender::new(status) }
    }
}

pub fn routes() -> Router<Arc<Agent>> {
    Router::new().route("/forkd/config", post(http::config)).route("/forkd/ready", get(http::ready))
}

impl Startup {
    /// Waits while the guest starts, for at most `limit`.
    async fn wait(&self, limit: Duration) -> Status {
        let mut status = self.status.subscribe();
        let ended =
            status.wait_for(|status| matches!(status.state, StartupState::Ready | StartupState::Failed));
        // Time is over, or it has ended: either way, what it is now.
        let _ = tokio::time::timeout(limit, ended).await;
        self.status.borrow().clone()
    }

    fn end(&self, result: Result<(), String>) {
        self.status.send_modify(|status| match result {
            Ok(()) => status.state = StartupState::Ready,
            Err(detail) => (status.state, status.detail) = (StartupState::Failed, Some(detail)),
        });
    }
}

/// Takes a configuration and starts what it names.
fn configure(agent: &Arc<Agent>, config: ConfigRequest) -> Result<(), StartupError> {
    check(&config)?;
    let config = Arc::new(config);
    let mut before = None;
    agent.startup.status.send_if_modified(|status| {
        before = status.config.clone();
        let fresh = status.config.is_none();
        if fresh {
            status.config = Some(Arc::clone(&config));
            status.state = StartupState::Starting;
        }
        fresh
    });
    match before {
        Some(before) if before == config => return Ok(()),
        Some(_) => return Err(StartupError::Configured),
        None => {}
    }
    agent.change(|settings| {
        settings.environment.extend(config.env.clone());
        if let Some(user) = config.user.as_ref().or(config.account.as_ref().map(|account| &account.name)) {
            settings.default_user.clone_from(user);
        }
        settings.has_account = config.account.is_some();
        settings.default_workdir = config.workdir.clone().map(Into::into);
    });
    let agent = Arc::clone(agent);
    tokio::spawn(async move {
        let result = match prepare(&agent, &config).await {
            Ok(()) => program::start_and_wait(&agent, &config).await,
            Err(error) => Err(error.to_string()),
        };
        agent.startup.end(result);
    });
    Ok(())
}

/// Makes what must exist before any program of the image runs.
async fn prepare(agent: &Arc<Agent>, config: &ConfigRequest) -> Result<(), GuestError> {
    let Some(account) = config.account.clone() else { return Ok(()) };
    match account::add(agent, account).await {
        Err(GuestError::Foreign) => Ok(()),
        added => added,
    }
}

fn check(config: &ConfigRequest) -> Result<(), StartupError> {
    let start = config.start.as_ref();
    let directories = [config.workdir.as_ref(), start.and_then(|start| start.workdir.as_ref())];
    if let Some(relative) = directories.into_iter().flatten().find(|path| !path.starts_with('/')) {
        return Err(StartupError::Relative(relative.chars().take(100).collect()));
    }
    let empty = |words: &Vec<String>| words.first().is_none_or(String::is_empty);
    let probe_is_empty = match &config.ready {
        Some(Ready { probe: Probe::Command(words), .. }) => empty(words),
        _ => false,
    };
    if probe_is_empty || start.is_some_and(|start| empty(&start.command)) {
        return Err(StartupError::Empty);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::agent::Settings;
    use forkd_proto::agent::VERSION;
    use forkd_proto::agent::startup::Start;

    fn config(start: Option<&str>, probe: Option<Probe>, timeout_ms: u64) -> ConfigRequest {
        let words = |script: &str| vec!["sh".to_owned(), "-c".to_owned(), script.to_owned()];
        ConfigRequest {
            version: VERSION,
            env: BTreeMap::from([("WORD".into(), "hi".into())]),
            user: None,
            workdir: Some("/tmp".into()),
            account: None,
            start: start.map(|script| Start { command: words(script), user: None, workdir: None }),
            ready: probe.map(|probe| Ready { probe, timeout_ms }),
        }
    }

    fn outcome(config: ConfigRequest) -> Status {
        crate::runtime::new().unwrap().block_on(async {
            let user = crate::users::current().name;
            let settings = Settings { default_user: user, ..Settings::default() };
            let agent = Arc::new(crate::testing::agent(settings));
            configure(&agent, config.clone()).unwrap();
            assert!(configure(&agent, config).is_ok(), "the same again is no error");
            agent.startup.wait(Duration::from_secs(20)).await
        })
    }

    fn command(script: String) -> Option<Probe> {
        Some(Probe::Command(vec!["sh".into(), "-c".into(), script]))
    }

    #[test]
    fn nothing_to_start_is_ready() {
        assert_eq!(outcome(config(None, None, 0)).state, StartupState::Ready);
    }

    #[test]
    fn a_probe_waits_for_the_start_command() {
        let directory = tempfile::tempdir().unwrap();
        let mark = directory.path().join("mark");
        let start = format!("sleep 0.3; echo $WORD $PWD > {}; exec sleep 5", mark.display());
        let status = outcome(config(Some(&start), command(format!("test -s {}", mark.display())), 20_000));
        assert_eq!(status.state, StartupState::Ready, "{status:?}");
        assert_eq!(std::fs::read_to_string(mark).unwrap(), "hi /tmp\n");
    }

    #[test]
    fn a_port_is_ready_when_somebody_listens() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(outcome(config(None, Some(Probe::Port(port)), 5000)).state, StartupState::Ready);
        drop(listener);
        let status = outcome(config(None, Some(Probe::Port(port)), 100));
        assert_eq!(status.state, StartupState::Failed);
        assert!(status.detail.unwrap().contains("0.1 s"));
    }

    #[test]
    fn a_start_command_that_fails_says_its_last_words() {
        let status = outcome(config(Some("echo no such thing >&2; exit 3"), command("false".into()), 20_000));
        let detail = status.detail.unwrap();
        assert!(detail.contains("exit status 3") && detail.contains("no such thing"), "{detail}");
        let status = outcome(ConfigRequest {
            start: Some(Start { command: vec!["/no/such".into()], user: None, workdir: None }),
            ..config(None, None, 0)
        });
        assert!(status.detail.unwrap().contains("/no/such"));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        crate::runtime::new().unwrap().block_on(async {
            let agent = Arc::new(crate::testing::agent(Settings::default()));
            let relative = ConfigRequest { workdir: Some("tmp".into()), ..config(None, None, 0) };
            assert!(matches!(configure(&agent, relative), Err(StartupError::Relative(_))));
            let empty = config(None, Some(Probe::Command(Vec::new())), 0);
            assert!(matches!(configure(&agent, empty), Err(StartupError::Empty)));
            configure(&agent, config(None, None, 0)).unwrap();
            let other = config(Some("true"), None, 0);
            assert!(matches!(configure(&agent, other), Err(StartupError::Configured)));
        });
    }
}
