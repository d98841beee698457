//! Spans of requests, as a collector gets them, and `traceparent` on its way from a caller to a command.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use forkd_api::exec::Executed;
use forkd_api::sandbox::{CreatedSandboxes, Sandbox};
use forkd_api::snapshot::Snapshot;
use forkd_tests::engine::process::Failure;
use forkd_tests::engine::tiny::PATIENCE;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as AnyValue;
use opentelemetry_proto::tonic::common::v1::{AnyValue as Any, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use prost::Message;
use rustix::process::Signal;
use serde_json::json;

use crate::world::World;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";
const SECRET: &str = "hunter2";
/// How long a request would take that waited for a collector which does not answer.
const COLLECTORS_TIME: &str = "60000";
const WITHOUT_WAITING: Duration = Duration::from_secs(30);

/// The head and the body of a request.
type Taken = (String, Vec<u8>);

/// Takes what is sent to it.
struct Collector {
    address: String,
    requests: Arc<Mutex<Vec<Taken>>>,
}

impl Collector {
    fn start() -> Result<Collector, Failure> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = format!("http://{}", listener.local_addr()?);
        let requests: Arc<Mutex<Vec<_>>> = Arc::default();
        let taken = Arc::clone(&requests);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if let Ok(request) = take(client) {
                    taken.lock().expect("no panic").push(request);
                }
            }
        });
        Ok(Collector { address, requests })
    }

    /// The spans that have arrived so far, each with the attributes of whoever sent it.
    fn spans(&self) -> Vec<(Span, BTreeMap<String, String>)> {
        let mut spans = Vec::new();
        for (_, body) in self.requests.lock().expect("no panic").iter() {
            let sent = ExportTraceServiceRequest::decode(&body[..]).expect("a batch of spans");
            for from in sent.resource_spans {
                let resource = attributes(&from.resource.expect("somebody sends them").attributes);
                let all = from.scope_spans.into_iter().flat_map(|scope| scope.spans);
                spans.extend(all.map(|span| (span, resource.clone())));
            }
        }
        spans
    }

    /// Waits for the span of a request in the caller's trace.
    fn request(&self, world: &World, name: &str) -> Result<Span, Failure> {
        let find = || {
            self.spans()
                .into_iter()
                .map(|(span, _)| span)
                .find(|span| span.name == name && hex(&span.trace_id) == TRACE)
        };
        world.until(name, |_| Ok(find().is_some()))?;
        Ok(find().ok_or("it was there")?)
    }

    fn below(&self, parent: &Span) -> Vec<Span> {
        let mut below: Vec<_> = self
            .spans()
            .into_iter()
            .map(|(span, _)| span)
            .filter(|span| span.parent_span_id == parent.span_id)
            .collect();
        below.sort_by_key(|span| (span.start_time_unix_nano, span.end_time_unix_nano));
        below
    }
}

