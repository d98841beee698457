//! What an agent says: streams of envelopes, and the messages in them.

use forkd_envd::connect::{Decoder, Frame, Tracker, outcome, refusal};
use forkd_envd::filesystem::EntryResponse;
use forkd_envd::interpreter::Line;
use forkd_envd::process::EventMessage;

/// Messages up to this size are decoded.
const LIMIT: usize = 1 << 16;

/// Any bytes decode or are refused. Returns how many messages were events of a process, and whether the stream ended well.
pub fn read(bytes: &[u8]) -> (usize, bool) {
    let (mut decoder, mut tracker) = (Decoder::new(LIMIT), Tracker::default());
    let mut events = 0;
    for piece in bytes.chunks(7) {
        decoder.push(piece);
        tracker.pass(piece);
        loop {
            match decoder.next_frame() {
                Err(_) => return (events, false),
                Ok(None) => break,
                Ok(Some(Frame::End(payload))) => return (events, matches!(outcome(&payload), Ok(Ok(())))),
                Ok(Some(Frame::Message(payload))) => events += usize::from(message(&payload)),
            }
        }
        // Both know where a message ends.
        assert_eq!(tracker.is_between(), decoder.finish().is_ok());
    }
    (events, false)
}

fn message(payload: &[u8]) -> bool {
    assert!(refusal(payload).chars().count() <= 500);
    let _ = serde_json::from_slice::<EntryResponse>(payload);
    if let Ok(line) = serde_json::from_slice::<Line>(payload) {
        assert!(line.encode().is_ascii());
    }
    match serde_json::from_slice::<EventMessage>(payload) {
        Ok(message) => {
            if let Some(end) = message.event.end {
                let _ = end.exit().code();
            }
            true
        }
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use forkd_envd::Exit;
    use forkd_envd::connect::{Code, ConnectError, end, message};
    use forkd_envd::interpreter::{CodeError, Printed};
    use forkd_envd::process::{KEEPALIVE, Stream, data_event, end_event, start_event};

    use super::*;
    use crate::seed::keep;

    #[test]
    fn the_seeds_are_read() {
        let output = data_event(Stream::Stdout, b"hello\n");
        let process = [start_event(7), output, message(KEEPALIVE), end_event(Exit::killed()), end(&Ok(()))];
        let process = process.concat();
        keep("envd", "process", &process);
        assert_eq!(read(&process), (4, true));

        let late = ConnectError::new(Code::DeadlineExceeded, "late");
        let failed = [start_event(7), end(&Err(late))].concat();
        keep("envd", "failed", &failed);
        assert_eq!(read(&failed), (1, false));

        let printed = Printed { text: "\u{e9}".into(), timestamp: 0.into() };
        let error = CodeError { name: "E".into(), value: "v".into(), traceback: "t".into() };
        let lines = [Line::Stdout(printed), Line::Error(error), Line::EndOfExecution];
        let lines: Vec<u8> = lines.iter().flat_map(|line| message(&line.encode())).collect();
        keep("envd", "lines", &lines);
        assert_eq!(read(&lines), (0, false));
    }
}
