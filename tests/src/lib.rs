//! What the end-to-end tests stand on: the built binaries, a KVM host to run on, and a watch over that host.

pub mod alone;
pub mod api_speed;
pub mod binaries;
pub mod cutting_proxy;
pub mod daemon;
pub mod docker_registry;
pub mod documents;
pub mod engine;
pub mod fake_agent;
pub mod held;
pub mod host;
pub mod hostile;
pub mod library;
pub mod linked_agents;
pub mod measure;
pub mod oci_tools;
pub mod process;
pub mod registry;
pub mod scale;
pub mod suite;
pub mod tiny_daemon;
pub mod tiny_library;
pub mod watch;

/// A test's result; any error fails it, with its text.
pub type TestResult = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Fails the test with a message unless the condition holds.
#[macro_export]
macro_rules! check {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+).into());
        }
    };
}