fn take(client: TcpStream) -> std::io::Result<Taken> {
    let mut reader = BufReader::new(client);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line == "\r\n" {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
        head.push_str(&line);
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")?;
    Ok((head, body))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn attributes(all: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |value: &Option<Any>| match value.as_ref().and_then(|any| any.value.as_ref()) {
        Some(AnyValue::StringValue(text)) => text.clone(),
        Some(AnyValue::IntValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    };
    all.iter().map(|one| (one.key.clone(), text(&one.value))).collect()
}

fn names(spans: &[Span]) -> Vec<&str> {
    spans.iter().map(|span| span.name.as_str()).collect()
}

fn is_within(inner: &Span, outer: &Span) -> bool {
    outer.start_time_unix_nano <= inner.start_time_unix_nano
        && inner.end_time_unix_nano <= outer.end_time_unix_nano
}

fn traceparent() -> String {
    format!("traceparent: 00-{TRACE}-{PARENT}-01\r\n")
}

fn sending_to(address: &str) -> [(&str, &str); 5] {
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", address),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-key=for-the-collector"),
        ("OTEL_RESOURCE_ATTRIBUTES", "host.name=here"),
        ("OTEL_BSP_SCHEDULE_DELAY", "10"),
        ("NO_PROXY", "127.0.0.1"),
    ]
}

#[test]
fn spans_arrive_in_the_callers_trace_with_all_steps_and_no_secret() -> Result<(), Failure> {
    let (mut world, _agents) = World::with_agents(&[])?;
    world.end(Signal::TERM)?;
    let collector = Collector::start()?;
    world.start_with(&[], &sending_to(&collector.address))?;

    let body = json!({
        "snapshot_tag": "base", "n": 2, "env": { "KEY": SECRET }, "metadata": { "note": SECRET },
    });
    let headers = format!("{}x-request-id: build-7\r\nx-secret: {SECRET}\r\n", traceparent());
    let created: CreatedSandboxes = world.tell_with(&headers, "POST /v1/sandboxes", body)?.parsed(201)?;
    let id = &created.sandboxes.first().ok_or("none")?.id;
    let exec = json!({ "args": ["ok", SECRET], "env": { "KEY": SECRET } });
    world
        .tell_with(&traceparent(), &format!("POST /v1/sandboxes/{id}/exec"), exec)?
        .parsed::<Executed>(200)?;
    let branch = format!("POST /v1/sandboxes/{id}/branch");
    world.tell_with(&traceparent(), &branch, json!({ "tag": SECRET }))?.parsed::<Snapshot>(201)?;
    let copies = json!({ "from_sandbox": id, "n": 1 });
    let copied = format!("traceparent: 00-{TRACE}-1111111111111111-01\r\n");
    world.tell_with(&copied, "POST /v1/sandboxes", copies)?.parsed::<CreatedSandboxes>(201)?;
    world.tell_with(&traceparent(), "POST /v1/nothing", json!({}))?;
    for name in ["POST /v1/sandboxes/{id}/exec", "POST /v1/sandboxes/{id}/branch", "POST"] {
        collector.request(&world, name)?;
    }
    let of_copies = || {
        let spans = collector.spans().into_iter().map(|(span, _)| span);
        spans.filter(|span| hex(&span.parent_span_id) == "1".repeat(16)).collect::<Vec<_>>()
    };
    world.until("the last one", |_| Ok(!of_copies().is_empty()))?;
    // What is left is sent at the end.
    world.end(Signal::TERM)?;

    let request = collector
        .spans()
        .into_iter()
        .find(|(span, _)| span.name == "POST /v1/sandboxes" && hex(&span.parent_span_id) == PARENT);
    let (request, resource) = request.ok_or("the request has no span")?;
    assert_eq!((hex(&request.trace_id), request.kind()), (TRACE.to_owned(), SpanKind::Server));
    assert_eq!((resource["service.name"].as_str(), resource["host.name"].as_str()), ("forkd", "here"));
    let known = attributes(&request.attributes);
    for (name, value) in [
        ("http.request.method", "POST"),
        ("http.route", "/v1/sandboxes"),
        ("http.response.status_code", "201"),
        ("forkd.request_id", "build-7"),
        ("forkd.project", "default"),
    ] {
        assert_eq!(known.get(name).map(String::as_str), Some(value), "{known:?}");
    }
    let sandboxes = collector.below(&request);
    assert_eq!(names(&sandboxes), ["sandbox", "sandbox"]);
    let made: Vec<_> = created.sandboxes.iter().map(|sandbox| sandbox.id.clone()).collect();
    for sandbox in &sandboxes {
        check_sandbox(&collector, sandbox, &created)?;
        assert!(is_within(sandbox, &request));
        assert!(made.contains(&attributes(&sandbox.attributes)["forkd.sandbox_id"]));
    }

    let branch = collector.request(&world, "POST /v1/sandboxes/{id}/branch")?;
    let [branch] = &collector.below(&branch)[..] else { return Err("no steps of a branch".into()) };
    check_branch(&collector, branch);
    let [copies] = &of_copies()[..] else { return Err("no span of copies".into()) };
    let [branch, sandbox] = &collector.below(copies)[..] else { return Err("no steps of copies".into()) };
    check_branch(&collector, branch);
    check_sandbox(&collector, sandbox, &created)?;

    for (head, body) in collector.requests.lock().expect("no panic").iter() {
        assert!(head.starts_with("POST /v1/traces "), "{head}");
        assert!(head.to_ascii_lowercase().contains("x-key: for-the-collector"), "{head}");
        let has = |text: &str| body.windows(text.len()).any(|window| window == text.as_bytes());
        assert!(!has(SECRET), "a secret was sent");
        assert!(!has("nothing"), "a path was sent");
    }
    assert!(!world.log().contains("spans were not sent"), "{}", world.log());
    Ok(())
}

/// All steps of a sandbox, each of which begins where the one before has ended.
fn check_sandbox(collector: &Collector, sandbox: &Span, created: &CreatedSandboxes) -> Result<(), Failure> {
    let steps = collector.below(sandbox);
    let identity = steps.iter().find(|step| step.name == "identity").ok_or("no identity")?;
    let inside = collector.below(identity);
    assert_eq!(names(&inside), ["identity.clock", "identity.hooks"]);
    assert!(inside.iter().all(|step| is_within(step, identity)));

    let told = created.timing.steps.iter().map(|step| step.step.as_str());
    let told: Vec<_> = told.filter(|step| !step.starts_with("identity.")).collect();
    assert_eq!(names(&steps), told, "those of the answer");
    let (first, last) = (steps.first().ok_or("none")?, steps.last().ok_or("none")?);
    assert_eq!(first.start_time_unix_nano, sandbox.start_time_unix_nano);
    assert_eq!(last.end_time_unix_nano, sandbox.end_time_unix_nano);
    for two in steps.windows(2) {
        let (end, next) = (two[0].end_time_unix_nano, two[1].start_time_unix_nano);
        // The agent's answer is read between the two.
        let gap = if two[0].name == "identity" { next >= end } else { next == end };
        assert!(gap, "{} ended at {end}, {} began at {next}", two[0].name, two[1].name);
    }
    Ok(())
}

fn check_branch(collector: &Collector, branch: &Span) {
    let steps = collector.below(branch);
    let all = ["turn", "admit", "files", "page_table", "fork", "running", "seal", "promise"];
    assert_eq!((branch.name.as_str(), names(&steps)), ("branch", all.into()));
    assert!(attributes(&branch.attributes)["forkd.pause_us"].parse::<u64>().is_ok());
    for two in steps.windows(2) {
        assert_eq!(two[0].end_time_unix_nano, two[1].start_time_unix_nano);
    }
}

#[test]
fn a_command_is_told_its_place_in_the_trace() -> Result<(), Failure> {
    let mut world = World::new()?;
    let (id, _agent) = world.real()?;
    let run = |world: &World, headers: &str, env: serde_json::Value| -> Result<String, Failure> {
        let exec = json!({ "args": ["sh", "-c", "echo $TRACEPARENT $TRACESTATE"], "env": env });
        let ran = world.tell_with(headers, &format!("POST /v1/sandboxes/{id}/exec"), exec)?;
        Ok(ran.parsed::<Executed>(200)?.stdout.trim().to_owned())
    };
    let given = format!("00-{TRACE}-{PARENT}-01");
    let with_state = format!("{}tracestate: a=1\r\n", traceparent());
    assert_eq!(run(&world, &with_state, json!({}))?, format!("{given} a=1"));
    assert_eq!(run(&world, &traceparent(), json!({ "TRACEPARENT": "mine" }))?, "mine");
    assert_eq!(run(&world, "", json!({}))?, "");
    assert_eq!(run(&world, &traceparent().replace(TRACE, "nonsense"), json!({}))?, "");

    world.end(Signal::TERM)?;
    let collector = Collector::start()?;
    world.start_with(&[], &sending_to(&collector.address))?;
    let told = run(&world, &with_state, json!({}))?;
    let request = collector.request(&world, "POST /v1/sandboxes/{id}/exec")?;
    assert_eq!(told, format!("00-{TRACE}-{}-01 a=1", hex(&request.span_id)));
    assert_eq!((hex(&request.parent_span_id), request.trace_state.as_str()), (PARENT.to_owned(), "a=1"));
    let alone = run(&world, "", json!({}))?;
    assert!(alone.ends_with("-01") && !alone.contains(TRACE), "{alone}");
    let unrecorded = traceparent().replace("-01\r", "-00\r");
    let told = run(&world, &unrecorded, json!({}))?;
    assert!(told.starts_with(&format!("00-{TRACE}-")) && told.ends_with("-00"), "{told}");
    Ok(())
}

#[test]
fn a_collector_that_never_answers_delays_nothing() -> Result<(), Failure> {
    let mut world = World::new()?;
    world.end(Signal::TERM)?;
    // Connections are accepted by the kernel, and nobody reads.
    let silent = TcpListener::bind("127.0.0.1:0")?;
    let address = format!("http://{}", silent.local_addr()?);
    let mut variables = sending_to(&address).to_vec();
    variables.push(("OTEL_EXPORTER_OTLP_TIMEOUT", COLLECTORS_TIME));
    variables.push(("OTEL_BSP_MAX_QUEUE_SIZE", "20"));
    world.start_with(&[], &variables)?;

    let begun = Instant::now();
    let sandboxes: Vec<Sandbox> = world.fork("base", 3)?;
    world.until("spans are lost, and counted", |world| {
        world.sandbox(&sandboxes.first().ok_or("none")?.id)?;
        let metrics = world.ask("GET /metrics")?.body;
        let lost = metrics.lines().find_map(|line| line.strip_prefix("forkd_spans_lost_total "));
        Ok(lost.ok_or("no metric")?.parse::<u64>()? > 0)
    })?;
    assert!(begun.elapsed() < WITHOUT_WAITING, "requests waited for the collector");
    let begun = Instant::now();
    world.end(Signal::TERM)?;
    assert!(begun.elapsed() < WITHOUT_WAITING.min(PATIENCE), "the daemon waited for the collector");
    assert!(world.log().contains("did not take the last spans in time"), "{}", world.log());
    drop(silent);
    Ok(())
}
