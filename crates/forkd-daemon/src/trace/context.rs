//! W3C Trace Context: which trace a request belongs to, and which span is its parent.
//!
//! ```text
//! traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
//!              version, trace id, id of the parent span, flags (1: it is recorded)
//! tracestate:  vendor=value,…   passed on as it is
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::http::HeaderMap;

pub(super) const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";
/// The variables that commands get, as other tools name them.
const PARENT_VARIABLE: &str = "TRACEPARENT";
const STATE_VARIABLE: &str = "TRACESTATE";

/// The length of version 00. Later versions may append fields, after a dash.
const LENGTH: usize = 55;
/// What the standard requires everybody to pass on.
const MAX_STATE: usize = 512;
const SAMPLED: u8 = 1;
/// The flags that are defined: the trace is recorded, its id is random. Others must not be passed on.
const KNOWN_FLAGS: u8 = 3;

pub type TraceId = [u8; 16];
pub type SpanId = [u8; 8];

/// A place in a trace: a span, as those below it name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceContext {
    pub trace_id: TraceId,
    pub span_id: SpanId,
    flags: u8,
    /// What systems on the way have added.
    pub state: Option<Arc<str>>,
}

impl TraceContext {
    pub fn new(trace_id: TraceId, span_id: SpanId, flags: u8, state: Option<Arc<str>>) -> TraceContext {
        TraceContext { trace_id, span_id, flags: flags & KNOWN_FLAGS, state }
    }

    /// The caller's. A malformed one is ignored, as the standard says, and so is one that is there twice.
    pub fn of(headers: &HeaderMap) -> Option<TraceContext> {
        let mut all = headers.get_all(TRACEPARENT).iter();
        let (Some(one), None) = (all.next(), all.next()) else { return None };
        let context = parse(one.to_str().ok()?)?;
        Some(TraceContext { state: state(headers), ..context })
    }

    /// Another span of the same trace.
    pub fn with_span(&self, span_id: SpanId) -> TraceContext {
        TraceContext { span_id, ..self.clone() }
    }

    pub fn flags(&self) -> u8 {
        self.flags
    }

    /// Whether spans of this trace are recorded.
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    pub fn traceparent(&self) -> String {
        format!("00-{}-{}-{:02x}", hex::encode(self.trace_id), hex::encode(self.span_id), self.flags)
    }

    /// Puts it into the environment of a command, unless the caller has put one there.
    pub fn pass_on(&self, env: &mut BTreeMap<String, String>) {
        if env.contains_key(PARENT_VARIABLE) {
            return;
        }
        env.insert(PARENT_VARIABLE.into(), self.traceparent());
        if let Some(state) = &self.state {
            env.entry(STATE_VARIABLE.into()).or_insert_with(|| state.to_string());
        }
    }
}

fn parse(text: &str) -> Option<TraceContext> {
    let known = text.get(..LENGTH)?;
    let rest = text.get(LENGTH..)?;
    let [version, trace_id, span_id, flags] = known.split('-').collect::<Vec<_>>().try_into().ok()?;
    let [version] = decode(version)?;
    let fits = match version {
        0 => rest.is_empty(),
        0xff => false,
        _ => rest.is_empty() || rest.starts_with('-'),
    };
    let [flags] = decode(flags)?;
    let context = TraceContext::new(decode(trace_id)?, decode(span_id)?, flags, None);
    (fits && context.trace_id != [0; 16] && context.span_id != [0; 8]).then_some(context)
}

/// Digits in lower case, exactly as many as there is room for.
fn decode<const N: usize>(digits: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    let lower = digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    (lower && hex::decode_to_slice(digits, &mut bytes).is_ok()).then_some(bytes)
}

