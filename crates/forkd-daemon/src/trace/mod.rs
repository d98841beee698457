//! Traces: one span for each request, spans for the steps of what it makes, and the trace's place for the commands that it runs.
//!
//! ```text
//! traceparent ──▶ gate ──▶ handler ────────────────────────▶ engine
//!                  │        │ RequestTrace::current()
//!                  │        ├─ exec, eval: TRACEPARENT in the environment
//!                  │        └─ sandboxes, branches, snapshots: their laps become spans (steps.rs)
//!                  │ ServerSpan (request.rs)    │
//!                  └────────────────────────────┴──▶ SpanSink: keeps or drops, never waits
//! ```
//!
//! The daemon does not know where spans go. Without a sink, it passes the caller's context on and records nothing.

mod context;
mod request;
mod steps;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use axum::http::HeaderMap;
pub use prometheus_client::metrics::counter::Counter;

pub use context::{SpanId, TraceContext, TraceId};
pub(crate) use request::ServerSpan;
pub(crate) use steps::Phases;

/// Takes spans. None of its methods waits.
pub trait SpanSink: fmt::Debug + Send + Sync {
    /// The place of a request's span: below its caller's, or at the beginning of a trace. It says whether the request is recorded.
    fn begin(&self, caller: Option<&TraceContext>, name: &str) -> TraceContext;

    /// The id of a span below one that is recorded.
    fn new_span_id(&self) -> SpanId;

    /// Takes a span that is over.
    fn record(&self, span: Span);

    /// How many spans were lost since the start, for the metrics.
    fn lost(&self) -> Counter;
}

