//! What an attacker who runs code inside a VM process would try. Each attempt is one that the jail must deny, and says by what.

mod attempts;
mod call;
mod fill;

pub use attempts::{ATTEMPTS, FORK_BOMB};

use std::sync::{Mutex, PoisonError};

/// The port that starts an attempt: the byte that is written is its number in [`ATTEMPTS`].
pub const PORT: u16 = 0x666;
/// The ports where a guest says whom it goes against: four bytes of [`Targets::victim`], two of [`Targets::port`], the lowest
/// first.
pub const AIM_PORT: u16 = 0x650;
/// The port that has the process write all that it can to the top layer of its disk, whatever the disk may hold.
pub const FILL_PORT: u16 = 0x667;
/// What comes before the bytes that were written, and the error that came then, on the console.
pub const FILLS: &str = "filled ";
/// The environment variable of `hostile-vmm`: `on` filters its system calls.
pub const FILTER: &str = "FORKD_HOSTILE_FILTER";
/// What comes before the number and the result of an attempt on the console.
pub const SAYS: &str = "attempt ";

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

static TARGETS: Mutex<Option<Targets>> = Mutex::new(None);

/// Says whom it goes against.
pub fn aim(targets: Targets) {
    *TARGETS.lock().unwrap_or_else(PoisonError::into_inner) = Some(targets);
}

/// A byte of whom it goes against.
fn aim_at(index: u16, byte: u8) {
    let mut targets = TARGETS.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(targets) = &mut *targets else { return };
    let (mut victim, mut port) = (targets.victim.to_le_bytes(), targets.port.to_le_bytes());
    if let Some(place) = victim.iter_mut().chain(&mut port).nth(index.into()) {
        *place = byte;
    }
    (targets.victim, targets.port) = (i32::from_le_bytes(victim), u16::from_le_bytes(port));
}

/// The address of the abstract Unix socket.
pub fn abstract_name(port: u16) -> String {
    format!("forkd-hostile-{port}")
}

/// Carries an attempt out, and writes a line with its result to the console: a number, or an error's as a negative one.
pub fn attack(port: u16, data: &[u8], say: forkd_vmm::Say<'_>) {
    let [byte, ..] = data else { return };
    if let Some(index) = port.checked_sub(AIM_PORT).filter(|index| *index < 6) {
        return aim_at(index, *byte);
    }
    if port == FILL_PORT {
        let (bytes, error) = fill::fill();
        return format!("\n{FILLS}{bytes} {error}\n").bytes().for_each(say);
    }
    let targets = *TARGETS.lock().unwrap_or_else(PoisonError::into_inner);
    let (PORT, Some(targets), Some(attempt)) = (port, targets, ATTEMPTS.get(usize::from(*byte))) else {
        return;
    };
    let result = (attempt.run)(&targets);
    format!("\n{SAYS}{byte} {result}\n").bytes().for_each(say);
}

/// What an attempt came to, as its console says. `None` if it says nothing.
pub fn result_on(console: &str, number: usize) -> Option<i64> {
    let begin = format!("{SAYS}{number} ");
    console.lines().rev().find_map(|line| line.trim_end().strip_prefix(&begin)?.parse().ok())
}

/// A line for the list of what was tried: the name, the call at which the filter stopped it, and what became of it without one.
pub fn describe(attempt: &Attempt, result: i64, blocked: Option<&str>) -> String {
    let alone = match (result, attempt.without_filter) {
        (..0, _) => i32::try_from(-result)
            .map(std::io::Error::from_raw_os_error)
            .map_or_else(|_| String::new(), |error| error.to_string()),
        (_, Without::Allowed(worth)) => format!("allowed: {worth}"),
        (_, Without::Denied) => "NOT DENIED".into(),
    };
    format!("{:<46} {:<22} {alone}", attempt.name, blocked.unwrap_or("goes on"))
}
