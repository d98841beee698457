//! The table of contexts.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

use super::job::Job;
use super::language::Language;
use super::launch::{self, LaunchError};
use super::message::ForkIdentity;
use super::place;
use super::worker::{ForkOutcome, JobId, Order, Worker};
use crate::agent::Agent;

const MAX_CONTEXTS: usize = 256;
/// Executions that wait for their turn in one context.
const MAX_JOBS: usize = 64;

/// Who else can be asked for code.
#[derive(Debug, Default)]
pub struct Contexts {
    table: Mutex<BTreeMap<String, Context>>,
    entered: AtomicUsize,
}

/// A handle; its clones are the same context.
#[derive(Debug, Clone)]
pub struct Context {
    pub id: String,
    pub language: Language,
    pub directory: PathBuf,
    /// Its place in a list.
    place: usize,
    jobs: mpsc::Sender<Job>,
    orders: mpsc::Sender<Order>,
    activity: watch::Receiver<Option<JobId>>,
}

/// What became of code that was to be interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interrupted {
    /// It has ended, or none ran.
    Ended,
    /// It did not end in time, and went with its interpreter. Another one is there.
    Restarted,
}

#[derive(Debug, thiserror::Error)]
pub enum ContextError {
    #[error("Context {0} not found")]
    Unknown(String),
    #[error("there are {MAX_CONTEXTS} contexts already: remove one")]
    TooMany,
    #[error("{MAX_JOBS} executions wait for this context already")]
    Busy,
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error(transparent)]
    Place(#[from] place::PlaceError),
}

/// What became of a fork in all contexts.
#[derive(Debug, Default)]
pub struct Forked {
    /// The contexts in which code was running.
    pub busy: Vec<String>,
    /// Those that rest.
    pub resting: Vec<String>,
    /// What went wrong, with the context's name.
    pub problems: Vec<String>,
}

impl Contexts {
    /// A context that was made.
    pub fn find(&self, id: &str) -> Result<Context, ContextError> {
        let unknown = || ContextError::Unknown(id.chars().take(100).collect());
        self.lock().get(id).cloned().ok_or_else(unknown)
    }

    /// The oldest first.
    pub fn list(&self) -> Vec<Context> {
        let mut contexts: Vec<Context> = self.lock().values().cloned().collect();
        contexts.sort_by_key(|context| context.place);
        contexts
    }

