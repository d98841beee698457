//! Interactive programs, over a WebSocket.
//!
//! ```text
//!   client                                   daemon
//!     │ text: ExecStart ────────────────────▶ │ starts the program
//!     │ ◀──────────── text: {"started": …}    │
//!     │ binary: what it reads ──────────────▶ │ ─▶ stdin ─▶ feed: waits until the program has taken it
//!     │ text: ExecInput ────────────────────▶ │ size, signal, end of its input
//!     │ ◀─── text: {"stdin_taken": …}         │ for a client that asked for it
//!     │ ◀── binary: 1 or 2, then its output   │ tell: waits until the client has read it
//!     │ ◀──────────── text: {"exited": …}     │
//! ```
//!
//! Little is kept: a program that does not read makes its client wait once a window of stdin is full (`stdin.rs`), a client that
//! does not read makes the program wait, and is given up after a while.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Extension;
use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::response::Response;
use bytes::Bytes;
use forkd_api::error::{ErrorBody, ErrorCode};
use forkd_api::exec::{Exec, ExecEvent, ExecInput, ExecStart, MAX_INPUT_MESSAGE, Signal, TerminalSize};
use forkd_api::hint::HintCode;
use forkd_engine::SandboxHandle;
use forkd_engine::exec::{self, Input, Program, Remote};
use forkd_envd::process;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tracing::Instrument;

use super::run::{GRACE, LONGEST_SECS, Watch, check, failed, in_time};
use super::stdin::{Stdin, Typed};
use crate::app::{App, Shared};
use crate::auth::Caller;
use crate::during::during;
use crate::error::{Answer, ApiError};
use crate::extract::Path;
use crate::routes::checks::malformed;
use crate::routes::responses::AgentErrors;
use crate::trace::RequestTrace;

/// A client that is gone without a word is noticed when it cannot be written to.
const PING: Duration = Duration::from_secs(30);
/// What a client gets to close its side, and a program to take what a client has left.
const LEAVING: Duration = Duration::from_secs(5);
const SECONDS: u64 = 30;
const TERMINAL: &str = "xterm-256color";

/// Runs an interactive program over a WebSocket.
///
/// The client's first message is text, an ExecStart. After that, its binary messages are the program's stdin, and its text messages
/// are ExecInput. The daemon's text messages are ExecEvent (`started` first, `exited` or `error` last); its binary messages are
/// output: one byte, 1 for stdout (or a terminal) or 2 for stderr, followed by the bytes. A message of a client has at most 256
/// KiB.
///
/// The daemon buffers 1 MiB of stdin. For signals to arrive while the program does not read, set `stdin_window` in the ExecStart,
/// and never send more than 1 MiB beyond what `stdin_taken` events have reported.
///
/// When the client disconnects, the program's stdin is closed and the program keeps running until its timeout; with a terminal it
/// gets SIGHUP. A client that reads nothing for a minute is disconnected.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{id}/exec",
    tag = "sandboxes",
    operation_id = "exec_interactive",
    params(("id" = String, Path)),
    responses(
        (status = 101, description = "A WebSocket; its text messages have this schema", body = ExecEvent),
        (status = 400, description = "The request is not a WebSocket upgrade", body = ErrorBody),
        AgentErrors,
        (status = 503, description = "The daemon has too many open connections", body = ErrorBody),
    )
)]
pub(super) async fn interact(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Answer<Response> {
    let sandbox = app.sandbox(&caller, &id)?;
    sandbox.awake_agent().await?;
    let upgrade = upgrade.map_err(|rejection| {
        malformed("this path needs a WebSocket request").hint(HintCode::UsePost).detail(rejection.to_string())
    })?;
    become_socket(&app.clone(), upgrade, async move |socket| serve(&app, &sandbox, socket).await)
}

/// Serves a client of a program that runs already.
pub(super) fn serve_session(app: &Shared, upgrade: WebSocketUpgrade, session: Session) -> Answer<Response> {
    let shared = app.clone();
    become_socket(app, upgrade, async move |socket| {
        let (mut to_client, mut from_client) = socket.split();
        let last = session.run(&shared, &mut to_client, &mut from_client).await;
        finish(last, to_client, from_client).await;
    })
}

fn become_socket<F: Future<Output = ()> + Send + 'static>(
    app: &Shared,
    upgrade: WebSocketUpgrade,
    serve: impl FnOnce(WebSocket) -> F + Send + 'static,
) -> Answer<Response> {
    let place = app.place_for_upgrade()?;
    let upgrade = upgrade.max_message_size(MAX_INPUT_MESSAGE).max_frame_size(MAX_INPUT_MESSAGE);
    let (span, trace) = (tracing::Span::current(), RequestTrace::current());
    let app = app.clone();
    Ok(upgrade.on_upgrade(move |socket| {
        let session = async move {
            let _place = place;
            let _counted = app.metrics.connection();
            trace.scope(serve(socket)).await;
        };
        session.instrument(span)
    }))
}

