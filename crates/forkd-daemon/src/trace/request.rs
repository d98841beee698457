//! The span of a request, from the gate and back. It names what was asked for. Nothing that a caller has written is in it, but a
//! request id, which is one word and no token.

use std::sync::Arc;
use std::time::Instant;

use axum::http::{HeaderMap, Method, StatusCode};

use super::{RequestTrace, Span, SpanId, SpanKind, SpanSink, TraceContext, Value};
use crate::request_id::RequestId;

/// How a method is named that is not one of HTTP's.
const OTHER_METHOD: &str = "_OTHER";

/// A request that is being answered. Dropped, it is over, with or without an answer.
pub(crate) struct ServerSpan {
    trace: RequestTrace,
    parent: Option<SpanId>,
    name: String,
    attributes: Vec<(&'static str, Value)>,
    failed: bool,
}

impl ServerSpan {
    pub fn begin(
        sink: Option<&Arc<dyn SpanSink>>,
        headers: &HeaderMap,
        (method, route): (&Method, Option<&str>),
        id: &RequestId,
        begun: Instant,
    ) -> ServerSpan {
        let caller = TraceContext::of(headers);
        let parent = caller.as_ref().map(|caller| caller.span_id);
        let (method, verb) = match *method {
            Method::GET
            | Method::HEAD
            | Method::POST
            | Method::PUT
            | Method::DELETE
            | Method::OPTIONS
            | Method::PATCH => (method.as_str(), method.as_str()),
            _ => (OTHER_METHOD, "HTTP"),
        };
        let name = route.map_or_else(|| verb.to_owned(), |route| format!("{verb} {route}"));
        let trace = RequestTrace::begin(sink, caller, &name, begun);
        let mut span = ServerSpan { trace, parent, name, attributes: Vec::new(), failed: false };
        span.add("http.request.method", method);
        span.add("forkd.request_id", id.as_str());
        if let Some(route) = route {
            span.add("http.route", route);
        }
        span
    }

    pub fn trace(&self) -> &RequestTrace {
        &self.trace
    }

    /// The answer, and the project that was found to be the caller's.
    pub fn answered(&mut self, status: StatusCode, project: Option<&str>) {
        if self.trace.recording.is_none() {
            return;
        }
        self.attributes.push(("http.response.status_code", Value::Number(status.as_u16().into())));
        if let Some(project) = project {
            self.add("forkd.project", project);
        }
        if status.is_server_error() {
            self.failed = true;
            self.add("error.type", status.as_str());
        }
    }

    fn add(&mut self, name: &'static str, value: &str) {
        if self.trace.recording.is_some() {
            self.attributes.push((name, Value::Text(value.to_owned().into())));
        }
    }
}

impl Drop for ServerSpan {
    fn drop(&mut self) {
        let Some(recording) = &self.trace.recording else { return };
        recording.sink.record(Span {
            context: recording.context.clone(),
            parent: self.parent,
            kind: SpanKind::Server,
            name: std::mem::take(&mut self.name).into(),
            begun: recording.begun_at,
            ended: recording.at(Instant::now()),
            attributes: std::mem::take(&mut self.attributes),
            failed: self.failed,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Kept;
    use super::*;

    fn recorded(kept: &Arc<Kept>, answer: Option<(StatusCode, &str)>) -> Option<Span> {
        let sink: Arc<dyn SpanSink> = kept.clone();
        let mut headers = HeaderMap::new();
        let parent = "00-11111111111111111111111111111111-2222222222222222-01";
        headers.insert("traceparent", parent.parse().unwrap());
        headers.insert("authorization", "Bearer secret".parse().unwrap());
        headers.insert("x-request-id", "build-7".parse().unwrap());
        let id = RequestId::of(&headers);
        let asked = (&Method::POST, Some("/v1/sandboxes/{id}/exec"));
        let mut span = ServerSpan::begin(Some(&sink), &headers, asked, &id, Instant::now());
        if let Some((status, project)) = answer {
            span.answered(status, Some(project));
        }
        drop(span);
        kept.spans.lock().unwrap().pop()
    }

    #[test]
    fn a_request_is_a_span_below_its_callers() {
        let span = recorded(&Arc::default(), Some((StatusCode::OK, "team"))).unwrap();
        assert_eq!((span.name.as_ref(), span.kind), ("POST /v1/sandboxes/{id}/exec", SpanKind::Server));
        assert_eq!((span.parent, span.context.trace_id), (Some([0x22; 8]), [0x11; 16]));
        assert!(span.begun <= span.ended && !span.failed);
        let text = |text: &'static str| Value::Text(text.into());
        assert_eq!(
            span.attributes,
            [
                ("http.request.method", text("POST")),
                ("forkd.request_id", text("build-7")),
                ("http.route", text("/v1/sandboxes/{id}/exec")),
                ("http.response.status_code", Value::Number(200)),
                ("forkd.project", text("team")),
            ]
        );
    }

    #[test]
    fn failures_are_marked_and_those_who_leave_are_recorded_too() {
        let failed = recorded(&Arc::default(), Some((StatusCode::BAD_GATEWAY, "team"))).unwrap();
        assert!(failed.failed && failed.attributes.contains(&("error.type", Value::Text("502".into()))));
        let refused = recorded(&Arc::default(), Some((StatusCode::NOT_FOUND, "team"))).unwrap();
        assert!(!refused.failed);
        assert_eq!(recorded(&Arc::default(), None).unwrap().attributes.len(), 3);
        assert_eq!(recorded(&Arc::new(Kept { drops: true, ..Kept::default() }), None), None);
    }

    #[test]
    fn methods_that_callers_invent_are_not_names() {
        let kept = Arc::new(Kept::default());
        let sink: Arc<dyn SpanSink> = kept.clone();
        let (method, id) = (Method::from_bytes(b"SECRET").unwrap(), RequestId::of(&HeaderMap::new()));
        drop(ServerSpan::begin(Some(&sink), &HeaderMap::new(), (&method, None), &id, Instant::now()));
        let span = kept.spans.lock().unwrap().pop().unwrap();
        assert_eq!((span.name.as_ref(), span.parent), ("HTTP", None));
        assert_eq!(span.attributes[0], ("http.request.method", Value::Text("_OTHER".into())));
    }
}