/// The state, which may be in several headers. One that is too long, or not printable, is not passed on.
fn state(headers: &HeaderMap) -> Option<Arc<str>> {
    let parts = headers.get_all(TRACESTATE).iter().map(|value| value.to_str().ok());
    let joined = parts.collect::<Option<Vec<_>>>()?.join(",");
    let printable = joined.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    ((1..=MAX_STATE).contains(&joined.len()) && printable).then(|| joined.into())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    fn headers(all: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in all {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    #[test]
    fn a_context_is_read_and_written() {
        let text = format!("00-{TRACE}-{SPAN}-01");
        let context = TraceContext::of(&headers(&[("traceparent", &text)])).unwrap();
        assert_eq!(hex::encode(context.trace_id), TRACE);
        assert_eq!(hex::encode(context.span_id), SPAN);
        assert!(context.is_sampled());
        assert_eq!((context.traceparent(), context.state), (text, None));
    }

    #[test]
    fn later_versions_and_flags_become_what_is_known() {
        let known = format!("00-{TRACE}-{SPAN}-02");
        for text in [format!("cc-{TRACE}-{SPAN}-fe"), format!("cc-{TRACE}-{SPAN}-fe-what-comes-later")] {
            let context = parse(&text).unwrap();
            assert!(!context.is_sampled());
            assert_eq!(context.traceparent(), known);
        }
    }

    #[test]
    fn malformed_ones_are_ignored() {
        let zeros = "0".repeat(32);
        for text in [
            String::new(),
            "00".to_owned(),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("0-{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-1"),
            format!("00-{TRACE}-{SPAN}-01-"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("cc-{TRACE}-{SPAN}-01more"),
            format!("00-{TRACE}-{SPAN}-0x"),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{zeros}-{SPAN}-01"),
            format!("00-{TRACE}-{}-01", &zeros[..16]),
            format!("00-{TRACE}a-{}-01", &SPAN[1..]),
            format!(" 00-{TRACE}-{SPAN}-01"),
            format!("00_{TRACE}_{SPAN}_01"),
            format!("00-{}ü-{SPAN}-01", &TRACE[2..]),
        ] {
            assert_eq!(parse(&text), None, "{text}");
        }
        let text = format!("00-{TRACE}-{SPAN}-01");
        assert_eq!(TraceContext::of(&headers(&[("traceparent", &text), ("traceparent", &text)])), None);
        assert_eq!(TraceContext::of(&HeaderMap::new()), None);
    }

    #[test]
    fn a_state_is_joined_and_bounded() {
        let parent = format!("00-{TRACE}-{SPAN}-01");
        let of = |states: &[&str]| {
            let states = states.iter().map(|state| ("tracestate", *state));
            let all: Vec<_> = [("traceparent", parent.as_str())].into_iter().chain(states).collect();
            TraceContext::of(&headers(&all)).unwrap().state
        };
        assert_eq!(of(&["a=1", "b=2,c=3"]).as_deref(), Some("a=1,b=2,c=3"));
        assert_eq!(of(&[&"x".repeat(MAX_STATE)]).map(|state| state.len()), Some(MAX_STATE));
        for bad in ["", "a=\t1", &"x".repeat(MAX_STATE + 1)] {
            assert_eq!(of(&[bad]), None);
        }
        let alone = headers(&[("tracestate", "a=1")]);
        assert_eq!(TraceContext::of(&alone), None);
    }

    #[test]
    fn commands_get_it_unless_they_have_one() {
        let context =
            TraceContext { state: Some("a=1".into()), ..TraceContext::new([1; 16], [2; 8], 1, None) };
        let mut env = BTreeMap::from([("PATH".to_owned(), "/bin".to_owned())]);
        context.pass_on(&mut env);
        assert_eq!(env["TRACEPARENT"], format!("00-{}-{}-01", "01".repeat(16), "02".repeat(8)));
        assert_eq!((env["TRACESTATE"].as_str(), env.len()), ("a=1", 3));
        let own = BTreeMap::from([("TRACEPARENT".to_owned(), "mine".to_owned())]);
        let mut env = own.clone();
        context.pass_on(&mut env);
        assert_eq!(env, own);
    }

    proptest! {
        #[test]
        fn whatever_is_written_is_read(trace in any::<TraceId>(), span in any::<SpanId>(), flags in 0..=KNOWN_FLAGS) {
            prop_assume!(trace != [0; 16] && span != [0; 8]);
            let context = TraceContext::new(trace, span, flags, None);
            prop_assert_eq!(parse(&context.traceparent()), Some(context));
        }

        #[test]
        fn what_is_read_is_what_was_meant(text in "[0-9a-fA-F\\-ü]{50,60}|00-[0-9a-f]{31,33}-[0-9a-f]{15,17}-[0-9a-fx]{1,3}") {
            if let Some(context) = parse(&text) {
                prop_assert_eq!(&context.traceparent()[3..52], &text[3..52]);
                prop_assert!(text.len() == LENGTH || text.as_bytes()[LENGTH] == b'-');
            }
        }
    }
}
