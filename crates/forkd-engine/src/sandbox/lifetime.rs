//! Lifetime: when a sandbox runs, and for how long.
//!
//! ```text
//!   Running ── pause ─────▶ Paused      its expiry stays; resume lets it run again
//!   Running ── suspend ───▶ Paused      without an expiry, until it is resumed    ; also at its expiry, if it was made so
//!   Paused  ── wake ──────▶ Running     with a new expiry; also by traffic, if it was made so
//! ```
//!
//! All of it is done by the sandbox's owner, one request after the other, whichever API it came through.

use std::time::{Duration, SystemTime};

use forkd_envd::init::{INIT, InitRequest};
use forkd_proto::control::Command;
use serde_json::Value;

use super::{Answer, EndReason, Request, Sandbox, SandboxHandle, SandboxState};
use crate::agent::Agent;
use crate::engine::unix_ms;
use crate::error::EngineError;
use crate::fault;
use crate::record::{Changing, WakeRecord};

/// How long a caller waits for a pause or a resume.
const ANSWER: Duration = Duration::from_secs(5);
/// How long a guest may take to set its clock.
const CLOCK: Duration = Duration::from_secs(5);
/// The state of one that waits to be woken.
const PAUSED: &str = "paused";

/// What happens to a sandbox when its time is over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnExpiry {
    #[default]
    End,
    Pause,
}

/// A change of the moment when a sandbox expires, in Unix milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    /// Then, or never.
    At(Option<u64>),
    /// Then, if it runs. One that is paused is refused.
    OfRunning(u64),
    /// Not before then. A sandbox that does not expire still does not.
    AtLeast(u64),
}

impl SandboxHandle {
    /// Pauses it. Its expiry stays as it is.
    pub async fn pause(&self) -> Result<(), EngineError> {
        self.ask_in_time(Request::Pause).await
    }

    /// Resumes it. Its expiry stays as it is.
    pub async fn resume(&self) -> Result<(), EngineError> {
        let resumed = self.ask_in_time(Request::Resume).await?;
        self.set_clock_if(resumed).await;
        Ok(())
    }

    /// Pauses it, without an expiry from then on. Returns whether it ran. A daemon that dies meanwhile leaves both or neither.
    pub async fn suspend(&self) -> Result<bool, EngineError> {
        self.ask_in_time(Request::Suspend).await
    }

    /// Lets it run again, with this expiry. Returns whether it was paused; one that runs is left as it is. A daemon that dies
    /// meanwhile leaves both or neither.
    pub async fn wake(&self, expires_unix_ms: Option<u64>) -> Result<bool, EngineError> {
        let woken = self.ask_in_time(|answer| Request::Wake(expires_unix_ms, answer)).await?;
        self.set_clock_if(woken).await;
        Ok(woken)
    }

    /// Changes when it expires.
    pub async fn set_expiry(&self, expiry: Expiry) -> Result<(), EngineError> {
        self.ask(|answer| Request::SetExpiry(expiry, answer)).await
    }

    /// The agent, for a request that counts as traffic: a paused sandbox is woken first, if it was made so.
    pub async fn awake_agent(&self) -> Result<&Agent, EngineError> {
        forkd_proto::passes!();
        let wakes = {
            let view = self.view.borrow();
            view.record.wake.filter(|_| view.state == SandboxState::Paused)
        };
        if let Some(WakeRecord { ttl_secs }) = wakes {
            let ttl_ms = ttl_secs.map(|seconds| seconds.saturating_mul(1000));
            self.wake(ttl_ms.map(|ttl| unix_ms().saturating_add(ttl))).await?;
        }
        self.answering_agent()
    }

