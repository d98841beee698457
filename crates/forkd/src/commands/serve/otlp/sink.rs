//! Spans as the daemon has them, and as the collector gets them.

use forkd_daemon::trace::{self, Counter, SpanSink, TraceContext};
use opentelemetry::trace::{
    SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{Context, InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{
    IdGenerator, RandomIdGenerator, SamplingDecision, ShouldSample, SpanData, SpanEvents, SpanLinks,
};
use tokio::sync::mpsc;

/// Has spans sent that are to be recorded.
#[derive(Debug)]
pub struct Sink {
    sampler: Box<dyn ShouldSample>,
    ids: RandomIdGenerator,
    scope: InstrumentationScope,
    queue: mpsc::Sender<SpanData>,
    lost: Counter,
}

impl Sink {
    pub fn new(sampler: Box<dyn ShouldSample>, queue: mpsc::Sender<SpanData>, lost: Counter) -> Sink {
        let scope = InstrumentationScope::builder(env!("CARGO_PKG_NAME"))
            .with_version(env!("CARGO_PKG_VERSION"))
            .build();
        Sink { sampler, ids: RandomIdGenerator::default(), scope, queue, lost }
    }
}

impl SpanSink for Sink {
    fn begin(&self, caller: Option<&TraceContext>, name: &str) -> TraceContext {
        let parent = caller.map(|caller| Context::new().with_remote_span_context(convert(caller, true)));
        let trace_id =
            caller.map_or_else(|| self.ids.new_trace_id(), |caller| TraceId::from_bytes(caller.trace_id));
        let sampled =
            self.sampler.should_sample(parent.as_ref(), trace_id, name, &SpanKind::Server, &[], &[]);
        let sampled = sampled.decision == SamplingDecision::RecordAndSample;
        let flags = TraceFlags::new(caller.map_or(0, TraceContext::flags)).with_sampled(sampled);
        let state = caller.and_then(|caller| caller.state.clone());
        TraceContext::new(trace_id.to_bytes(), self.new_span_id(), flags.to_u8(), state)
    }

    fn new_span_id(&self) -> trace::SpanId {
        self.ids.new_span_id().to_bytes()
    }

    fn record(&self, span: trace::Span) {
        let data = SpanData {
            span_context: convert(&span.context, false),
            parent_span_id: span.parent.map_or(SpanId::INVALID, SpanId::from_bytes),
            parent_span_is_remote: span.parent.is_some() && span.kind == trace::SpanKind::Server,
            span_kind: match span.kind {
                trace::SpanKind::Server => SpanKind::Server,
                trace::SpanKind::Internal => SpanKind::Internal,
            },
            name: span.name,
            start_time: span.begun,
            end_time: span.ended,
            attributes: span.attributes.into_iter().map(attribute).collect(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: if span.failed { Status::error("") } else { Status::Unset },
            instrumentation_scope: self.scope.clone(),
        };
        // A collector that is slow costs spans, and never a request's time.
        if self.queue.try_send(data).is_err() {
            self.lost.inc();
        }
    }

    fn lost(&self) -> Counter {
        self.lost.clone()
    }
}

fn attribute((name, value): (&'static str, trace::Value)) -> KeyValue {
    match value {
        trace::Value::Text(text) => KeyValue::new(name, text),
        trace::Value::Number(number) => KeyValue::new(name, number),
    }
}

fn convert(context: &TraceContext, is_remote: bool) -> SpanContext {
    // One that others do not understand is passed on, and not sent.
    let state = context.state.as_deref().and_then(|state| state.parse().ok());
    SpanContext::new(
        TraceId::from_bytes(context.trace_id),
        SpanId::from_bytes(context.span_id),
        TraceFlags::new(context.flags()),
        is_remote,
        state.unwrap_or(TraceState::NONE),
    )
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use opentelemetry_sdk::trace::Sampler;

    use super::*;

    fn sink(sampler: Sampler, room: usize) -> (Sink, mpsc::Receiver<SpanData>) {
        let (queue, spans) = mpsc::channel(room);
        (Sink::new(Box::new(sampler), queue, Counter::default()), spans)
    }

    fn span(context: TraceContext) -> trace::Span {
        trace::Span {
            context,
            parent: Some([3; 8]),
            kind: trace::SpanKind::Server,
            name: "GET /healthz".into(),
            begun: SystemTime::UNIX_EPOCH,
            ended: SystemTime::UNIX_EPOCH + Duration::from_nanos(7),
            attributes: vec![("http.response.status_code", trace::Value::Number(503))],
            failed: true,
        }
    }

    #[test]
    fn the_callers_decision_counts_and_its_trace_is_continued() {
        let (sink, _spans) = sink(Sampler::ParentBased(Box::new(Sampler::AlwaysOn)), 1);
        let own = sink.begin(None, "GET");
        assert!(own.is_sampled());
        assert_ne!(sink.begin(None, "GET").trace_id, own.trace_id);
        for flags in [0, 1, 2, 3] {
            let caller = TraceContext::new([1; 16], [2; 8], flags, Some("a=1".into()));
            let below = sink.begin(Some(&caller), "GET");
            assert_eq!((below.trace_id, below.flags(), below.state), ([1; 16], flags, Some("a=1".into())));
            assert_ne!(below.span_id, [2; 8]);
        }
        let (never, _spans) = self::sink(Sampler::AlwaysOff, 1);
        assert!(!never.begin(Some(&TraceContext::new([1; 16], [2; 8], 1, None)), "GET").is_sampled());
    }

    #[test]
    fn spans_keep_their_place_and_times() {
        let (sink, mut spans) = sink(Sampler::AlwaysOn, 1);
        let context = TraceContext::new([1; 16], [2; 8], 1, Some("not a state".into()));
        sink.record(span(context));
        let sent = spans.try_recv().unwrap();
        assert_eq!(sent.span_context.trace_id().to_bytes(), [1; 16]);
        assert_eq!(
            (sent.span_context.span_id().to_bytes(), sent.parent_span_id.to_bytes()),
            ([2; 8], [3; 8])
        );
        assert!(sent.parent_span_is_remote && sent.span_context.is_sampled());
        assert_eq!(sent.end_time.duration_since(sent.start_time).unwrap(), Duration::from_nanos(7));
        assert_eq!(sent.attributes, [KeyValue::new("http.response.status_code", 503)]);
        assert!(matches!(sent.status, Status::Error { .. }));
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let (sink, _spans) = sink(Sampler::AlwaysOn, 2);
        for _ in 0..5 {
            sink.record(span(TraceContext::new([1; 16], [2; 8], 1, None)));
        }
        assert_eq!(sink.lost().get(), 3);
    }
}
