//! A program in a sandbox, followed over a WebSocket: stdin, signals and the terminal's size one way, output the other.
//!
//! ```text
//!   client                                   daemon
//!   text    {"args": …, "tty": …}  ──▶
//!                                  ◀──  text    {"started": {"pid": 7}}
//!   binary  stdin                  ──▶
//!                                  ◀──  text    {"stdin_taken": {"bytes": 5}}, if it was asked for
//!   text    {"resize": …} | {"signal": "SIGINT"} | "close_stdin"  ──▶
//!                                  ◀──  binary  1 and bytes of stdout, or 2 and bytes of stderr
//!                                  ◀──  text    {"exited": …} or {"error": …}, then it closes
//! ```

use std::sync::Arc;

use bytes::Bytes;
use forkd_api::exec::{
    Exec, ExecEvent, ExecInput, ExecStart, MAX_INPUT_MESSAGE, STDIN_WINDOW, Signal, TerminalSize,
};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

use crate::connect::Stream;
use crate::error::ClientError;
use crate::exchange::{Client, QUICK, refusal};
use crate::lines::Lines;
use crate::sandboxes::path;

/// The daemon sends output in smaller pieces.
const LARGEST_MESSAGE: usize = 16 << 20;

type Socket = WebSocketStream<Box<dyn Stream>>;

/// A program that reads nothing, followed over plain HTTP.
#[derive(Debug)]
pub struct Following(Lines<ExecEvent>, Client);

impl Following {
    /// What the program does next; `Exited` is the last. `Error` is an error here.
    pub async fn next(&mut self) -> Result<ExecEvent, ClientError> {
        let event = self.0.next().await?.ok_or(ClientError::CutOff)?;
        heard(&self.1, event)
    }
}

/// What goes to the program. With `stdin_window`, it sends stdin as fast as `Output::next` hears that the program takes it, so
/// both must be followed at the same time; signals arrive at any time.
#[derive(Debug)]
pub struct Input {
    socket: SplitSink<Socket, Message>,
    /// A permit for each byte that may be sent.
    window: Option<Arc<Semaphore>>,
    /// Bytes that have their permits and are not sent.
    reserved: usize,
}

/// What comes from the program.
#[derive(Debug)]
pub struct Output {
    socket: SplitStream<Socket>,
    window: Option<Arc<Semaphore>>,
    client: Client,
}

impl Client {
    /// Starts a program that reads nothing. It runs until its time is over, even if its output is not followed.
    pub async fn follow(&self, id: &str, exec: &Exec) -> Result<Following, ClientError> {
        Ok(Following(self.exec_lines(id, exec).await?, self.clone()))
    }

    /// Starts a program to talk to. Its input ends when it is not followed any more.
    pub async fn start(&self, id: &str, wanted: &ExecStart) -> Result<(Input, Output), ClientError> {
        let limit = QUICK;
        let (mut input, mut output) = timeout(limit, self.open_socket(path(id, "/exec")))
            .await
            .map_err(|_| ClientError::TimedOut(limit))??;
        if wanted.stdin_window {
            share_window(&mut input, &mut output);
        }
        input.text(wanted).await?;
        Ok((input, output))
    }

    /// Attaches to a running program, to read its output from now on and to write to it. It keeps running afterwards.
    pub async fn attach(&self, id: &str, pid: u32) -> Result<(Input, Output), ClientError> {
        let limit = QUICK;
        let opening = self.open_socket(path(id, &format!("/processes/{pid}")));
        let (mut input, mut output) =
            timeout(limit, opening).await.map_err(|_| ClientError::TimedOut(limit))??;
        share_window(&mut input, &mut output);
        Ok((input, output))
    }

    async fn open_socket(&self, path: String) -> Result<(Input, Output), ClientError> {
        let uri = format!("ws://{}{path}", self.address().authority());
        let mut request = uri.into_client_request().map_err(ClientError::broken)?;
        for (name, value) in self.headers() {
            request.headers_mut().insert(name, value);
        }
        let stream = self.connect().await?;
        let config = WebSocketConfig::default()
            .max_message_size(Some(LARGEST_MESSAGE))
            .max_frame_size(Some(LARGEST_MESSAGE));
        let opened = client_async_with_config(request, stream, Some(config)).await;
        let (socket, _) = opened.map_err(|error| match error {
            tungstenite::Error::Http(answer) => {
                let body = answer.body().as_deref().unwrap_or_default();
                refusal(self, answer.status().as_u16(), body)
            }
            error => lost(error),
        })?;
        let (sink, socket) = socket.split();
        let input = Input { socket: sink, window: None, reserved: 0 };
        Ok((input, Output { socket, window: None, client: self.clone() }))
    }
}

