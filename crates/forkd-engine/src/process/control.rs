//! The control socket of a VM process, from the daemon's side: many requests at once, each with its own answer.
//!
//! ```text
//!   call ──▶ request ─────▶ process          one task reads whatever comes:
//!     ▲                        │               a reply goes to the call with its id,
//!     └──── reply ◀── reader ◀─┘               an event to the owner of the receiver
//! ```

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forkd_proto::channel::{Channel, ChannelError};
use forkd_proto::control::{Command, Event, Message, Refusal, RefusalCode, Reply, Request, VERSION};
use serde::Deserialize;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::process::socket::AsyncChannel;

/// Events that were not received yet. A process says a handful in its life; one that floods is not read any further.
const MAX_EVENTS: usize = 64;

/// A reply and the descriptors that came with it.
pub type Answer = (Reply, Vec<OwnedFd>);
type Waiting = HashMap<u64, (Instant, oneshot::Sender<Result<Answer, Refusal>>)>;

/// A request had no answer that can be used.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("the VM process refused to {command}: {}", refusal.message)]
    Refused { command: &'static str, refusal: Refusal },
    #[error("the VM process has ended")]
    Gone,
    #[error("the VM process did not {command} within {} s", patience.as_secs())]
    Timeout { command: &'static str, patience: Duration },
    #[error("the control socket of the VM process failed")]
    Socket(#[source] ChannelError),
}

/// One process's socket. Dropping it closes the connection.
#[derive(Debug)]
pub struct Control {
    shared: Arc<Shared>,
    next_id: AtomicU64,
    reader: AbortHandle,
}

#[derive(Debug)]
struct Shared {
    socket: AsyncChannel,
    waiting: Mutex<Option<Waiting>>,
    /// When a call was answered last.
    progress: watch::Sender<Instant>,
}

impl Shared {
    /// Calls that wait for a reply; `None` when no reply will come any more.
    fn waiting(&self) -> MutexGuard<'_, Option<Waiting>> {
        // A panic while holding the lock leaves the map in order.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, id: u64, result: Result<Answer, Refusal>) {
        let waiting = self.waiting().as_mut().and_then(|waiting| waiting.remove(&id));
        if let Some((_, call)) = waiting {
            self.progress.send_replace(Instant::now());
            // The requester may have gone.
            let _ = call.send(result);
        }
    }

    /// Fails the call that an unusable answer belongs to.
    fn answer_none(&self, message: &serde_json::Value, reason: &str) {
        if let Some(id) = message.pointer("/reply/id").and_then(serde_json::Value::as_u64) {
            self.answer(id, Err(Refusal { code: RefusalCode::Failed, message: reason.into() }));
        }
    }
}

impl Control {
    /// Takes over a connected socket. Events come out of the receiver, which ends with the process.
    pub fn new(channel: Channel) -> io::Result<(Control, mpsc::Receiver<Event>)> {
        let socket = AsyncChannel::new(channel)?;
        let (progress, _) = watch::channel(Instant::now());
        let shared = Arc::new(Shared { socket, waiting: Mutex::new(Some(Waiting::new())), progress });
        let (events, receiver) = mpsc::channel(MAX_EVENTS);
        let reader = tokio::spawn(read(Arc::clone(&shared), events)).abort_handle();
        Ok((Control { shared, next_id: AtomicU64::new(1), reader }, receiver))
    }

    /// Sends a request and waits for its answer, though not for ever. Requests of several calls are carried out in the order in
    /// which they were sent; no request waits for another's answer.
    pub async fn call(&self, command: Command, descriptors: &[OwnedFd]) -> Result<Answer, CallError> {
        let (name, patience) = (command.name(), patience(&command));
        tokio::select! {
            biased;
            answer = self.answered(command, descriptors) => answer,
            () = self.silent_for(patience) => Err(CallError::Timeout { command: name, patience }),
        }
    }

    /// Waits until no call has been answered for that long. A call that waits behind others does not time out while they are answered.
    async fn silent_for(&self, patience: Duration) {
        let mut progress = self.shared.progress.subscribe();
        while let Ok(Ok(())) = tokio::time::timeout(patience, progress.changed()).await {}
    }

    /// How long calls have been waiting without any of them being answered.
    pub fn stuck_for(&self) -> Duration {
        let oldest =
            self.shared.waiting().as_ref().and_then(|all| all.values().map(|(begun, _)| *begun).min());
        oldest.map_or(Duration::ZERO, |begun| begun.max(*self.shared.progress.borrow()).elapsed())
    }

    async fn answered(&self, command: Command, descriptors: &[OwnedFd]) -> Result<Answer, CallError> {
        let name = command.name();
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        match &mut *self.shared.waiting() {
            Some(waiting) => drop(waiting.insert(id, (Instant::now(), sender))),
            None => return Err(CallError::Gone),
        }
        // Also when this call is given up.
        let _forget = Forget { shared: &self.shared, id };
        self.send(&Request { version: VERSION, id, command }, descriptors).await?;
        match answer.await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(refusal)) => Err(CallError::Refused { command: name, refusal }),
            Err(_) => Err(CallError::Gone),
        }
    }

    async fn send(&self, request: &Request, descriptors: &[OwnedFd]) -> Result<(), CallError> {
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        match self.shared.socket.send(request, &descriptors).await {
            Ok(()) => Ok(()),
            Err(ChannelError::Closed) => Err(CallError::Gone),
            Err(error) => Err(CallError::Socket(error)),
        }
    }
}

