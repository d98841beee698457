//! Spans of the daemon's requests, sent to a collector: OTLP over HTTP, if the environment names one (docs/operations.md has the
//! variables). A binary without the feature `otlp` says that it cannot.
//!
//! ```text
//! forkd_daemon::trace ──▶ sink.rs ──▶ queue, bounded ──▶ sender.rs ──▶ client.rs ──▶ collector
//!                         samples     full: counted      batches       HTTP, TLS
//! ```

#[cfg(feature = "otlp")]
mod client;
#[cfg(feature = "otlp")]
mod sender;
#[cfg(feature = "otlp")]
mod sink;

use std::pin::Pin;
use std::sync::Arc;

use forkd_daemon::trace::SpanSink;

/// The collector, for traces alone or for everything.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
#[cfg(feature = "otlp")]
const PROTOCOLS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];
#[cfg(feature = "otlp")]
const PROTOCOL: &str = "http/protobuf";

/// Spans are sent.
pub struct Sending {
    pub sink: Arc<dyn SpanSink>,
    /// Sends what waits, within a few seconds.
    pub finish: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// The environment.
type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Sends spans from now on, if the environment says where.
pub fn start() -> Option<Sending> {
    let variable = endpoint(&environment)?;
    begin(variable)
}

#[cfg(not(feature = "otlp"))]
fn begin(variable: &str) -> Option<Sending> {
    tracing::warn!("{variable} is set, but this forkd was built without the feature otlp: no spans are sent");
    None
}

#[cfg(feature = "otlp")]
fn begin(variable: &str) -> Option<Sending> {
    if !environment(variable).is_some_and(|url| is_url(&url)) {
        tracing::warn!("{variable} is not a URL (http://..., https://...): no spans are sent");
        return None;
    }
    if let Some(protocol) = first(&PROTOCOLS, &environment).filter(|protocol| protocol != PROTOCOL) {
        tracing::warn!(
            protocol,
            "OTEL_EXPORTER_OTLP_PROTOCOL is not supported: spans are sent as {PROTOCOL}"
        );
    }
    match sender::start(&environment) {
        Ok(sending) => {
            tracing::info!("spans are sent to the collector that {variable} names");
            Some(sending)
        }
        Err(error) => {
            tracing::warn!(error = &*error, "spans cannot be sent");
            None
        }
    }
}

/// The variable that says where spans go, unless another one says that there are to be none.
fn endpoint(variables: Variables<'_>) -> Option<&'static str> {
    let is = |name, value| variables(name).is_some_and(|found| found.eq_ignore_ascii_case(value));
    if is("OTEL_SDK_DISABLED", "true") || is("OTEL_TRACES_EXPORTER", "none") {
        return None;
    }
    ENDPOINTS.into_iter().find(|name| variables(name).is_some())
}

#[cfg(feature = "otlp")]
fn first(names: &[&str], variables: Variables<'_>) -> Option<String> {
    names.iter().find_map(|name| variables(name))
}

#[cfg(feature = "otlp")]
fn is_url(text: &str) -> bool {
    reqwest::Url::parse(text).is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint_of(set: &[(&str, &str)]) -> Option<&'static str> {
        endpoint(&|name| {
            let found = set.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn nothing_is_sent_unless_the_environment_says_where() {
        let general = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318");
        let traces = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:4318/v1/traces");
        assert_eq!(endpoint_of(&[("OTEL_SERVICE_NAME", "forkd")]), None);
        assert_eq!(endpoint_of(&[general]), Some(general.0));
        assert_eq!(endpoint_of(&[general, traces]), Some(traces.0));
        for off in [("OTEL_SDK_DISABLED", "True"), ("OTEL_TRACES_EXPORTER", "none")] {
            assert_eq!(endpoint_of(&[general, off]), None);
        }
        assert_eq!(endpoint_of(&[general, ("OTEL_SDK_DISABLED", "false")]), Some(general.0));
    }

    #[cfg(feature = "otlp")]
    #[test]
    fn endpoints_are_urls() {
        for good in ["http://127.0.0.1:4318", "https://collector.example/v1/traces"] {
            assert!(is_url(good), "{good}");
        }
        for bad in ["127.0.0.1:4318", "localhost:4318", "unix:///run/x", "http://", "x"] {
            assert!(!is_url(bad), "{bad}");
        }
    }
}
