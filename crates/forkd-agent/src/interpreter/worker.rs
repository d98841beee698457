//! The owner of one context: its driver, its queue, its state.
//!
//! ```text
//!              first job, restart                 job
//!   no driver ────────────────────▶ idle ─────────────────────▶ running
//!       ▲                            │  ◀───────────────────────  │
//!       └── it ended, was restarted ─┴──   done                   │ client gone: interrupt, and wait for done
//!                                                                 │ client lost in a fork: just wait for done
//!                                                                 ▼
//!                                     it ended, restart, removal: the job gets an error
//! ```
//!
//! Jobs wait their turn in one queue. Orders (interruption, restart, removal, a fork) do not wait for a job. A fork while a job runs reseeds
//! the interpreter's random numbers at once; its hooks and environment follow when the job has ended. An interpreter that rests
//! is told of a fork with its next job, before that: most children of a fork never use all that they inherit, and pay for every
//! page that is touched.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use forkd_envd::interpreter::Line;
use tokio::sync::{mpsc, oneshot, watch};

use super::job::{Job, Running};
use super::language::Language;
use super::launch::{Driver, LaunchError, launch};
use super::line;
use super::message::{self, Event, ForkIdentity};
use crate::agent::Agent;
use crate::children::Signal;

/// How long the hooks of a context may take after a fork. With a hundred others on the same CPU that is long; it ends before the
/// timeout of the identity request, so that the reason is reported.
const FORK_LIMIT: std::time::Duration = std::time::Duration::from_secs(45);
const CHUNK: usize = 16 << 10;

/// What does not wait for jobs.
#[derive(Debug)]
pub enum Order {
    /// Starts a driver unless one runs.
    Start(oneshot::Sender<Result<(), LaunchError>>),
    /// Interrupts a job, if it still runs.
    Interrupt(JobId, oneshot::Sender<()>),
    /// Ends the driver and starts another; with a job, only if that still runs.
    Restart(Option<JobId>, oneshot::Sender<Result<(), LaunchError>>),
    /// Takes a new identity.
    Fork(ForkIdentity, BTreeMap<String, String>, oneshot::Sender<ForkOutcome>),
    /// Ends the driver and the context.
    Remove(oneshot::Sender<()>),
}

/// A job, among all of its context.
pub type JobId = u64;

/// What became of a fork in one context.
#[derive(Debug, Default)]
pub struct ForkOutcome {
    /// Code was running: hooks and environment follow when it has ended.
    pub busy: bool,
    /// It rests: all of it follows with the next code.
    pub rests: bool,
    /// What went wrong.
    pub problems: Vec<String>,
}

#[derive(Debug)]
pub struct Worker {
    agent: Arc<Agent>,
    language: Language,
    directory: PathBuf,
    jobs: mpsc::Receiver<Job>,
    orders: mpsc::Receiver<Order>,
    /// The job that runs.
    activity: watch::Sender<Option<JobId>>,
    driver: Option<Driver>,
    /// A fork that the driver, which rests, was not told of yet.
    untold: Option<(ForkIdentity, BTreeMap<String, String>)>,
    executions: u64,
    requests: u64,
    /// Sent to the next job: the driver ended while no job ran.
    lost: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
enum Flow {
    Continue,
    End,
}

enum Next {
    Order(Order),
    Job(Job),
    Quiet,
    Closed,
}

/// How a job came to its end.
enum Outcome {
    Done,
    Lost(String),
    Ordered(Order),
    Removed,
}

impl Worker {
    pub fn new(
        agent: Arc<Agent>,
        language: Language,
        directory: PathBuf,
        jobs: mpsc::Receiver<Job>,
        orders: mpsc::Receiver<Order>,
        activity: watch::Sender<Option<JobId>>,
    ) -> Self {
        Self {
            agent,
            language,
            directory,
            jobs,
            orders,
            activity,
            driver: None,
            untold: None,
            executions: 0,
            requests: 0,
            lost: None,
        }
    }