    /// Enters the contexts that E2B's list has before anybody has used them: Python's default one, and JavaScript's where there is
    /// Node.js.
    pub async fn enter_defaults(&self, agent: &Arc<Agent>) -> Result<(), ContextError> {
        for language in Language::LISTED {
            let is_there = language == Language::DEFAULT
                || self.find(language.default_context()).is_ok()
                || place::has_program(agent, launch::program(language)).await?;
            if is_there {
                match self.default_of(agent, language).await {
                    Ok(_) | Err(ContextError::TooMany) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// A new context with a driver that runs.
    pub async fn create(
        &self,
        agent: &Arc<Agent>,
        language: Language,
        directory: Option<String>,
    ) -> Result<Context, ContextError> {
        let directory = place::directory(agent, directory).await?;
        let context = self.insert(agent, &identifier(), language, directory)?;
        match context.order(Order::Start).await {
            Ok(Ok(())) => Ok(context),
            Ok(Err(error)) => {
                self.lock().remove(&context.id);
                Err(error.into())
            }
            Err(gone) => Err(gone),
        }
    }

    /// The context of executions that name none. It starts with the first of them.
    pub async fn default_of(&self, agent: &Arc<Agent>, language: Language) -> Result<Context, ContextError> {
        self.named(agent, language.default_context(), language).await
    }

    /// A context by its id. Default ones exist without anybody having made them.
    pub async fn get(&self, agent: &Arc<Agent>, id: &str) -> Result<Context, ContextError> {
        match Language::of_default_context(id) {
            Some(language) => self.default_of(agent, language).await,
            None => self.find(id),
        }
    }

    /// A context by a name of the caller's, made when it is not there.
    pub async fn named(
        &self,
        agent: &Arc<Agent>,
        id: &str,
        language: Language,
    ) -> Result<Context, ContextError> {
        if let Ok(context) = self.find(id) {
            return Ok(context);
        }
        let directory = place::directory(agent, None).await?;
        self.insert(agent, id, language, directory)
    }

    pub async fn remove(&self, id: &str) -> Result<(), ContextError> {
        let context = self.find(id)?;
        context.order(Order::Remove).await?;
        self.lock().remove(id);
        Ok(())
    }

    /// Ends all drivers, for the end of everything.
    pub async fn remove_all(&self) {
        for context in self.list() {
            // One that ended meanwhile is as good.
            let _ = self.remove(&context.id).await;
        }
    }

    /// Tells every warm interpreter that it is in a fork. All at once: each may run hooks.
    pub async fn fork(&self, identity: &ForkIdentity, environment: &BTreeMap<String, String>) -> Forked {
        let mut answers = Vec::new();
        for context in self.list() {
            let (sender, receiver) = oneshot::channel();
            let order = Order::Fork(identity.clone(), environment.clone(), sender);
            if context.orders.send(order).await.is_ok() {
                answers.push((context.id, receiver));
            }
        }
        let mut forked = Forked::default();
        for (context, answer) in answers {
            // A context that ended has nothing to reseed.
            let ForkOutcome { busy, rests, problems } = answer.await.unwrap_or_default();
            forked.problems.extend(problems.iter().map(|problem| format!("context {context}: {problem}")));
            if busy {
                forked.busy.push(context);
            } else if rests {
                forked.resting.push(context);
            }
        }
        forked
    }

    /// Enters a context, or finds the one that another task entered meanwhile.
    fn insert(
        &self,
        agent: &Arc<Agent>,
        id: &str,
        language: Language,
        directory: PathBuf,
    ) -> Result<Context, ContextError> {
        let mut table = self.lock();
        if let Some(context) = table.get(id) {
            return Ok(context.clone());
        }
        if table.len() >= MAX_CONTEXTS {
            return Err(ContextError::TooMany);
        }
        let (jobs, job_receiver) = mpsc::channel(MAX_JOBS);
        let (orders, order_receiver) = mpsc::channel(MAX_JOBS);
        let (running, activity) = watch::channel(None);
        let worker = Worker::new(
            Arc::clone(agent),
            language,
            directory.clone(),
            job_receiver,
            order_receiver,
            running,
        );
        tokio::spawn(worker.run());
        let place = self.place(id);
        let context = Context { id: id.to_owned(), language, directory, place, jobs, orders, activity };
        table.insert(id.to_owned(), context.clone());
        Ok(context)
    }

    /// Default contexts that are entered for a list are older than all others.
    fn place(&self, id: &str) -> usize {
        let listed = Language::LISTED.iter().position(|language| language.default_context() == id);
        listed.unwrap_or_else(|| Language::LISTED.len() + self.entered.fetch_add(1, Ordering::Relaxed))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Context>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Context {
    /// Queues an execution.
    pub fn submit(&self, job: Job) -> Result<(), ContextError> {
        self.jobs.try_send(job).map_err(|refused| match refused {
            mpsc::error::TrySendError::Full(_) => ContextError::Busy,
            mpsc::error::TrySendError::Closed(_) => ContextError::Unknown(self.id.clone()),
        })
    }

    /// Whether code runs in it.
    pub fn is_busy(&self) -> bool {
        self.activity.borrow().is_some()
    }

    pub async fn restart(&self) -> Result<(), ContextError> {
        Ok(self.order(|answer| Order::Restart(None, answer)).await??)
    }

    /// Interrupts the code that runs now, as Ctrl-C does. Code that has not ended after `grace` is ended with its interpreter.
    pub async fn interrupt(&self, grace: Duration) -> Result<Interrupted, ContextError> {
        let mut activity = self.activity.clone();
        let Some(job) = *activity.borrow_and_update() else { return Ok(Interrupted::Ended) };
        self.order(|answer| Order::Interrupt(job, answer)).await?;
        let ended = activity.wait_for(|running| *running != Some(job));
        if tokio::time::timeout(grace, ended).await.is_ok() {
            return Ok(Interrupted::Ended);
        }
        self.order(|answer| Order::Restart(Some(job), answer)).await??;
        Ok(Interrupted::Restarted)
    }

    async fn order<T>(&self, make: impl FnOnce(oneshot::Sender<T>) -> Order) -> Result<T, ContextError> {
        let (sender, receiver) = oneshot::channel();
        let gone = || ContextError::Unknown(self.id.clone());
        self.orders.send(make(sender)).await.map_err(|_| gone())?;
        receiver.await.map_err(|_| gone())
    }
}

/// A random UUID, as E2B's ids are.
fn identifier() -> String {
    let mut bytes = [0u8; 16];
    // It can only fail on kernels without the call. An id that is taken finds the other context, which its caller may use.
    let _ = getrandom::fill(&mut bytes);
    uuid::Builder::from_random_bytes(bytes).into_uuid().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_version_4_uuids() {
        let one = identifier();
        assert_ne!(one, identifier());
        let groups: Vec<&str> = one.split('-').collect();
        assert_eq!(groups.iter().map(|group| group.len()).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
        assert!(groups[2].starts_with('4') && "89ab".contains(&groups[3][..1]), "{one}");
    }
}
