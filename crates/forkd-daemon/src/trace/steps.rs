//! The steps of what a request makes, as spans: one set for each sandbox, with the times that were taken on the way.
//!
//! ```text
//! POST /v1/sandboxes
//! ├─ branch                            if sandboxes are made of a sandbox
//! │   └─ turn, admit, files, …
//! └─ sandbox
//!     ├─ prepare, network, …, ready, promise
//!     └─ identity
//!         └─ identity.clock, …         as the agent says
//! ```

use std::borrow::Cow;
use std::time::{Duration, Instant};

use forkd_engine::{BranchStep, CreateStep, Created, Laps};

use super::{Recording, RequestTrace, SpanId, Value};

impl RequestTrace {
    /// Sandboxes were made.
    pub(crate) fn created(&self, created: &Created) {
        let Some(recording) = &self.recording else { return };
        if let Some(laps) = &created.branch_laps {
            self.branched(laps, created.branch_pause);
        }
        for (view, laps) in created.sandboxes.iter().zip(&created.laps) {
            recording.sandbox(view.id().as_str(), laps);
        }
    }

    /// A sandbox was branched, and paused for so long.
    pub(crate) fn branched(&self, laps: &Laps<BranchStep>, pause: Option<Duration>) {
        let Some(recording) = &self.recording else { return };
        let steps = laps.all().iter().map(|lap| (lap.step.name(), (lap.from, lap.from + lap.took)));
        let pause = pause.and_then(|pause| i64::try_from(pause.as_micros()).ok());
        let pause = pause.map(|pause| ("forkd.pause_us", Value::Number(pause)));
        recording.group("branch", pause.into_iter().collect(), steps.collect());
    }

    /// A snapshot was made, or as much of it as there is.
    pub(crate) fn made(&self, phases: Phases) {
        let Some(recording) = &self.recording else { return };
        recording.group("snapshot", Vec::new(), phases.finish());
    }
}

/// When something began and ended.
type Times = (Instant, Instant);

impl Recording {
    fn sandbox(&self, id: &str, laps: &Laps) {
        let laps = laps.all().iter().map(|lap| (lap.step, (lap.from, lap.from + lap.took)));
        let (inside, own): (Vec<_>, Vec<_>) =
            laps.partition(|(step, _)| matches!(step, CreateStep::Agent(_)));
        let id = vec![("forkd.sandbox_id", Value::Text(id.to_owned().into()))];
        let named = own.iter().map(|(step, times)| (step.name(), *times)).collect();
        let ids = self.group("sandbox", id, named);
        let identity = own.iter().zip(ids).find(|((step, _), _)| *step == CreateStep::Identity);
        let Some(((_, (_, end)), identity)) = identity else { return };
        for (step, (begun, ended)) in inside {
            // A guest is hostile, and its clock is its own.
            self.record(identity, step.name(), (begun.min(*end), ended.min(*end)), Vec::new());
        }
    }

