//! Last words: whichever thread panics, the host is told why and at which stage, and the process ends.
//!
//! A vCPU or device thread that went away alone would leave a VM that hangs.

use std::os::fd::{AsFd, AsRawFd};
use std::panic::PanicHookInfo;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use forkd_proto::channel::Channel;
use forkd_proto::control::{Event, ExitReason, Message, Stage};

use super::blocked;

/// More of a panic's message is not sent.
const MAX_DETAIL: usize = 2000;

/// What the hook needs to know. It is shared only with the thread that commands the VM, so a process that is forked
/// by that thread finds it unlocked.
struct Current {
    channel: Option<Arc<Channel>>,
    stage: Stage,
}

static CURRENT: Mutex<Current> = Mutex::new(Current { channel: None, stage: Stage::Empty });

/// From now on a panic is told and ends the process.
pub fn install() {
    std::panic::set_hook(Box::new(|panic| {
        speak(panic);
        // An abort would send a signal, which no filter allows.
        blocked::end(128 + libc::SIGABRT);
    }));
}

/// From now on this is the process's control socket; a forked process has another than its parent.
pub fn adopt(channel: Option<Arc<Channel>>) {
    blocked::adopt(channel.as_ref().map(|channel| channel.as_fd().as_raw_fd()));
    CURRENT.lock().unwrap_or_else(PoisonError::into_inner).channel = channel;
}

/// From now on the process is at this stage.
pub fn enter(stage: Stage) {
    blocked::enter(stage);
    CURRENT.lock().unwrap_or_else(PoisonError::into_inner).stage = stage;
}

/// Waits for nothing that may not come: neither for the lock nor for the other end to read.
fn speak(panic: &PanicHookInfo<'_>) {
    let Ok(current) = CURRENT.try_lock() else {
        // Perhaps another thread that panics: it needs a moment for its own words.
        std::thread::sleep(Duration::from_millis(100));
        return;
    };
    if let Some(channel) = &current.channel {
        let detail = detail(panic);
        let event = Event::Exited { stage: current.stage, reason: ExitReason::Error, detail };
        // There is no other place to report it.
        let _ = channel.send_at_once(&Message::Event(event));
    }
}

fn detail(panic: &PanicHookInfo<'_>) -> String {
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("a thread");
    let place = panic.location().map(ToString::to_string).unwrap_or_default();
    let message = panic.payload_as_str().unwrap_or_default();
    format!("{thread} panicked at {place}: {message}").chars().take(MAX_DETAIL).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use forkd_proto::channel::ChannelError;
    use std::os::fd::AsFd;
    use std::process::{Command, Stdio};

    /// Set in the process that is to panic.
    const VICTIM: &str = "FORKD_TEST_VICTIM";

    /// The test runs itself again, as a process that dies.
    #[test]
    fn a_panic_of_any_thread_is_told_and_ends_the_process() {
        if std::env::var_os(VICTIM).is_some() {
            return die();
        }
        let (ours, theirs) = Channel::pair().unwrap();
        let name = format!("{}::a_panic_of_any_thread_is_told_and_ends_the_process", module_path!());
        let name = name.split_once("::").unwrap().1;
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(VICTIM, "1")
            .stdin(Stdio::from(theirs.into_inner()))
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert_eq!(status.code(), Some(128 + libc::SIGABRT));
        match ours.receive::<Message>().unwrap().0 {
            Message::Event(Event::Exited { stage: Stage::Freeze, reason: ExitReason::Error, detail }) => {
                let expected = ["vcpu7 panicked at ", "last_words.rs:", ": out of registers"];
                assert!(expected.iter().all(|part| detail.contains(part)), "{detail}");
                assert_eq!(detail.chars().count(), MAX_DETAIL);
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(ours.receive::<Message>(), Err(ChannelError::Closed)));
    }

    fn die() {
        install();
        // What a forked process does: the second socket takes the place of the first, which is not read.
        let (_silent, before) = Channel::pair().unwrap();
        adopt(Some(Arc::new(before)));
        enter(Stage::Zygote);
        adopt(Some(Arc::new(Channel::new(std::io::stdin().as_fd().try_clone_to_owned().unwrap()))));
        enter(Stage::Freeze);
        let panic = || panic!("out of registers{}", "\u{1f600}".repeat(MAX_DETAIL));
        let thread = std::thread::Builder::new().name("vcpu7".into()).spawn(panic).unwrap();
        let _ = thread.join();
        panic!("the thread went away alone");
    }
}
