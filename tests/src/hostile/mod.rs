//! What somebody who runs code inside a VM process would try. Each attempt is one that the jail must deny, and says by what.

mod attempts;
mod call;

pub use attempts::ATTEMPTS;

use std::sync::OnceLock;

/// The port that starts an attempt: the byte that is written is its number in [`ATTEMPTS`].
pub const PORT: u16 = 0x666;

/// Whom it goes against.
#[derive(Debug, Clone, Copy)]
pub struct Targets {
    /// Another VM process.
    pub victim: i32,
    /// Whoever has started this one.
    pub daemon: i32,
    /// A TCP port of the host's that somebody listens at. An abstract Unix socket is called the same.
    pub port: u16,
}

/// An attempt.
#[derive(Debug)]
pub struct Attempt {
    pub name: &'static str,
    /// The first call of it that the filter stops. `None` if it lets all of them pass.
    pub stopped_at: Option<&'static str>,
    pub without_filter: Without,
    run: fn(&Targets) -> i64,
}

/// What becomes of an attempt where system calls are not filtered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Without {
    /// The other walls deny it.
    Denied,
    /// The kernel allows it to anybody; what that is worth.
    Allowed(&'static str),
}

static TARGETS: OnceLock<Targets> = OnceLock::new();

/// Says whom it goes against, once.
pub fn aim(targets: Targets) {
    let _ = TARGETS.set(targets);
}

/// The address of the abstract Unix socket.
pub fn abstract_name(port: u16) -> String {
    format!("forkd-hostile-{port}")
}

/// Carries an attempt out, and writes a line with its result to the console: a number, or an error's as a negative one.
pub fn attack(port: u16, data: &[u8], say: forkd_vmm::Say<'_>) {
    let (PORT, [number, ..], Some(targets)) = (port, data, TARGETS.get()) else { return };
    if let Some(attempt) = ATTEMPTS.get(usize::from(*number)) {
        let result = (attempt.run)(targets);
        format!("{number} {result}\n").bytes().for_each(say);
    }
}