    /// Sets the clock of a guest that was paused. If the guest does not answer, its clock stays late. Runs to its end even if the
    /// caller goes away.
    async fn set_clock_if(&self, resumed: bool) {
        let Ok(agent) = self.answering_agent() else { return };
        if !resumed {
            return;
        }
        let agent = agent.clone();
        let telling = tokio::spawn(async move {
            let now = humantime::format_rfc3339_nanos(SystemTime::now()).to_string();
            let request = InitRequest { timestamp: Some(now), ..InitRequest::default() };
            let _ = agent.post::<Value>(INIT, &request, CLOCK).await;
        });
        let _ = telling.await;
    }

    /// Asks for what takes no time. A process that has not answered by then may still do it.
    async fn ask_in_time<T>(&self, request: impl FnOnce(Answer<T>) -> Request) -> Result<T, EngineError> {
        let answered = tokio::time::timeout(ANSWER, self.ask(request)).await;
        answered.unwrap_or(Err(EngineError::Timeout))
    }
}

impl Sandbox {
    /// Its time is over: it ends, or is paused until it is resumed.
    pub(super) async fn expire(&mut self) {
        if self.record.pauses_at_expiry && self.change_with_expiry(SandboxState::Paused, None).await.is_ok() {
            return;
        }
        self.finish(EndReason::Expired, "its TTL expired".into());
        self.process.kill();
    }

    pub(super) async fn pause(&mut self) -> Result<(), EngineError> {
        self.change(SandboxState::Paused).await
    }

    /// Returns whether it was paused.
    pub(super) async fn resume(&mut self) -> Result<bool, EngineError> {
        let was_paused = self.state == SandboxState::Paused;
        self.change(SandboxState::Running).await?;
        Ok(was_paused)
    }

    /// Returns whether it ran.
    pub(super) async fn suspend(&mut self) -> Result<bool, EngineError> {
        self.check_alive()?;
        if self.state == SandboxState::Paused {
            return Ok(false);
        }
        self.change_with_expiry(SandboxState::Paused, None).await?;
        Ok(true)
    }

    /// Returns whether it was paused.
    pub(super) async fn wake(&mut self, expires: Option<u64>) -> Result<bool, EngineError> {
        self.check_alive()?;
        if self.state != SandboxState::Paused {
            return Ok(false);
        }
        self.change_with_expiry(SandboxState::Running, expires).await?;
        Ok(true)
    }

    pub(super) fn set_expiry(&mut self, expiry: Expiry) -> Result<(), EngineError> {
        self.check_alive()?;
        let now = self.record.expires_unix_ms;
        self.record.expires_unix_ms = match expiry {
            Expiry::At(at) => at,
            Expiry::OfRunning(_) if self.state == SandboxState::Paused => {
                return Err(EngineError::WrongState(PAUSED));
            }
            Expiry::OfRunning(at) => Some(at),
            Expiry::AtLeast(at) => now.map(|now| now.max(at)),
        };
        self.save()
    }

    /// Pauses or resumes. What it already is, it stays.
    async fn change(&mut self, wanted: SandboxState) -> Result<(), EngineError> {
        self.check_alive()?;
        if self.state != wanted {
            let command = if wanted == SandboxState::Paused { Command::Pause } else { Command::Resume };
            self.process.control.call(command, &[]).await?;
            self.become_(wanted);
        }
        Ok(())
    }

    /// Pauses or resumes, and changes the expiry, as one step: the record says first what may be.
    async fn change_with_expiry(
        &mut self,
        wanted: SandboxState,
        expires: Option<u64>,
    ) -> Result<(), EngineError> {
        self.check_alive()?;
        let before = self.record.expires_unix_ms;
        let pauses = wanted == SandboxState::Paused;
        self.record.changing = Some(Changing { pauses, expires_before: before });
        self.record.expires_unix_ms = expires;
        self.save()?;
        fault::place("change.written");
        let changed = self.change(wanted).await;
        fault::place("change.changed");
        if changed.is_err() {
            self.record.expires_unix_ms = before;
        }
        self.record.changing = None;
        self.save()?;
        changed
    }
}