type ToClient = SplitSink<WebSocket, Message>;
type FromClient = SplitStream<WebSocket>;

/// Why a session is over.
enum Over {
    /// The program has ended, or cannot be followed any more: the last word to the client.
    Last(ExecEvent),
    /// The client has sent an invalid message.
    Nonsense(ApiError),
    Gone,
}

/// A program that runs, and what the client can do to it.
pub(super) struct Session {
    pub watch: Watch,
    pub input: Input,
    pub remote: Remote,
    pub terminal: bool,
    pub first: Option<Bytes>,
    /// Whether the client wants to know what the program has taken.
    pub window: bool,
    /// Whether the client has attached to a program of another client, which does not end with it.
    pub guest: bool,
}

async fn serve(app: &App, sandbox: &SandboxHandle, socket: WebSocket) {
    let (mut to_client, mut from_client) = socket.split();
    let begun = async {
        match first_message(app, &mut from_client).await? {
            Some(start) => begin(sandbox, start).await.map(Some),
            None => Ok(None),
        }
    };
    let last = match begun.await {
        Ok(Some(session)) => session.run(app, &mut to_client, &mut from_client).await,
        Ok(None) => return,
        Err(error) => Some(failed(app, error)),
    };
    finish(last, to_client, from_client).await;
}

/// Says the last word, and closes.
async fn finish(last: Option<ExecEvent>, mut to_client: ToClient, mut from_client: FromClient) {
    let Some(last) = last else { return };
    // A client that has gone does not need it.
    let _ = say(&mut to_client, &last).await;
    let _ = to_client.close().await;
    // Closed with bytes unread, the connection would be reset, and the last words lost.
    let rest = async { while let Some(Ok(_)) = from_client.next().await {} };
    let _ = tokio::time::timeout(LEAVING, rest).await;
}

async fn say(to_client: &mut ToClient, event: &ExecEvent) -> Result<(), axum::Error> {
    let text = serde_json::to_string(event).map_err(axum::Error::new)?;
    to_client.send(Message::Text(text.into())).await
}

/// What to start; `None` for a client that went away before it said.
async fn first_message(app: &App, from_client: &mut FromClient) -> Answer<Option<ExecStart>> {
    let time = app.limits.body_time;
    let first = async {
        loop {
            match from_client.next().await {
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Ok(Message::Text(text))) => return Ok(Some(parse(&text)?)),
                Some(Ok(Message::Binary(_))) => {
                    return Err(malformed("the first message must be text: ExecStart"));
                }
                Some(Ok(Message::Close(_)) | Err(_)) | None => return Ok(None),
            }
        }
    };
    tokio::time::timeout(time, first).await.map_err(|_| {
        ApiError::new(ErrorCode::RequestTimeout, format!("no message came within {} s", time.as_secs_f32()))
    })?
}

fn parse<T: serde::de::DeserializeOwned>(text: &str) -> Answer<T> {
    serde_json::from_str(text)
        .map_err(|error| malformed(format!("invalid message: {error}")).hint(HintCode::ReadApi))
}

/// The program, its time and its terminal.
fn convert(start: ExecStart) -> Answer<(Exec, Duration, Option<TerminalSize>)> {
    let ExecStart { args, mut env, cwd, user, stdin, timeout_secs, tty, stdin_window: _ } = start;
    if tty.is_some() {
        env.entry("TERM".into()).or_insert_with(|| TERMINAL.into());
    }
    let usual = if tty.is_some() { LONGEST_SECS } else { SECONDS };
    let exec = Exec { args, env, cwd, user, stdin, timeout_secs: timeout_secs.unwrap_or(usual) };
    let limit = check(&exec)?;
    Ok((exec, limit, tty))
}

