//! Answers that are streams: a line of JSON for each thing that is said.

use std::marker::PhantomData;

use bytes::BytesMut;
use serde::de::DeserializeOwned;

use crate::error::ClientError;
use crate::exchange::{Client, Request, Streamed};

/// The type of such answers.
pub(crate) const NDJSON: &str = "application/x-ndjson";

/// No line is longer: the daemon sends a guest's output in pieces.
const LONGEST: usize = 16 << 20;

/// Lines as they come. Dropping them ends the connection, and with it what the daemon does only for them.
#[derive(Debug)]
pub struct Lines<T> {
    body: Streamed,
    /// What has come and is not yet given out.
    buffer: BytesMut,
    /// So many bytes of it are known to have no line's end.
    searched: usize,
    client: Client,
    is: PhantomData<fn() -> T>,
}

impl Client {
    /// Asks for an answer that is a stream.
    pub(crate) async fn lines<T: DeserializeOwned>(&self, request: Request) -> Result<Lines<T>, ClientError> {
        let answer = self.exchange(request.accept(NDJSON)).await?;
        let body = answer.streamed();
        Ok(Lines { body, buffer: BytesMut::new(), searched: 0, client: self.clone(), is: PhantomData })
    }
}

impl<T: DeserializeOwned> Lines<T> {
    /// The next line; nothing at the end of the stream. Nothing is lost if waiting for it is given up.
    pub async fn next(&mut self) -> Result<Option<T>, ClientError> {
        loop {
            if let Some(line) = take_line(&mut self.buffer, &mut self.searched) {
                if line.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                let read = serde_json::from_slice(&line);
                return read
                    .map(Some)
                    .map_err(|error| self.client.foreign(&format!("invalid line of its answer ({error})")));
            }
            if self.buffer.len() > LONGEST {
                return Err(ClientError::TooLarge(LONGEST));
            }
            match self.body.next().await? {
                Some(bytes) => self.buffer.extend_from_slice(&bytes),
                // Every line has its end, so the rest is half of one.
                None if !self.buffer.is_empty() => return Err(ClientError::CutOff),
                None => return Ok(None),
            }
        }
    }
}

/// Takes the first line from the buffer, if it is there as a whole.
fn take_line(buffer: &mut BytesMut, searched: &mut usize) -> Option<BytesMut> {
    let unsearched = buffer.get(*searched..)?;
    match unsearched.iter().position(|byte| *byte == b'\n') {
        Some(found) => {
            let line = buffer.split_to(*searched + found + 1);
            *searched = 0;
            Some(line)
        }
        None => {
            *searched = buffer.len();
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// However a stream is cut into pieces, its lines are the same.
        #[test]
        fn lines_do_not_depend_on_pieces(text in "[a-c\n]{0,60}", cuts in prop::collection::vec(1usize..9, 0..40)) {
            let (mut buffer, mut searched, mut lines) = (BytesMut::new(), 0, Vec::new());
            let mut rest = text.as_bytes();
            let mut cuts = cuts.into_iter();
            while !rest.is_empty() {
                let (piece, behind) = rest.split_at(cuts.next().unwrap_or(rest.len()).min(rest.len()));
                rest = behind;
                buffer.extend_from_slice(piece);
                while let Some(line) = take_line(&mut buffer, &mut searched) {
                    lines.push(String::from_utf8(line.to_vec()).unwrap());
                }
            }
            let whole: Vec<&str> = text.split_inclusive('\n').filter(|line| line.ends_with('\n')).collect();
            prop_assert_eq!(lines, whole);
        }
    }
}
