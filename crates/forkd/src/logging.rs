//! The daemon's log, on stderr: a line an event, with the spans it happened in. `forkd_daemon` says what its levels mean.

use std::io::{self, IsTerminal};

use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::error::CliError;

/// Logs from now on what the filter lets through.
pub fn start(filter: &str) -> Result<(), CliError> {
    let refused = |_| CliError::LogFilter(filter.to_owned());
    let targets: Targets = filter.parse().map_err(refused)?;
    let lines =
        tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(io::stderr().is_terminal());
    let started = tracing_subscriber::registry().with(lines.with_filter(targets)).try_init();
    started.map_err(|error| CliError::Io("start logging", io::Error::other(error)))
}