    pub async fn run(mut self) {
        loop {
            let flow = match self.next().await {
                Next::Order(order) => self.obey(order).await,
                Next::Job(job) => self.execute(job).await,
                Next::Quiet => Flow::Continue,
                Next::Closed => Flow::End,
            };
            if flow == Flow::End {
                break;
            }
        }
        self.end_driver().await;
    }

    /// Waits for something to do.
    async fn next(&mut self) -> Next {
        let Some(driver) = &mut self.driver else {
            return tokio::select! {
                biased;
                order = self.orders.recv() => order.map_or(Next::Closed, Next::Order),
                job = self.jobs.recv() => job.map_or(Next::Closed, Next::Job),
            };
        };
        let mut exit = driver.exit.clone();
        // What a driver prints while no job runs is dropped.
        tokio::select! {
            biased;
            order = self.orders.recv() => order.map_or(Next::Closed, Next::Order),
            exit = exit.wait() => {
                self.lost = Some(exit.describe());
                self.driver = None;
                Next::Quiet
            }
            job = self.jobs.recv() => job.map_or(Next::Closed, Next::Job),
            () = driver.quiet() => Next::Quiet,
        }
    }

    async fn obey(&mut self, order: Order) -> Flow {
        match order {
            Order::Start(answer) => {
                let started = self.start_driver().await;
                // The requester may have gone.
                let _ = answer.send(started);
            }
            // The job has ended in this moment.
            Order::Interrupt(_, answer) => drop(answer.send(())),
            Order::Restart(Some(_), answer) if self.activity.borrow().is_none() => drop(answer.send(Ok(()))),
            Order::Restart(_, answer) => {
                self.end_driver().await;
                (self.executions, self.lost) = (0, None);
                let started = self.start_driver().await;
                let _ = answer.send(started);
            }
            Order::Fork(identity, environment, answer) => {
                let rests = self.driver.as_ref().is_some_and(|driver| driver.rests);
                let problems = match rests {
                    true => self.tell_later(identity, environment),
                    false => self.fork(&identity, &environment).await,
                };
                let _ = answer.send(ForkOutcome { busy: false, rests, problems });
            }
            Order::Remove(answer) => {
                self.end_driver().await;
                let _ = answer.send(());
                return Flow::End;
            }
        }
        Flow::Continue
    }

    /// What is not told of an earlier fork is told with this one.
    fn tell_later(&mut self, identity: ForkIdentity, environment: BTreeMap<String, String>) -> Vec<String> {
        let mut all = self.untold.take().map(|(_, environment)| environment).unwrap_or_default();
        all.extend(environment);
        self.untold = Some((identity, all));
        let epoch = self.driver.as_mut().and_then(|driver| driver.epoch.as_mut());
        let failed = epoch.and_then(|epoch| epoch.advance().err());
        failed.map(|error| format!("reseeding: {error}")).into_iter().collect()
    }

    /// What the driver is to be told before its next job.
    fn told_now(&mut self) -> Vec<u8> {
        let Some((identity, environment)) = self.untold.take() else { return Vec::new() };
        message::fork(self.language, self.next_request(), &identity, &environment)
    }

    async fn start_driver(&mut self) -> Result<(), LaunchError> {
        if self.driver.is_none() {
            // It has the environment from the beginning.
            self.untold = None;
            self.driver = Some(launch(&self.agent, self.language, &self.directory).await?);
        }
        Ok(())
    }

    async fn end_driver(&mut self) {
        if let Some(mut driver) = self.driver.take() {
            // Gone already is as good.
            let _ = self.agent.children.signal_group(driver.pid, Signal::KILL).await;
            driver.exit.wait().await;
        }
    }

    fn next_request(&mut self) -> u64 {
        self.requests += 1;
        self.requests
    }