/// No process that can still be used is silent for longer.
fn patience(command: &Command) -> Duration {
    Duration::from_secs(match command {
        // All of a guest's memory may have to be read.
        Command::Boot(_) | Command::Load(_) => 600,
        // Or a map written to a disk that is slow and has much else to write.
        Command::SettleDisk => 300,
        _ => 60,
    })
}

impl Drop for Control {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// Takes a call out of those that wait.
struct Forget<'a> {
    shared: &'a Shared,
    id: u64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        if let Some(waiting) = &mut *self.shared.waiting() {
            waiting.remove(&self.id);
        }
    }
}

async fn read(shared: Arc<Shared>, events: mpsc::Sender<Event>) {
    loop {
        match shared.socket.receive::<serde_json::Value>().await {
            Ok((message, descriptors)) => match Message::deserialize(&message) {
                Ok(Message::Reply { id, result }) => {
                    shared.answer(id, result.map(|reply| (reply, descriptors)));
                }
                // There may be no receiver.
                Ok(Message::Event(event)) => drop(events.send(event).await),
                // A newer process may say what this daemon does not know, and one that was taken over anything.
                Err(_) => shared.answer_none(&message, "invalid answer"),
            },
            Err(ChannelError::DescriptorsLost { message }) => {
                shared.answer_none(
                    &message,
                    "the descriptors of its answer were lost: this daemon may have too many open",
                );
            }
            Err(ChannelError::Malformed(_) | ChannelError::TooLarge) => {}
            Err(ChannelError::Closed | ChannelError::Io(_)) => break,
        }
    }
    // All waiting requests fail; later ones fail at once.
    drop(shared.waiting().take());
}

#[cfg(test)]
mod tests {
    use super::*;
    use forkd_proto::control::{StateName, Stats};

    fn stats(exits: u64) -> Reply {
        Reply::Stats(Stats { state: StateName::Running, vcpus: 1, memory_bytes: 1, exits, kvm: None })
    }

    fn pair() -> (Control, mpsc::Receiver<Event>, Channel) {
        let (ours, theirs) = Channel::pair().unwrap();
        let (control, events) = Control::new(ours).unwrap();
        (control, events, theirs)
    }

    /// Takes `count` requests in a thread and answers them, the last first.
    fn answer_backwards(process: Channel, count: usize) -> std::thread::JoinHandle<Channel> {
        std::thread::spawn(move || {
            let mut ids = Vec::new();
            for _ in 0..count {
                ids.push(process.receive::<Request>().unwrap().0.id);
            }
            for id in ids.into_iter().rev() {
                process.send(&Message::Reply { id, result: Ok(stats(id)) }, &[]).unwrap();
            }
            process
        })
    }

    #[tokio::test]
    async fn each_call_gets_its_own_answer() {
        let (control, _events, process) = pair();
        let process = answer_backwards(process, 3);
        let call = || control.call(Command::Stats, &[]);
        let (one, two, three) = tokio::join!(call(), call(), call());
        for (id, answer) in [(1, one), (2, two), (3, three)] {
            assert_eq!(answer.unwrap().0, stats(id));
        }
        process.join().unwrap();
    }

    #[tokio::test]
    async fn a_refusal_names_the_command_and_events_pass_by() {
        let (control, mut events, process) = pair();
        let process = std::thread::spawn(move || {
            let id = process.receive::<Request>().unwrap().0.id;
            process.send(&Message::Event(Event::Panicked), &[]).unwrap();
            process.send(&"nonsense", &[]).unwrap();
            process.send(&Message::Reply { id: 99, result: Ok(Reply::Done) }, &[]).unwrap();
            let refusal = Refusal { code: RefusalCode::State, message: "not now".into() };
            process.send(&Message::Reply { id, result: Err(refusal) }, &[]).unwrap();
            process
        });
        let error = control.call(Command::Freeze, &[]).await.unwrap_err();
        assert_eq!(error.to_string(), "the VM process refused to freeze: not now");
        assert_eq!(events.recv().await, Some(Event::Panicked));
        process.join().unwrap();
    }

