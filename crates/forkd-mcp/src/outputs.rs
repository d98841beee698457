//! Output that is too long for an answer: kept for a while, in memory, for its caller.
//!
//! ```text
//!   keep ──▶ forkd://output/ID ──▶ get, by the same caller only
//!     │                             until it is an hour old, or newer outputs take its place, which are of another call
//!     └── at most 64 outputs and 16 MiB of one caller, 64 MiB of all
//! ```

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rmcp::model::{Resource, ResourceContents};

/// What addresses of outputs begin with.
pub(crate) const PREFIX: &str = "forkd://output/";
/// The most that is kept of one output.
pub(crate) const MAX_OUTPUT: usize = 8 << 20;
pub(crate) const MAX_CALLER_BYTES: usize = 16 << 20;
const MAX_CALLER_OUTPUTS: usize = 64;
const MAX_BYTES: usize = 64 << 20;
const MAX_AGE: Duration = Duration::from_secs(3600);
const ID_BYTES: usize = 16;
/// Why there may be no output at an address that an answer had.
pub(crate) const GONE: &str = "outputs are kept for up to an hour, and only the newest: 64 and 16 MiB of a caller, 64 MiB of all callers";

/// What is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Content {
    Text(Arc<str>),
    /// Bytes, in base64.
    Blob {
        data: Arc<str>,
        mime_type: String,
    },
}

impl Content {
    fn len(&self) -> usize {
        match self {
            Content::Text(text) => text.len(),
            Content::Blob { data, .. } => data.len(),
        }
    }

    fn mime_type(&self) -> &str {
        match self {
            Content::Text(_) => "text/plain",
            Content::Blob { mime_type, .. } => mime_type,
        }
    }

    pub(crate) fn to_resource(&self, uri: &str) -> ResourceContents {
        let contents = match self {
            Content::Text(text) => ResourceContents::text(&**text, uri),
            Content::Blob { data, .. } => ResourceContents::blob(&**data, uri),
        };
        contents.with_mime_type(self.mime_type())
    }
}

/// What one call has kept. It may be as much as a caller's outputs, so that none displaces another of the same call.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Share {
    outputs: usize,
    bytes: usize,
}

impl Share {
    /// With one more; nothing if that is too much.
    pub(crate) fn with(self, content: &Content) -> Option<Share> {
        let more = Share { outputs: self.outputs + 1, bytes: self.bytes + content.len() };
        (more.outputs <= MAX_CALLER_OUTPUTS && more.bytes <= MAX_CALLER_BYTES).then_some(more)
    }
}

#[derive(Debug)]
struct Output {
    id: String,
    caller: String,
    name: String,
    content: Content,
    at: Instant,
}

impl Output {
    fn resource(&self) -> Resource {
        Resource::new(format!("{PREFIX}{}", self.id), self.name.clone())
            .with_mime_type(self.content.mime_type())
            .with_size(u64::try_from(self.content.len()).unwrap_or(u64::MAX))
    }
}

/// The outputs of all callers, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Outputs(Mutex<VecDeque<Output>>);

impl Outputs {
    /// Keeps an output. What is longer than an output may be must have been cut before; otherwise nothing is kept.
    pub(crate) fn keep(&self, caller: &str, name: &str, content: Content, now: Instant) -> Option<Resource> {
        if content.len() > MAX_CALLER_BYTES {
            return None;
        }
        let mut id = [0; ID_BYTES];
        getrandom::fill(&mut id).ok()?;
        let output =
            Output { id: hex::encode(id), caller: caller.into(), name: name.into(), content, at: now };
        let resource = output.resource();
        let mut outputs = self.current(now);
        outputs.push_back(output);
        let too_many = |outputs: &VecDeque<Output>| {
            let of_caller = || outputs.iter().filter(|output| output.caller == caller);
            of_caller().count() > MAX_CALLER_OUTPUTS
                || of_caller().map(|output| output.content.len()).sum::<usize>() > MAX_CALLER_BYTES
        };
        while too_many(&outputs) {
            let Some(oldest) = outputs.iter().position(|output| output.caller == caller) else { break };
            outputs.remove(oldest);
        }
        while outputs.iter().map(|output| output.content.len()).sum::<usize>() > MAX_BYTES {
            outputs.pop_front();
        }
        Some(resource)
    }

    /// An output of this caller's, by its address.
    pub(crate) fn get(&self, caller: &str, uri: &str, now: Instant) -> Option<Content> {
        let id = uri.strip_prefix(PREFIX)?;
        let outputs = self.current(now);
        let found = outputs.iter().find(|output| output.id == id && output.caller == caller)?;
        Some(found.content.clone())
    }

    /// Those of this caller, the newest first.
    pub(crate) fn list(&self, caller: &str, now: Instant) -> Vec<Resource> {
        let outputs = self.current(now);
        outputs.iter().rev().filter(|output| output.caller == caller).map(Output::resource).collect()
    }

    /// Those that are not too old.
    fn current(&self, now: Instant) -> MutexGuard<'_, VecDeque<Output>> {
        // Nothing is half done when a thread panics.
        let mut outputs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        outputs.retain(|output| now.saturating_duration_since(output.at) < MAX_AGE);
        outputs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(length: usize) -> Content {
        Content::Text("x".repeat(length).into())
    }

    #[test]
    fn an_output_is_its_callers_and_expires() {
        let (outputs, now) = (Outputs::default(), Instant::now());
        let kept = outputs.keep("token:a", "one", text(3), now).unwrap();
        assert!(kept.uri.starts_with(PREFIX) && kept.size == Some(3));
        assert_eq!(outputs.get("token:a", &kept.uri, now), Some(text(3)));
        assert_eq!(outputs.get("token:b", &kept.uri, now), None);
        assert_eq!(outputs.get("token:a", "forkd://output/none", now), None);
        assert_eq!((outputs.list("token:a", now).len(), outputs.list("token:b", now).len()), (1, 0));
        assert_eq!(outputs.get("token:a", &kept.uri, now + MAX_AGE), None);
        assert!(outputs.list("token:a", now).is_empty());
    }

    #[test]
    fn callers_have_bounds_and_do_not_displace_each_other() {
        let (outputs, now) = (Outputs::default(), Instant::now());
        let other = outputs.keep("token:b", "other", text(10), now).unwrap();
        let first = outputs.keep("token:a", "first", text(MAX_OUTPUT), now).unwrap();
        for _ in 0..2 {
            outputs.keep("token:a", "large", text(MAX_OUTPUT), now).unwrap();
        }
        assert_eq!(outputs.get("token:a", &first.uri, now), None);
        assert_eq!(outputs.list("token:a", now).len(), 2);
        for _ in 0..100 {
            outputs.keep("token:c", "small", text(1), now).unwrap();
        }
        assert_eq!(outputs.list("token:c", now).len(), MAX_CALLER_OUTPUTS);
        assert_eq!(outputs.get("token:b", &other.uri, now), Some(text(10)));
        assert_eq!(outputs.keep("token:a", "too large", text(MAX_CALLER_BYTES + 1), now), None);
    }

    #[test]
    fn all_callers_together_have_a_bound() {
        let (outputs, now) = (Outputs::default(), Instant::now());
        let mut kept = Vec::new();
        for number in 0..10 {
            let caller = format!("token:{number}");
            kept.push((outputs.keep(&caller, "one", text(MAX_OUTPUT), now).unwrap().uri, caller));
        }
        let left = kept.iter().filter(|(uri, caller)| outputs.get(caller, uri, now).is_some()).count();
        assert_eq!(left, MAX_BYTES / MAX_OUTPUT);
    }
}