    async fn execute(&mut self, job: Job) -> Flow {
        if job.lines.is_closed() {
            // The client left while its job waited.
            return Flow::Continue;
        }
        self.executions += 1;
        let mut running = Running::new(self.next_request());
        self.activity.send_replace(Some(running.id));
        running.push(Line::NumberOfExecutions { execution_count: self.executions }.encode());
        let outcome = match self.begin(&job, &mut running).await {
            Ok(()) => self.conduct(&job, &mut running).await,
            Err(message) => {
                running.push(line::error("InterpreterUnavailable", &message, &message));
                Outcome::Done
            }
        };
        let flow = self.conclude(outcome, &mut running).await;
        self.activity.send_replace(None);
        running.push(Line::EndOfExecution.encode());
        tokio::spawn(deliver(job.lines, running.outbox));
        flow
    }

    /// A driver, and the request to it.
    async fn begin(&mut self, job: &Job, running: &mut Running) -> Result<(), String> {
        if let Some(exit) = self.lost.take() {
            let note =
                format!("[the interpreter had ended ({exit}); this is a new one, without its variables]\n");
            running.push(line::output(line::Stream::Error, note));
        }
        let request = message::run(self.language, running.id, &job.code, &job.environment)
            .map_err(|error| error.to_string())?;
        self.start_driver().await.map_err(|error| error.to_string())?;
        let request = [self.told_now(), request].concat();
        let Some(driver) = &mut self.driver else { return Err("no driver is running".into()) };
        driver.rests = false;
        // Left over from before: a background process, or a fork's hooks.
        driver.discard();
        tokio::select! {
            written = driver.control.write(&request) => written.map_err(|error| error.to_string()),
            // The exit is found again, with its words, when the job is conducted.
            _ = driver.exit.wait() => Ok(()),
        }
    }

    /// Passes on what the driver says, until it is done.
    async fn conduct(&mut self, job: &Job, running: &mut Running) -> Outcome {
        let Some(driver) = &mut self.driver else { return Outcome::Lost("it has ended".into()) };
        let mut client = true;
        loop {
            // Nothing more is read before the client has taken what there is: that is the bound of our memory.
            let may_read = running.outbox.is_empty();
            tokio::select! {
                biased;
                order = self.orders.recv() => match order {
                    None => return Outcome::Removed,
                    Some(Order::Start(answer)) => drop(answer.send(Ok(()))),
                    Some(Order::Interrupt(job, answer)) => {
                        if job == running.id {
                            // It may have ended in this moment.
                            let _ = self.agent.children.signal_group(driver.pid, Signal::INT).await;
                        }
                        let _ = answer.send(());
                    }
                    Some(Order::Restart(Some(job), answer)) if job != running.id => drop(answer.send(Ok(()))),
                    Some(Order::Fork(identity, environment, answer)) => {
                        self.requests += 1;
                        let request = message::fork(self.language, self.requests, &identity, &environment);
                        let _ = answer.send(fork_while_busy(&self.agent, self.language, driver, &request).await);
                    }
                    Some(order) => return Outcome::Ordered(order),
                },
                permit = job.lines.reserve(), if client && !may_read => match (permit, running.outbox.pop_front()) {
                    (Ok(permit), Some(line)) => permit.send(line),
                    _ => client = false,
                },
                () = job.lines.closed(), if client => client = false,
                event = driver.control.next(), if may_read => match event {
                    Ok(Some(line)) => {
                        running.drain(driver);
                        match message::parse(self.language, &line) {
                            Ok(event) => if running.take(event) {
                                driver.rests = running.rests;
                                return Outcome::Done;
                            },
                            Err(garbled) => return Outcome::Lost(garbled.to_string()),
                        }
                    }
                    Ok(None) => return Outcome::Lost(lost(driver, running).await),
                    Err(error) => return Outcome::Lost(error.to_string()),
                },
                // Before the output, which others may fill without end after the driver is gone.
                _ = driver.exit.wait() => return Outcome::Lost(lost(driver, running).await),
                chunk = driver.output.read(CHUNK), if may_read && driver.output_open => {
                    driver.output_open = running.output(line::Stream::Output, chunk);
                }
                chunk = driver.error.read(CHUNK), if may_read && driver.error_open => {
                    driver.error_open = running.output(line::Stream::Error, chunk);
                }
            }
            if !client {
                running.outbox.clear();
                // In a fork it is the source that has the client, and the code runs on here without one.
                if !running.interrupted && !job.peer.lost_in_fork() {
                    running.interrupted = true;
                    // It may have ended in this moment.
                    let _ = self.agent.children.signal_group(driver.pid, Signal::INT).await;
                }
            }
        }
    }

