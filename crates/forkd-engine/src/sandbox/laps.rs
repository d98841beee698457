//! Where the time goes while a sandbox is made or branched: laps without a gap, each with the name of what was done in it.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use forkd_proto::agent::identity::StepName;

/// What is done in a lap while a sandbox is made, in this order. Some are done by every sandbox for itself, and some wait for the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CreateStep {
    /// From the request: the zygote is leased, names are taken.
    Prepare,
    /// A network of its own.
    Network,
    /// Its turn to write files.
    Turn,
    /// Its directory, sockets, disk layer and record.
    Files,
    Cgroup,
    /// The others are prepared, too.
    Prepared,
    /// Its turn to be forked and brought up.
    ForkTurn,
    /// The zygote's answer.
    Fork,
    /// Until the new process says that its VM runs.
    Running,
    /// A connection to the agent.
    Connect,
    /// How long a question takes.
    Ask,
    /// The identity, until the agent has answered. The next ones are parts of it.
    Identity,
    /// As the agent says.
    Agent(StepName),
    /// The others are ready, too.
    Ready,
    /// It is written down that it is there.
    Promise,
}

impl CreateStep {
    pub fn name(self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            CreateStep::Prepare => "prepare",
            CreateStep::Network => "network",
            CreateStep::Turn => "turn",
            CreateStep::Files => "files",
            CreateStep::Cgroup => "cgroup",
            CreateStep::Prepared => "prepared",
            CreateStep::ForkTurn => "fork_turn",
            CreateStep::Fork => "fork",
            CreateStep::Running => "running",
            CreateStep::Connect => "connect",
            CreateStep::Ask => "ask",
            CreateStep::Identity => "identity",
            CreateStep::Agent(step) => return Cow::Owned(format!("identity.{}", step.name())),
            CreateStep::Ready => "ready",
            CreateStep::Promise => "promise",
        })
    }
}

/// What is done in a lap while a sandbox is branched, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BranchStep {
    /// Its turn: the sandbox does one thing at a time.
    Turn,
    /// Its name, and room for its memory.
    Admit,
    /// Its directory, disk layers and record.
    Files,
    /// The VM process is given its page table, so that it looks at fewer pages.
    PageTable,
    /// The VM process's answer. The sandbox is paused for a part of it.
    Fork,
    /// Until the new process says that it can be forked from.
    Running,
    /// No process can write to its disk layers.
    Seal,
    /// It is written down that it is there.
    Promise,
}

impl BranchStep {
    pub fn name(self) -> &'static str {
        match self {
            BranchStep::Turn => "turn",
            BranchStep::Admit => "admit",
            BranchStep::Files => "files",
            BranchStep::PageTable => "page_table",
            BranchStep::Fork => "fork",
            BranchStep::Running => "running",
            BranchStep::Seal => "seal",
            BranchStep::Promise => "promise",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lap<Step = CreateStep> {
    pub step: Step,
    pub from: Instant,
    pub took: Duration,
}

/// A stopwatch of one sandbox.
#[derive(Debug, Clone)]
pub struct Laps<Step = CreateStep> {
    last: Instant,
    laps: Vec<Lap<Step>>,
}

impl<Step: Copy + PartialEq> Laps<Step> {
    pub fn since(begun: Instant) -> Laps<Step> {
        Laps { last: begun, laps: Vec::new() }
    }

    /// What was done until now, since the last lap.
    pub fn end(&mut self, step: Step) {
        let now = Instant::now();
        self.laps.push(Lap { step, from: self.last, took: now.duration_since(self.last) });
        self.last = now;
    }

    /// When a step was over.
    pub fn end_of(&self, step: Step) -> Option<Instant> {
        self.laps.iter().find(|lap| lap.step == step).map(|lap| lap.from + lap.took)
    }

    pub fn all(&self) -> &[Lap<Step>] {
        &self.laps
    }
}

impl Laps {
    /// What was done since the last lap, by the owner of these times. The next lap begins now.
    pub fn add(&mut self, steps: impl IntoIterator<Item = (CreateStep, Duration)>) {
        let mut from = self.last;
        for (step, took) in steps {
            self.laps.push(Lap { step, from, took });
            // The agent's steps are within the one before them.
            from += if step == CreateStep::Identity { Duration::ZERO } else { took };
        }
        self.last = Instant::now();
    }
}

/// How long sandboxes took for one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepTimes {
    pub step: CreateStep,
    /// In ascending order.
    pub took: Vec<Duration>,
}

/// The same step of all of them, in the order of the steps.
pub fn by_step<'a>(of_each: impl IntoIterator<Item = &'a Laps>) -> Vec<StepTimes> {
    let mut laps: Vec<_> = of_each.into_iter().flat_map(Laps::all).collect();
    laps.sort_by_key(|lap| (lap.step, lap.took));
    let groups = laps.chunk_by(|one, other| one.step == other.step);
    groups
        .filter_map(|group| {
            Some(StepTimes { step: group.first()?.step, took: group.iter().map(|lap| lap.took).collect() })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn laps_have_no_gap_but_those_of_the_agent() {
        let begun = Instant::now();
        let mut laps = Laps::since(begun);
        laps.end(CreateStep::Prepare);
        let ms = Duration::from_millis;
        let identity = [
            (CreateStep::Ask, ms(1)),
            (CreateStep::Identity, ms(9)),
            (CreateStep::Agent(StepName::Clock), ms(2)),
            (CreateStep::Agent(StepName::Hooks), ms(5)),
        ];
        laps.add(identity);
        let [prepare, ask, identity, clock, hooks] = *laps.all() else { panic!("{laps:?}") };
        assert_eq!(prepare.from, begun);
        assert_eq!(ask.from, prepare.from + prepare.took);
        assert_eq!((identity.from, clock.from), (ask.from + ms(1), ask.from + ms(1)));
        assert_eq!(hooks.from, clock.from + ms(2));

        assert_eq!(laps.end_of(CreateStep::Ask), Some(ask.from + ms(1)));
        assert_eq!(laps.end_of(CreateStep::Fork), None);

        let times = by_step([&laps, &laps]);
        assert_eq!(times.len(), 5);
        assert_eq!(times[2], StepTimes { step: CreateStep::Identity, took: vec![ms(9), ms(9)] });
        assert_eq!(times[4].step.name(), "identity.hooks");
    }
}
