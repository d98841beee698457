//! Where long operations report what they are doing, and learn that they are cancelled. Nothing in this crate prints.

/// The caller's side of a long operation.
pub trait Progress {
    /// A new step has begun.
    fn step(&self, what: &str);
    /// Something happened inside the step.
    fn detail(&self, what: &str);
    /// So many bytes of a transfer are done.
    fn transfer(&self, done: u64, total: u64) {
        self.detail(&format!("{} of {} MiB", done >> 20, total >> 20));
    }
    /// A line that a command of the operation's has printed.
    fn output(&self, line: &str) {
        self.detail(line);
    }
    /// Something that the user should know whatever becomes of the operation.
    fn warn(&self, what: &str);
    /// Whether the operation should end. It is asked between small pieces of work, and leaves nothing half-made.
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Reports nothing and is never cancelled.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn step(&self, _: &str) {}
    fn detail(&self, _: &str) {}
    fn warn(&self, _: &str) {}
}