/// A span that is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    pub context: TraceContext,
    /// Nothing at the beginning of a trace.
    pub parent: Option<SpanId>,
    pub kind: SpanKind,
    pub name: Cow<'static, str>,
    pub begun: SystemTime,
    pub ended: SystemTime,
    pub attributes: Vec<(&'static str, Value)>,
    pub failed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanKind {
    /// A request. Its parent is the caller's.
    Server,
    /// What was done for one.
    Internal,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    Text(Cow<'static, str>),
    Number(i64),
}

tokio::task_local! {
    static CURRENT: RequestTrace;
}

/// The trace of the request that is being answered.
#[derive(Debug, Clone, Default)]
pub struct RequestTrace {
    /// What is passed on: the request's own span, or its caller's if there is no sink.
    context: Option<TraceContext>,
    recording: Option<Recording>,
}

/// Where its spans go, and what its clock showed when it began. All of its times are counted from there, so that they fit together
/// when the host's clock is set meanwhile.
#[derive(Debug, Clone)]
struct Recording {
    sink: Arc<dyn SpanSink>,
    context: TraceContext,
    begun: Instant,
    begun_at: SystemTime,
}

impl RequestTrace {
    fn begin(
        sink: Option<&Arc<dyn SpanSink>>,
        caller: Option<TraceContext>,
        name: &str,
        begun: Instant,
    ) -> RequestTrace {
        let Some(sink) = sink else { return RequestTrace { context: caller, recording: None } };
        let context = sink.begin(caller.as_ref(), name);
        let recording = context.is_sampled().then(|| Recording {
            sink: Arc::clone(sink),
            context: context.clone(),
            begun,
            begun_at: SystemTime::now().checked_sub(begun.elapsed()).unwrap_or(SystemTime::UNIX_EPOCH),
        });
        RequestTrace { context: Some(context), recording }
    }

    /// That of the request which this task answers. A new task has none, unless it is started in its [`scope`](RequestTrace::scope).
    pub fn current() -> RequestTrace {
        CURRENT.try_with(Clone::clone).unwrap_or_default()
    }

    /// Does something for the request.
    pub async fn scope<T>(self, work: impl Future<Output = T>) -> T {
        CURRENT.scope(self, work).await
    }

    /// Tells a command which trace it belongs to, unless the caller did.
    pub fn pass_on(&self, env: &mut std::collections::BTreeMap<String, String>) {
        if let Some(context) = &self.context {
            context.pass_on(env);
        }
    }

    /// Names the request's own span where the caller's was, for the guest that the request is forwarded to.
    pub(crate) fn replace_in(&self, headers: &mut HeaderMap) {
        let own = self.context.as_ref().and_then(|context| context.traceparent().parse().ok());
        if let (Some(own), true) = (own, TraceContext::of(headers).is_some()) {
            headers.insert(context::TRACEPARENT, own);
        }
    }
}

impl Recording {
    fn at(&self, moment: Instant) -> SystemTime {
        self.begun_at + moment.saturating_duration_since(self.begun)
    }

    /// Records something that was done, and returns its id.
    fn record(
        &self,
        parent: SpanId,
        name: impl Into<Cow<'static, str>>,
        (begun, ended): (Instant, Instant),
        attributes: Vec<(&'static str, Value)>,
    ) -> SpanId {
        let span_id = self.sink.new_span_id();
        self.sink.record(Span {
            context: self.context.with_span(span_id),
            parent: Some(parent),
            kind: SpanKind::Internal,
            name: name.into(),
            begun: self.at(begun),
            ended: self.at(ended),
            attributes,
            failed: false,
        });
        span_id
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// Keeps every span of a trace that it is told to record.
    #[derive(Debug, Default)]
    pub struct Kept {
        pub spans: Mutex<Vec<Span>>,
        pub ids: AtomicU64,
        pub drops: bool,
    }

    impl SpanSink for Kept {
        fn begin(&self, caller: Option<&TraceContext>, _: &str) -> TraceContext {
            let trace_id = caller.map_or([7; 16], |caller| caller.trace_id);
            let state = caller.and_then(|caller| caller.state.clone());
            TraceContext::new(trace_id, self.new_span_id(), u8::from(!self.drops), state)
        }

        fn new_span_id(&self) -> SpanId {
            (self.ids.fetch_add(1, Ordering::Relaxed) + 1).to_be_bytes()
        }

        fn record(&self, span: Span) {
            self.spans.lock().unwrap().push(span);
        }

        fn lost(&self) -> Counter {
            Counter::default()
        }
    }

    fn environment(trace: &RequestTrace) -> BTreeMap<String, String> {
        let mut env = BTreeMap::new();
        trace.pass_on(&mut env);
        env
    }

    #[tokio::test]
    async fn commands_are_told_the_callers_context_or_the_requests_own() {
        let caller = TraceContext::new([1; 16], [2; 8], 1, Some("a=1".into()));
        let begun = Instant::now();
        let without = RequestTrace::begin(None, Some(caller.clone()), "", begun);
        assert_eq!(environment(&without)["TRACEPARENT"], caller.traceparent());
        assert!(environment(&RequestTrace::begin(None, None, "", begun)).is_empty());

        let sink: Arc<dyn SpanSink> = Arc::new(Kept::default());
        let with = RequestTrace::begin(Some(&sink), Some(caller), "", begun);
        let env = with.scope(async { environment(&RequestTrace::current()) }).await;
        assert_eq!(env["TRACEPARENT"], format!("00-{}-0000000000000001-01", "01".repeat(16)));
        assert_eq!(env["TRACESTATE"], "a=1");
        assert!(environment(&RequestTrace::current()).is_empty());
    }

    #[test]
    fn only_a_good_context_of_the_callers_is_replaced() {
        let sink: Arc<dyn SpanSink> = Arc::new(Kept::default());
        let trace = RequestTrace::begin(Some(&sink), None, "", Instant::now());
        let replaced = |given: Option<&str>| {
            let mut headers = HeaderMap::new();
            if let Some(given) = given {
                headers.insert(context::TRACEPARENT, given.parse().unwrap());
            }
            trace.replace_in(&mut headers);
            headers.get(context::TRACEPARENT).map(|value| value.to_str().unwrap().to_owned())
        };
        let own = trace.context.as_ref().unwrap().traceparent();
        assert_eq!(replaced(Some("00-11111111111111111111111111111111-1111111111111111-00")), Some(own));
        assert_eq!(replaced(Some("nonsense")).as_deref(), Some("nonsense"));
        assert_eq!(replaced(None), None);
    }
}