fn share_window(input: &mut Input, output: &mut Output) {
    let window = Arc::new(Semaphore::new(STDIN_WINDOW));
    input.window = Some(Arc::clone(&window));
    output.window = Some(window);
}

impl Input {
    /// Sends what the program reads, once it has taken enough of what was sent before.
    pub async fn stdin(&mut self, mut bytes: Bytes) -> Result<(), ClientError> {
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(MAX_INPUT_MESSAGE));
            self.room(piece.len()).await;
            self.reserved = self.reserved.saturating_sub(piece.len());
            self.socket.send(Message::Binary(piece)).await.map_err(lost)?;
        }
        Ok(())
    }

    /// Waits until this many bytes, of those a message may have, can be sent without waiting for the program. May be given up
    /// at any time.
    pub async fn room(&mut self, bytes: usize) {
        let Some(window) = &self.window else { return };
        let missing = bytes.min(MAX_INPUT_MESSAGE).saturating_sub(self.reserved);
        let missing = u32::try_from(missing).unwrap_or(u32::MAX);
        // The semaphore is never closed.
        if let Ok(permits) = window.acquire_many(missing).await {
            permits.forget();
            self.reserved += missing as usize;
        }
    }

    /// The program has read everything that there is.
    pub async fn close_stdin(&mut self) -> Result<(), ClientError> {
        self.text(&ExecInput::CloseStdin).await
    }

    /// The terminal has another size.
    pub async fn resize(&mut self, size: TerminalSize) -> Result<(), ClientError> {
        self.text(&ExecInput::Resize(size)).await
    }

    /// Sends a signal to the program, and all that are in its process group.
    pub async fn signal(&mut self, signal: Signal) -> Result<(), ClientError> {
        self.text(&ExecInput::Signal(signal)).await
    }

    async fn text(&mut self, value: &impl Serialize) -> Result<(), ClientError> {
        let text = serde_json::to_string(value).map_err(ClientError::broken)?;
        self.socket.send(Message::text(text)).await.map_err(lost)
    }
}

impl Output {
    /// What the program does next; `Exited` is the last. `Error` is an error here, and `StdinTaken` is kept.
    pub async fn next(&mut self) -> Result<ExecEvent, ClientError> {
        loop {
            let message = match self.socket.next().await {
                None | Some(Ok(Message::Close(_))) => return Err(ClientError::CutOff),
                Some(Err(error)) => return Err(lost(error)),
                Some(Ok(message)) => message,
            };
            match message {
                Message::Text(text) => {
                    let event = serde_json::from_str(&text);
                    let event =
                        event.map_err(|error| self.client.foreign(&format!("invalid message ({error})")))?;
                    match event {
                        ExecEvent::StdinTaken { bytes } => self.taken(bytes)?,
                        event => return heard(&self.client, event),
                    }
                }
                Message::Binary(bytes) => {
                    let foreign = || self.client.foreign("it sent output of an unknown stream");
                    return ExecEvent::from_binary(bytes).ok_or_else(foreign);
                }
                // Pings are answered where messages are read.
                _ => {}
            }
        }
    }

    fn taken(&self, bytes: u64) -> Result<(), ClientError> {
        let foreign = || self.client.foreign("it reported more stdin than it was sent");
        let window = self.window.as_ref().ok_or_else(foreign)?;
        let bytes = usize::try_from(bytes).map_err(|_| foreign())?;
        if bytes > STDIN_WINDOW.saturating_sub(window.available_permits()) {
            return Err(foreign());
        }
        window.add_permits(bytes);
        Ok(())
    }
}

/// What an event means to the one who follows the program.
fn heard(client: &Client, event: ExecEvent) -> Result<ExecEvent, ClientError> {
    match event {
        ExecEvent::StdinTaken { .. } => Err(client.foreign("it reported stdin of a program without stdin")),
        ExecEvent::Error(error) => Err(error.into()),
        event => Ok(event),
    }
}

fn lost(error: tungstenite::Error) -> ClientError {
    match error {
        // It ended without a farewell.
        tungstenite::Error::ConnectionClosed
        | tungstenite::Error::AlreadyClosed
        | tungstenite::Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => ClientError::CutOff,
        tungstenite::Error::Io(error) => ClientError::broken(error),
        error => ClientError::broken(error.to_string()),
    }
}
