//! One execution: what was asked, and what of the answer is on its way.

use std::collections::{BTreeMap, VecDeque};
use std::io;

use bytes::Bytes;
use tokio::sync::mpsc;

use super::launch::Driver;
use super::line::{self, Stream};
use super::message::Event;
use super::text::Decoder;
use crate::server::Peer;

/// What was asked. Dropping the other end of `lines` interrupts it, unless the client was lost in a fork: then it runs on.
#[derive(Debug)]
pub struct Job {
    pub code: String,
    pub environment: BTreeMap<String, String>,
    pub lines: mpsc::Sender<Bytes>,
    pub peer: Peer,
}

/// A job that runs.
#[derive(Debug)]
pub struct Running {
    pub id: u64,
    /// Lines that the client has not taken yet.
    pub outbox: VecDeque<Bytes>,
    pub interrupted: bool,
    /// Whether the driver rests from now on.
    pub rests: bool,
    output: Decoder,
    error: Decoder,
}

impl Running {
    pub fn new(id: u64) -> Self {
        Self {
            id,
            outbox: VecDeque::new(),
            interrupted: false,
            rests: false,
            output: Decoder::default(),
            error: Decoder::default(),
        }
    }

    pub fn push(&mut self, line: Bytes) {
        self.outbox.push_back(line);
    }

    /// Passes output on. False at the stream's end.
    pub fn output(&mut self, stream: Stream, chunk: io::Result<Bytes>) -> bool {
        let Ok(chunk) = chunk else { return false };
        self.text(stream, &chunk);
        !chunk.is_empty()
    }

    /// What was printed before the event that just came belongs before it, and is in the pipes by now.
    pub fn drain(&mut self, driver: &mut Driver) {
        super::launch::drain(&mut driver.output, |chunk| self.text(Stream::Output, chunk));
        super::launch::drain(&mut driver.error, |chunk| self.text(Stream::Error, chunk));
    }

    /// Passes an event on. True when the job is done.
    pub fn take(&mut self, event: Event) -> bool {
        match event {
            Event::Result { main, fields } => self.push(line::result(fields, main)),
            Event::Error { name, value, traceback } => self.push(line::error(name, value, traceback)),
            Event::Done { id, status, rests } if id == self.id => {
                self.rests = rests;
                if status != 0 {
                    let value = format!("exit status {status}");
                    let told = format!("the last command ended with {value}");
                    self.push(line::error("ExitStatus", value, told));
                }
                self.finish();
                return true;
            }
            // Of a fork that came while earlier code ran.
            Event::Problem { message } => {
                self.push(line::output(Stream::Error, format!("[after the fork: {message}]\n")));
            }
            Event::Done { .. } | Event::Ready => {}
        }
        false
    }

    fn text(&mut self, stream: Stream, chunk: &[u8]) {
        let decoder = match stream {
            Stream::Output => &mut self.output,
            Stream::Error => &mut self.error,
        };
        let text = decoder.decode(chunk);
        if !text.is_empty() {
            self.push(line::output(stream, text));
        }
    }

    fn finish(&mut self) {
        for (stream, rest) in [(Stream::Output, self.output.finish()), (Stream::Error, self.error.finish())] {
            if !rest.is_empty() {
                self.push(line::output(stream, rest));
            }
        }
    }
}