async fn begin(sandbox: &SandboxHandle, start: ExecStart) -> Answer<Session> {
    let window = start.stdin_window;
    let (mut wanted, limit, tty) = convert(start)?;
    RequestTrace::current().pass_on(&mut wanted.env);
    let program = Program {
        arguments: &wanted.args,
        env: &wanted.env,
        workdir: wanted.cwd.as_deref().unwrap_or(""),
        user: wanted.user.as_deref(),
        stdin: None,
        limit: Some(limit),
    };
    let begun = Instant::now();
    let starting = exec::interact(sandbox.agent(), &program, tty.map(size));
    let (running, input, remote) = in_time(GRACE, during(sandbox, starting)).await??;
    let watch = Watch { running, begun, limit: Some(limit), sandbox: sandbox.clone() };
    let first = wanted.stdin.map(Into::into);
    Ok(Session { watch, input, remote, terminal: tty.is_some(), first, window, guest: false })
}

fn size(size: TerminalSize) -> process::TerminalSize {
    process::TerminalSize { columns: size.cols, rows: size.rows }
}

pub(super) fn to_signal(signal: Signal) -> forkd_envd::Signal {
    match signal {
        Signal::Hup => forkd_envd::Signal::Hup,
        Signal::Int => forkd_envd::Signal::Int,
        Signal::Quit => forkd_envd::Signal::Quit,
        Signal::Kill => forkd_envd::Signal::Kill,
        Signal::Usr1 => forkd_envd::Signal::Usr1,
        Signal::Usr2 => forkd_envd::Signal::Usr2,
        Signal::Term => forkd_envd::Signal::Term,
        Signal::Cont => forkd_envd::Signal::Cont,
        Signal::Stop => forkd_envd::Signal::Stop,
        Signal::Tstp => forkd_envd::Signal::Tstp,
    }
}

impl Session {
    /// Until the program or the client has gone. Returns the last message for the client, if it is still connected.
    async fn run(
        self,
        app: &App,
        to_client: &mut ToClient,
        from_client: &mut FromClient,
    ) -> Option<ExecEvent> {
        let Session { mut watch, input, remote, terminal, first, window, guest } = self;
        let stdin = Arc::new(Stdin::default());
        // Ends with this function, except where it is waited for.
        let mut feeding = JoinSet::new();
        feeding.spawn(feed(input, first, Arc::clone(&stdin)).in_current_span());
        let over = tokio::select! {
            over = tell(app, &mut watch, window.then_some(&stdin), to_client) => match over {
                // What it has sent before is for the program.
                Over::Gone => {
                    let rest = listen(&remote, from_client, &stdin);
                    tokio::time::timeout(LEAVING, rest).await.unwrap_or(Over::Gone)
                }
                over => over,
            },
            over = listen(&remote, from_client, &stdin) => over,
            () = app.stopping() => Over::Last(ExecEvent::Error(stopping().logged())),
        };
        let (gone, last) = match over {
            Over::Last(event @ ExecEvent::Exited { .. }) => (false, Some(event)),
            Over::Last(event) => (true, Some(event)),
            Over::Nonsense(error) => (true, Some(failed(app, error))),
            Over::Gone => (true, None),
        };
        if gone {
            stdin.close();
            leave(&remote, terminal, guest, feeding).await;
        }
        last
    }
}

/// The program has no client any more, or one less.
async fn leave(remote: &Remote, terminal: bool, guest: bool, mut feeding: JoinSet<()>) {
    if terminal && !guest {
        // One that has just ended needs none.
        let _ = remote.signal(forkd_envd::Signal::Hup).await;
        return;
    }
    // It gets what was sent for it, if it takes it soon, and then the end, unless others may have more for it.
    let _ = tokio::time::timeout(LEAVING, feeding.join_next()).await;
    feeding.shutdown().await;
    if !guest {
        let _ = remote.close_stdin().await;
    }
}

