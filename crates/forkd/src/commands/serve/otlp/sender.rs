//! The task that sends spans in batches. Only this task waits for the collector, and the daemon's shutdown for a few
//! seconds.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forkd_daemon::trace::Counter;
use opentelemetry::KeyValue;
use opentelemetry_otlp::{SpanExporter, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::resource::{
    EnvResourceDetector, SdkProvidedResourceDetector, TelemetryResourceDetector,
};
use opentelemetry_sdk::trace::{Config, SpanData, SpanExporter as _};
use tokio::sync::{mpsc, oneshot};

use super::client::Client;
use super::sink::Sink;
use super::{Sending, Variables, first};

/// What a collector gets at the end of the daemon.
const FINISH: Duration = Duration::from_secs(3);
/// How often it is said that spans are lost.
const COMPLAIN: Duration = Duration::from_secs(60);
/// Spans that are sent at once.
const BATCH: usize = 512;
/// Spans that wait, if nothing else is said: those of a thousand sandboxes, which are made at once. 16 MiB.
const QUEUE: u64 = 1 << 15;
const MAX_QUEUE: u64 = 1 << 20;
const DELAY: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_secs(300);

pub fn start(variables: Variables<'_>) -> Result<Sending, Box<dyn Error + Send + Sync>> {
    let limit = milliseconds(
        &["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"],
        TIMEOUT,
        variables,
    );
    let delay = milliseconds(&["OTEL_BSP_SCHEDULE_DELAY"], DELAY, variables);
    let room = number(&["OTEL_BSP_MAX_QUEUE_SIZE"], variables).unwrap_or(QUEUE).clamp(1, MAX_QUEUE);
    let mut exporter = SpanExporter::builder().with_http().with_http_client(Client::new(limit)?).build()?;
    exporter.set_resource(&resource(variables));

    let (queue, spans) = mpsc::channel(usize::try_from(room)?);
    let (stop, stopping) = oneshot::channel();
    let lost = Counter::default();
    let sink = Arc::new(Sink::new(Config::default().sampler, queue, lost.clone()));
    let sender = Sender { spans, delay, lost, complaints: Complaints::default() };
    let task = tokio::spawn(sender.run(stopping, async move |batch| exporter.export(batch).await));
    let finish = Box::pin(async move {
        let _ = stop.send(());
        if tokio::time::timeout(FINISH, task).await.is_err() {
            tracing::warn!("the collector did not take the last spans in time");
        }
    });
    Ok(Sending { sink, finish })
}

fn number(names: &[&str], variables: Variables<'_>) -> Option<u64> {
    first(names, variables)?.trim().parse().ok()
}

fn milliseconds(names: &[&str], usual: Duration, variables: Variables<'_>) -> Duration {
    number(names, variables).map_or(usual, Duration::from_millis).min(LONGEST)
}

/// Who sends: forkd, unless the environment has another name for it.
fn resource(variables: Variables<'_>) -> Resource {
    let usual = [("service.name", env!("CARGO_PKG_NAME")), ("service.version", env!("CARGO_PKG_VERSION"))];
    let resource = Resource::builder_empty()
        .with_attributes(usual.map(|(name, value)| KeyValue::new(name, value)))
        .with_detector(Box::new(TelemetryResourceDetector))
        .with_detector(Box::new(EnvResourceDetector::new()));
    match variables("OTEL_SERVICE_NAME") {
        Some(_) => resource.with_detector(Box::new(SdkProvidedResourceDetector)).build(),
        None => resource.build(),
    }
}

struct Sender {
    spans: mpsc::Receiver<SpanData>,
    /// How long the first of a batch waits for others.
    delay: Duration,
    lost: Counter,
    complaints: Complaints,
}

impl Sender {
    /// Sends until it is to stop, and then the rest.
    async fn run(
        mut self,
        mut stopping: oneshot::Receiver<()>,
        export: impl AsyncFn(Vec<SpanData>) -> OTelSdkResult,
    ) {
        loop {
            let mut batch = Vec::new();
            tokio::select! {
                () = gather(&mut self.spans, &mut batch, self.delay) => self.send(batch, &export).await,
                // Also when its handle was dropped.
                _ = &mut stopping => {
                    self.send(batch, &export).await;
                    break;
                }
            }
        }
        self.spans.close();
        loop {
            let mut batch = Vec::new();
            if self.spans.recv_many(&mut batch, BATCH).await == 0 {
                return;
            }
            self.send(batch, &export).await;
        }
    }

    async fn send(&mut self, batch: Vec<SpanData>, export: &impl AsyncFn(Vec<SpanData>) -> OTelSdkResult) {
        let count = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        let mut error = None;
        if count > 0 {
            error = export(batch).await.err();
        }
        if error.is_some() {
            self.lost.inc_by(count);
        }
        if let Some(lost) = self.complaints.due(self.lost.get(), Instant::now()) {
            let reason = error.map_or_else(|| "too many waited".to_owned(), |error| error.to_string());
            tracing::warn!(lost, reason, "spans were not sent");
        }
    }
}

/// A batch: full, or as old as it may get. What was gathered stays in it when this is given up.
async fn gather(spans: &mut mpsc::Receiver<SpanData>, batch: &mut Vec<SpanData>, delay: Duration) {
    if spans.recv_many(batch, BATCH).await == 0 {
        return std::future::pending().await;
    }
    let filled =
        async { while batch.len() < BATCH && spans.recv_many(batch, BATCH - batch.len()).await > 0 {} };
    let _ = tokio::time::timeout(delay, filled).await;
}

/// What was said about lost spans, and when.
#[derive(Debug, Default)]
struct Complaints {
    told: u64,
    last: Option<Instant>,
}

impl Complaints {
    /// How many were lost of which nothing was said, if it is time to say so.
    fn due(&mut self, lost: u64, now: Instant) -> Option<u64> {
        let early = self.last.is_some_and(|last| now.duration_since(last) < COMPLAIN);
        if early || lost == self.told {
            return None;
        }
        self.last = Some(now);
        Some(lost - std::mem::replace(&mut self.told, lost))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use forkd_daemon::trace::{Span, SpanKind, SpanSink, TraceContext};
    use opentelemetry_sdk::error::OTelSdkError;
    use opentelemetry_sdk::trace::Sampler;

    use super::*;

    struct Bench {
        sink: Sink,
        stop: oneshot::Sender<()>,
        sender: Sender,
        stopping: oneshot::Receiver<()>,
    }

    fn bench(room: usize, delay: Duration) -> Bench {
        let (queue, spans) = mpsc::channel(room);
        let (stop, stopping) = oneshot::channel();
        let lost = Counter::default();
        let sink = Sink::new(Box::new(Sampler::AlwaysOn), queue, lost.clone());
        Bench {
            sink,
            stop,
            sender: Sender { spans, delay, lost, complaints: Complaints::default() },
            stopping,
        }
    }

    fn record(sink: &Sink, count: usize) {
        let now = std::time::SystemTime::now();
        for _ in 0..count {
            sink.record(Span {
                context: TraceContext::new([1; 16], sink.new_span_id(), 1, None),
                parent: None,
                kind: SpanKind::Internal,
                name: "step".into(),
                begun: now,
                ended: now,
                attributes: Vec::new(),
                failed: false,
            });
        }
    }

    #[tokio::test(start_paused = true)]
    async fn batches_are_full_or_old_and_the_end_sends_the_rest() {
        let Bench { sink, stop, sender, stopping } = bench(5 * BATCH, DELAY);
        let sizes = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&sizes);
        let task = tokio::spawn(sender.run(stopping, async move |batch: Vec<SpanData>| {
            seen.lock().unwrap().push(batch.len());
            Ok(())
        }));
        record(&sink, BATCH + 3);
        tokio::time::sleep(DELAY / 2).await;
        assert_eq!(*sizes.lock().unwrap(), [BATCH]);
        tokio::time::sleep(DELAY).await;
        assert_eq!(*sizes.lock().unwrap(), [BATCH, 3]);
        record(&sink, 2 * BATCH + 1);
        stop.send(()).unwrap();
        task.await.unwrap();
        assert_eq!(sizes.lock().unwrap()[2..].iter().sum::<usize>(), 2 * BATCH + 1);
        assert_eq!(sink.lost().get(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_collector_refuses_or_leaves_is_lost_and_counted() {
        let Bench { sink, stop, sender, stopping } = bench(4, Duration::ZERO);
        let refuse = async |_| Err(OTelSdkError::InternalFailure("status code: 400".into()));
        let task = tokio::spawn(sender.run(stopping, refuse));
        record(&sink, 7);
        assert_eq!(sink.lost().get(), 3);
        stop.send(()).unwrap();
        task.await.unwrap();
        assert_eq!(sink.lost().get(), 7);
    }

    #[test]
    fn a_full_queue_has_16_mib() {
        assert!(QUEUE * u64::try_from(size_of::<SpanData>()).unwrap() <= 16 << 20);
    }

    #[test]
    fn losses_are_told_once_in_a_while() {
        let (mut complaints, begun) = (Complaints::default(), Instant::now());
        assert_eq!(complaints.due(0, begun), None);
        assert_eq!(complaints.due(5, begun), Some(5));
        assert_eq!(complaints.due(9, begun + COMPLAIN / 2), None);
        assert_eq!(complaints.due(9, begun + COMPLAIN), Some(4));
        assert_eq!(complaints.due(9, begun + 3 * COMPLAIN), None);
    }

    #[test]
    fn numbers_are_taken_within_bounds() {
        let set = |value: &'static str| move |_: &str| Some(value.to_owned());
        assert_eq!(milliseconds(&["X"], DELAY, &set("250")), Duration::from_millis(250));
        assert_eq!(milliseconds(&["X"], DELAY, &set("99999999999")), LONGEST);
        assert_eq!(milliseconds(&["X"], DELAY, &set("soon")), DELAY);
        assert_eq!(milliseconds(&["X"], DELAY, &|_: &str| None), DELAY);
    }

    #[test]
    fn spans_are_forkds_unless_it_has_another_name() {
        let name = |resource: Resource| resource.get(&"service.name".into()).map(|name| name.to_string());
        assert_eq!(name(resource(&|_: &str| None)).as_deref(), Some("forkd"));
    }
}