    #[tokio::test]
    async fn an_answer_that_is_none_is_not_waited_for() {
        let (control, _events, process) = pair();
        let process = std::thread::spawn(move || {
            let id = process.receive::<Request>().unwrap().0.id;
            process.send(&serde_json::json!({ "reply": { "id": id, "result": "yes" } }), &[]).unwrap();
            process
        });
        let error = control.call(Command::Pause, &[]).await.unwrap_err();
        assert_eq!(error.to_string(), "the VM process refused to pause: invalid answer");
        process.join().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_says_nothing_is_not_waited_for() {
        let (control, _events, _process) = pair();
        let error = control.call(Command::Pause, &[]).await.unwrap_err();
        assert_eq!(error.to_string(), "the VM process did not pause within 60 s");
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_behind_others_waits_as_long_as_they_are_answered() {
        let (control, _events, process) = pair();
        let slow = async {
            for id in 1..=3 {
                tokio::time::sleep(Duration::from_secs(40)).await;
                process.send(&Message::Reply { id, result: Ok(stats(id)) }, &[]).unwrap();
            }
        };
        let call = || control.call(Command::Stats, &[]);
        let ((), first, second, third, last) = tokio::join!(slow, call(), call(), call(), call());
        for answer in [first, second, third] {
            answer.unwrap();
        }
        assert!(matches!(last, Err(CallError::Timeout { .. })), "{last:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_is_stuck_from_its_last_answer_on() {
        let (control, _events, process) = pair();
        let second = Duration::from_secs(1);
        tokio::time::sleep(second * 9).await;
        assert_eq!(control.stuck_for(), Duration::ZERO, "nobody has asked");
        let asked = async {
            tokio::join!(control.call(Command::Stats, &[]), control.call(Command::Stats, &[])).0.unwrap();
        };
        let answered = async {
            tokio::time::sleep(second * 2).await;
            assert_eq!(control.stuck_for().as_secs(), 2);
            process.send(&Message::Reply { id: 1, result: Ok(stats(1)) }, &[]).unwrap();
            tokio::time::sleep(second).await;
            assert_eq!(control.stuck_for().as_secs(), 1, "the second call");
            process.send(&Message::Reply { id: 2, result: Ok(stats(2)) }, &[]).unwrap();
        };
        tokio::join!(asked, answered);
        assert_eq!(control.stuck_for(), Duration::ZERO);
    }

    #[tokio::test]
    async fn calls_end_with_the_process() {
        let (control, mut events, process) = pair();
        let process = std::thread::spawn(move || drop(process.receive::<Request>().unwrap()));
        let first = control.call(Command::Stats, &[]).await;
        assert!(matches!(first, Err(CallError::Gone)), "{first:?}");
        process.join().unwrap();
        assert_eq!(events.recv().await, None);
        assert!(matches!(control.call(Command::Stats, &[]).await, Err(CallError::Gone)));
    }

    #[tokio::test]
    async fn a_call_that_is_given_up_leaves_nothing() {
        let (control, _events, process) = pair();
        let call = control.call(Command::Stats, &[]);
        assert!(tokio::time::timeout(Duration::from_millis(10), call).await.is_err());
        assert_eq!(control.shared.waiting().as_ref().map(HashMap::len), Some(0));
        // Its answer comes late, and is dropped.
        let process = answer_backwards(process, 2);
        assert_eq!(control.call(Command::Stats, &[]).await.unwrap().0, stats(2));
        process.join().unwrap();
    }

    #[tokio::test]
    async fn a_process_that_does_not_read_makes_callers_wait_and_no_thread() {
        let (control, _events, process) = pair();
        let control = Arc::new(control);
        let calls: Vec<_> = (0..2000)
            .map(|_| {
                let control = Arc::clone(&control);
                tokio::spawn(async move { control.call(Command::Stats, &[]).await })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(20)).await;
        let answering = std::thread::spawn(move || {
            for _ in 0..2000 {
                let id = process.receive::<Request>().unwrap().0.id;
                process.send(&Message::Reply { id, result: Ok(stats(id)) }, &[]).unwrap();
            }
            process
        });
        for call in calls {
            call.await.unwrap().unwrap();
        }
        answering.join().unwrap();
    }
}