fn stopping() -> ApiError {
    ApiError::new(ErrorCode::Unavailable, "the daemon is stopping")
}

/// Gives the program what it reads, in order. After it has had enough, nothing is kept for it.
async fn feed(mut input: Input, first: Option<Bytes>, stdin: Arc<Stdin>) {
    let mut reads = match first {
        Some(bytes) => input.write(&bytes).await.is_ok(),
        None => true,
    };
    while let Some(next) = stdin.next().await {
        match next {
            Typed::Bytes(bytes) => {
                reads = reads && input.write(&bytes).await.is_ok();
                stdin.taken(bytes.len());
            }
            Typed::End => reads = reads && input.close().await.is_ok(),
        }
    }
}

/// Takes what the client says, until it has gone.
async fn listen(remote: &Remote, from_client: &mut FromClient, stdin: &Stdin) -> Over {
    loop {
        stdin.room().await;
        match from_client.next().await {
            Some(Ok(Message::Binary(bytes))) => stdin.push(&bytes),
            Some(Ok(Message::Text(text))) => match parse(&text) {
                Ok(ExecInput::CloseStdin) => stdin.end(),
                Ok(ExecInput::Resize(wanted)) => {
                    // A program without a terminal has no size to change.
                    let _ = remote.resize(size(wanted)).await;
                }
                Ok(ExecInput::Signal(signal)) => {
                    let _ = remote.signal(to_signal(signal)).await;
                }
                Err(error) => return Over::Nonsense(error),
            },
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
            Some(Ok(Message::Close(_)) | Err(_)) | None => return Over::Gone,
        }
    }
}

/// Tells the client what the program does, until it has ended; with `window`, also what it has taken of its stdin.
async fn tell(app: &App, watch: &mut Watch, window: Option<&Arc<Stdin>>, to_client: &mut ToClient) -> Over {
    let progress = async || match window {
        Some(stdin) => stdin.progress().await,
        None => std::future::pending().await,
    };
    let mut ping = tokio::time::interval_at(tokio::time::Instant::now() + PING, PING);
    ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let told = {
            // Asked once for each thing that is told: its patience with a silent guest must not begin anew with every ping.
            let mut next = pin!(watch.next());
            loop {
                tokio::select! {
                    told = next.as_mut() => break told,
                    _ = ping.tick() => {
                        if to_client.send(Message::Ping(Bytes::new())).await.is_err() {
                            return Over::Gone;
                        }
                    }
                    bytes = progress() => {
                        if say(to_client, &ExecEvent::StdinTaken { bytes }).await.is_err() {
                            return Over::Gone;
                        }
                    }
                }
            }
        };
        let event = told.unwrap_or_else(|error| failed(app, error));
        if matches!(event, ExecEvent::Exited { .. }) {
            watch.measure(app);
        }
        let sent = match event.to_binary() {
            Some(bytes) => to_client.send(Message::Binary(bytes)).await,
            None if event.is_last() => return Over::Last(event),
            None => say(to_client, &event).await,
        };
        if sent.is_err() {
            return Over::Gone;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_has_a_name_and_a_day() {
        let start = |text: &str| convert(serde_json::from_str(text).unwrap());
        let (exec, limit, tty) = start(r#"{"args": ["sh"], "tty": {"cols": 80, "rows": 24}}"#).unwrap();
        assert_eq!((&exec.env["TERM"][..], limit.as_secs()), (TERMINAL, 86400));
        assert_eq!(tty, Some(TerminalSize { cols: 80, rows: 24 }));
        let (exec, limit, tty) = start(r#"{"args": ["sh"]}"#).unwrap();
        assert_eq!((exec.env.is_empty(), limit.as_secs(), tty), (true, 30, None));
        let own = start(r#"{"args": ["sh"], "tty": {"cols": 1, "rows": 1}, "env": {"TERM": "vt100"}}"#);
        assert_eq!(own.unwrap().0.env["TERM"], "vt100");
        for wrong in [r#"{"args": []}"#, r#"{"args": ["a"], "timeout_secs": 0}"#] {
            assert_eq!(start(wrong).unwrap_err().code(), ErrorCode::Malformed, "{wrong}");
        }
    }
}