    async fn conclude(&mut self, outcome: Outcome, running: &mut Running) -> Flow {
        match outcome {
            Outcome::Done => Flow::Continue,
            Outcome::Lost(how) => {
                self.end_driver().await;
                let value = format!(
                    "the interpreter ended ({how}): its variables are gone, the next execution starts a new one"
                );
                running.push(line::error("InterpreterEnded", &value, &value));
                Flow::Continue
            }
            Outcome::Ordered(order) => {
                let value = "the context was restarted or removed while this ran";
                running.push(line::error("ContextEnded", value, value));
                self.obey(order).await
            }
            Outcome::Removed => Flow::End,
        }
    }

    /// Tells an idle driver that it is in a fork, and waits for its hooks.
    async fn fork(&mut self, identity: &ForkIdentity, environment: &BTreeMap<String, String>) -> Vec<String> {
        let id = self.next_request();
        let Some(driver) = &mut self.driver else { return Vec::new() };
        let request = message::fork(self.language, id, identity, environment);
        let mut problems = Vec::new();
        let told = async {
            driver.control.write(&request).await.map_err(|error| error.to_string())?;
            loop {
                let line = tokio::select! {
                    line = driver.control.next() => line.map_err(|error| error.to_string())?,
                    exit = driver.exit.wait() => return Err(format!("the interpreter ended ({})", exit.describe())),
                    // Hooks may print, and must not block.
                    chunk = driver.output.read(CHUNK), if driver.output_open => {
                        driver.output_open = chunk.is_ok_and(|chunk| !chunk.is_empty());
                        continue;
                    }
                    chunk = driver.error.read(CHUNK), if driver.error_open => {
                        driver.error_open = chunk.is_ok_and(|chunk| !chunk.is_empty());
                        continue;
                    }
                };
                let Some(line) = line else { return Err("the interpreter closed its socket".to_owned()) };
                match message::parse(self.language, &line) {
                    Ok(Event::Done { id: done, .. }) if done == id => return Ok(()),
                    Ok(Event::Problem { message }) => problems.push(message),
                    Ok(_) => {}
                    Err(error) => return Err(error.to_string()),
                }
            }
        };
        match tokio::time::timeout(FORK_LIMIT, told).await {
            Ok(Ok(())) => {}
            Ok(Err(problem)) => problems.push(problem),
            Err(_) => problems.push(format!("its hooks took more than {} s", FORK_LIMIT.as_secs())),
        }
        problems
    }
}

/// Has the driver's generators reseeded at once; the request waits behind the running code.
async fn fork_while_busy(
    agent: &Agent,
    language: Language,
    driver: &mut Driver,
    request: &[u8],
) -> ForkOutcome {
    let mut problems = Vec::new();
    match (language, &mut driver.epoch) {
        // The whole group: processes that the code has forked have its generators, and its handler. Programs without a handler
        // ignore this signal. The driver may have ended in this moment.
        (Language::Python, _) => drop(agent.children.signal_group(driver.pid, Signal::URG).await),
        (_, Some(epoch)) => problems.extend(epoch.advance().err().map(|error| format!("reseeding: {error}"))),
        // A trap would make a shell's `wait` return early.
        (_, None) => {}
    }
    problems.extend(driver.control.queue(request).err().map(|error| error.to_string()));
    ForkOutcome { busy: true, rests: false, problems }
}

/// How the driver ended, after all that it printed.
async fn lost(driver: &mut Driver, running: &mut Running) -> String {
    let exit = driver.exit.wait().await;
    running.drain(driver);
    exit.describe()
}

/// Sends the rest of a job's lines. A task of its own: a client that reads slowly keeps no context from its next job.
async fn deliver(lines: mpsc::Sender<Bytes>, outbox: VecDeque<Bytes>) {
    for line in outbox {
        if lines.send(line).await.is_err() {
            return;
        }
    }
}