    /// Steps one after another, below a span that lasts as long as all of them. Returns their ids.
    fn group(
        &self,
        name: &'static str,
        attributes: Vec<(&'static str, Value)>,
        steps: Vec<(impl Into<Cow<'static, str>>, Times)>,
    ) -> Vec<SpanId> {
        let (Some((_, (begun, _))), Some((_, (_, ended)))) = (steps.first(), steps.last()) else {
            return Vec::new();
        };
        let all = self.record(self.context.span_id, name, (*begun, *ended), attributes);
        steps.into_iter().map(|(name, times)| self.record(all, name, times, Vec::new())).collect()
    }
}

/// The phases of a snapshot that is being made: those that have names of their own. What the library prepares before is one, because
/// the names of its steps have callers' words in them.
#[derive(Debug)]
pub(crate) struct Phases {
    current: (&'static str, Instant),
    over: Vec<(&'static str, Times)>,
}

const PREPARE: &str = "prepare";
const PHASES: [&str; 4] = ["boot", "start", "freeze", "write"];

impl Phases {
    pub fn begin() -> Phases {
        Phases { current: (PREPARE, Instant::now()), over: Vec::new() }
    }

    pub fn next(&mut self, step: &str) {
        let Some(name) = PHASES.into_iter().find(|name| *name == step) else { return };
        let now = Instant::now();
        let (over, begun) = std::mem::replace(&mut self.current, (name, now));
        self.over.push((over, (begun, now)));
    }

    fn finish(self) -> Vec<(&'static str, Times)> {
        let Phases { current: (name, begun), mut over } = self;
        over.push((name, (begun, Instant::now())));
        over
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use forkd_proto::agent::identity::StepName;

    use super::super::tests::Kept;
    use super::super::{Span, SpanSink};
    use super::*;

    fn recorded(work: impl FnOnce(&RequestTrace)) -> Vec<Span> {
        let kept = Arc::new(Kept::default());
        let sink: Arc<dyn SpanSink> = kept.clone();
        work(&RequestTrace::begin(Some(&sink), None, "", Instant::now()));
        let spans = kept.spans.lock().unwrap().clone();
        assert!(spans.iter().all(|span| span.context.trace_id == [7; 16] && span.begun <= span.ended));
        spans
    }

    fn names(spans: &[Span]) -> Vec<&str> {
        spans.iter().map(|span| span.name.as_ref()).collect()
    }

    #[test]
    fn steps_of_a_sandbox_are_below_it_and_the_agents_below_its_identity() {
        let spans = recorded(|trace| {
            let mut laps = Laps::since(Instant::now());
            laps.end(CreateStep::Prepare);
            let ms = Duration::from_millis;
            laps.add([
                (CreateStep::Connect, ms(1)),
                (CreateStep::Identity, ms(5)),
                (CreateStep::Agent(StepName::Clock), ms(2)),
                (CreateStep::Agent(StepName::Hooks), ms(3_600_000)),
            ]);
            laps.end(CreateStep::Promise);
            trace.recording.as_ref().unwrap().sandbox("sb-1", &laps);
        });
        let [sandbox, prepare, connect, identity, promise, clock, hooks] = &spans[..] else {
            panic!("{spans:?}")
        };
        assert_eq!(
            names(&spans),
            ["sandbox", "prepare", "connect", "identity", "promise", "identity.clock", "identity.hooks"]
        );
        assert_eq!(sandbox.parent, Some(1u64.to_be_bytes()));
        assert_eq!(sandbox.attributes, [("forkd.sandbox_id", Value::Text("sb-1".into()))]);
        assert_eq!((sandbox.begun, sandbox.ended), (prepare.begun, promise.ended));
        for step in [prepare, connect, identity, promise] {
            assert_eq!(step.parent, Some(sandbox.context.span_id));
        }
        assert_eq!((prepare.ended, connect.ended), (connect.begun, identity.begun));
        for step in [clock, hooks] {
            assert_eq!(step.parent, Some(identity.context.span_id));
        }
        assert_eq!((clock.begun, hooks.begun), (identity.begun, clock.ended));
        assert_eq!(hooks.ended, identity.ended, "whatever the guest says");
    }

    #[test]
    fn steps_of_a_branch_are_below_it() {
        let spans = recorded(|trace| {
            let mut laps = Laps::since(Instant::now());
            laps.end(BranchStep::Turn);
            laps.end(BranchStep::Admit);
            trace.branched(&laps, Some(Duration::from_millis(16)));
        });
        assert_eq!(names(&spans), ["branch", "turn", "admit"]);
        assert_eq!(spans[0].attributes, [("forkd.pause_us", Value::Number(16_000))]);
        assert_eq!((spans[1].parent, spans[1].ended), (Some(spans[0].context.span_id), spans[2].begun));
    }

    #[test]
    fn phases_of_a_snapshot_have_names_of_ours_only() {
        let spans = recorded(|trace| {
            let mut phases = Phases::begin();
            for step in ["pulling registry.example/secret", "boot", "RUN echo secret", "start", "freeze"] {
                phases.next(step);
            }
            trace.made(phases);
        });
        assert_eq!(names(&spans), ["snapshot", "prepare", "boot", "start", "freeze"]);
        assert!(spans[1..].windows(2).all(|two| two[0].ended == two[1].begun));
    }

    #[test]
    fn nothing_is_recorded_where_nobody_asks() {
        RequestTrace::default().made(Phases::begin());
        let kept = Arc::new(Kept { drops: true, ..Kept::default() });
        let sink: Arc<dyn SpanSink> = kept.clone();
        RequestTrace::begin(Some(&sink), None, "", Instant::now()).made(Phases::begin());
        assert!(kept.spans.lock().unwrap().is_empty());
    }
}
