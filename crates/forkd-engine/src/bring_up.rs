//! From an agent that answers to a guest that is ready: the image's configuration, its start, its warm-up, its first identity.

use std::collections::BTreeMap;
use std::time::Duration;

use forkd_image::host_environment::HostEnvironment;
use forkd_image::images::Metadata;
use forkd_image::recipe;
use forkd_proto::agent::VERSION;
use forkd_proto::agent::account::Account;
use forkd_proto::agent::startup::{ConfigRequest, Probe, Ready, ReadyResponse, Start, StartupState};
use serde_json::Value;

use crate::agent::{Agent, AgentError};
use crate::commands::{self, CommandError};
use crate::eval::{Code, EvalError, Printed, eval_streaming};
use crate::identity::{Identity, give};
use crate::{host_environment, trust};

/// What an image says about how its processes are started, and what is done before it is of use.
#[derive(Debug, Clone, Default)]
pub struct ImageConfig {
    pub env: BTreeMap<String, String>,
    pub user: Option<String>,
    pub workdir: Option<String>,
    /// A user that the guest has, whatever the image says.
    pub account: Option<Account>,
    /// A program that runs beside the agent.
    pub start: Option<Vec<String>>,
    /// When that is ready.
    pub ready: Option<Ready>,
    /// Commands to run, in this order: as root, with `sh -c`.
    pub run: Vec<String>,
    /// Code to run behind them in the default contexts of its languages, in this order.
    pub warm_up: Vec<WarmUp>,
    /// What the guest sees of the host, if that was asked for.
    pub host: Option<HostEnvironment>,
}

impl ImageConfig {
    /// What an image says, with the recipe that it came with.
    pub fn of(image: &Metadata) -> ImageConfig {
        let recipe = image.recipe.clone().unwrap_or_default();
        let ready = recipe.ready.map(|ready| Ready {
            probe: match ready.probe {
                recipe::Probe::Port(port) => Probe::Port(port),
                recipe::Probe::Command(words) => Probe::Command(words),
            },
            timeout_ms: ready.timeout_seconds.saturating_mul(1000),
        });
        let warm_up = recipe.warm_up.into_iter().map(|(language, code)| WarmUp::new(language.name(), code));
        ImageConfig {
            env: image.config.env.clone(),
            user: Some(recipe.user.unwrap_or_else(|| image.default_user.clone())),
            workdir: image.config.workdir.clone(),
            account: None,
            start: recipe.start,
            ready,
            run: Vec::new(),
            warm_up: warm_up.collect(),
            host: None,
        }
    }
}

/// Code to run before a guest is of use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WarmUp {
    pub language: String,
    pub code: String,
    /// Whether the guest is of no use where it fails, as in an image that does not have the language.
    pub required: bool,
}

impl WarmUp {
    pub fn new(language: &str, code: String) -> WarmUp {
        WarmUp { language: language.to_owned(), code, required: true }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum BringUpError {
    #[error(transparent)]
    Agent(#[from] AgentError),
    #[error(transparent)]
    Command(#[from] CommandError),
    #[error("the warm-up in {language}")]
    Eval { language: String, source: EvalError },
    #[error("the warm-up in {language} failed: {error}")]
    WarmUp { language: String, error: String },
}

/// One call takes no longer, beside those that wait.
const CALL: Duration = Duration::from_secs(30);
/// How long one question whether the guest is ready waits for a change.
const WAIT_MS: u64 = 10_000;

/// Tells the agent what image it is in, waits until the guest is ready, warms it up, and gives it its identity.
pub async fn bring_up(
    agent: &Agent,
    config: &ImageConfig,
    hostname: &str,
    limit: Duration,
) -> Result<(), BringUpError> {
    bring_up_with_output(agent, config, hostname, limit, None).await
}

/// As [`bring_up`], and sends what its commands and its warm-up print.
pub async fn bring_up_with_output(
    agent: &Agent,
    config: &ImageConfig,
    hostname: &str,
    limit: Duration,
    printed: Option<&Printed>,
) -> Result<(), BringUpError> {
    let ImageConfig { mut env, user, workdir, account, start, ready, run, warm_up: code, host } =
        config.clone();
    // Before anything of the image runs: whatever it starts finds them.
    if let Some(host) = &host {
        host_environment::place(agent, host).await?;
        trust::add(agent, &host.certificates).await?;
        env = host_environment::environment(host, &env);
    }
    let start = start.map(|command| Start { command, user: None, workdir: None });
    let request = ConfigRequest { version: VERSION, env, user, workdir, account, start, ready };
    agent.post::<Value>("/forkd/config", &request, CALL).await?;
    wait_until_ready(agent, limit).await?;
    let identity = Identity {
        generation: 1,
        id: hostname.into(),
        hostname: Some(hostname.into()),
        ..Identity::default()
    };
    give(agent, &identity, CALL).await?;
    for command in &run {
        commands::run(agent, command, printed).await?;
    }
    warm_up(agent, &code, limit, printed).await
}

/// Runs code that a guest is warmed up with.
pub(crate) async fn warm_up(
    agent: &Agent,
    code: &[WarmUp],
    limit: Duration,
    printed: Option<&Printed>,
) -> Result<(), BringUpError> {
    for WarmUp { language, code, required } in code {
        match evaluate(agent, language.clone(), code, limit, printed).await {
            Err(BringUpError::Eval { .. } | BringUpError::WarmUp { .. }) if !required => {}
            ran => ran?,
        }
    }
    Ok(())
}

async fn evaluate(
    agent: &Agent,
    language: String,
    code: &str,
    limit: Duration,
    printed: Option<&Printed>,
) -> Result<(), BringUpError> {
    let code = Code { code, language: Some(&language), ..Code::default() };
    match eval_streaming(agent, &code, limit, printed).await {
        Ok(evaluated) => match evaluated.error {
            None => Ok(()),
            Some(error) => {
                let error = format!("{}: {}", error.name, error.value);
                Err(BringUpError::WarmUp { language, error })
            }
        },
        Err(source) => Err(BringUpError::Eval { language, source }),
    }
}

async fn wait_until_ready(agent: &Agent, limit: Duration) -> Result<(), AgentError> {
    let begun = tokio::time::Instant::now();
    loop {
        let path = format!("/forkd/ready?wait_ms={WAIT_MS}");
        let answer: ReadyResponse = agent.get(&path, CALL + Duration::from_millis(WAIT_MS)).await?;
        match answer.state {
            StartupState::Ready => return Ok(()),
            StartupState::Failed => return Err(AgentError::NotReady(answer.detail.unwrap_or_default())),
            StartupState::Unconfigured | StartupState::Starting if begun.elapsed() > limit => {
                return Err(AgentError::Timeout(limit));
            }
            StartupState::Unconfigured | StartupState::Starting => {}
        }
    }
}
