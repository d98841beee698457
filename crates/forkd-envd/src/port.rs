//! E2B's ports, which are vsock ports in a guest.

/// envd, and forkd's own calls beside it.
pub const ENVD: u16 = 49983;
/// The code interpreter.
pub const INTERPRETER: u16 = 49999;

/// Whether the agent listens on this port itself.
pub fn is_agents(port: u16) -> bool {
    [ENVD, INTERPRETER].contains(&port)
}
