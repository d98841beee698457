//! Daemons that are killed at chosen places: between the steps of everything that has several.

use std::os::unix::process::ExitStatusExt;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use forkd_engine::fault::PLACES;
use forkd_tests::engine::process::Failure;
use forkd_tests::engine::ticking;
use rustix::process::Signal;

use super::check;
use super::load::Load;
use super::model::Model;
use super::random::Random;
use crate::client;
use crate::world::World;

/// Snapshots that are left for the next place.
const FEW: usize = 8;

struct Faults {
    world: World,
    model: Mutex<Model>,
    random: Random,
}

impl Faults {
    /// Does one thing as a client that knows that the daemon may be killed.
    fn load(&mut self, work: impl FnOnce(&mut Load<'_>) -> Result<bool, Failure>) -> Result<bool, Failure> {
        let killed = AtomicBool::new(true);
        let socket = self.world.socket();
        let random = self.random.another();
        work(&mut Load { socket: &socket, model: &self.model, killed: &killed, random, most: 2 })
    }

    /// Two sandboxes that keep something, one of them with a branch on disk.
    fn fill(&mut self) -> Result<(), Failure> {
        // One that others are made of is refused.
        let mut tries = 0..200;
        while self.model.lock().map_err(|_| "poisoned")?.snapshots.len() > FEW && tries.next().is_some() {
            self.load(|load| load.remove_snapshot())?;
        }
        while self.model.lock().map_err(|_| "poisoned")?.sandboxes.len() < 2 {
            self.load(|load| load.create())?;
        }
        self.load(|load| load.keep())?;
        while self.model.lock().map_err(|_| "poisoned")?.sandboxes.values().all(|it| it.branches.is_empty()) {
            self.load(|load| load.branch())?;
        }
        self.load(|load| load.keep())?;
        let durable = |world: &World| {
            Ok(world.snapshots()?.iter().all(|it| it.status == forkd_api::snapshot::SnapshotStatus::Ready))
        };
        self.world.until("all of it is on disk", durable)
    }

    fn die_at(&mut self, place: &str) -> Result<(), Failure> {
        let verb = place.split('.').next().unwrap_or_default();
        if verb == "evict" {
            self.load(|load| load.create())?;
        }
        if verb == "load" {
            // Nothing is loaded when the daemon comes.
            self.world.end(Signal::KILL)?;
            self.world.start(&["--zygote-memory", "0"])?;
            let none = |world: &World| Ok(world.snapshots()?.iter().all(|snapshot| !snapshot.loaded));
            self.world.until("nothing is loaded", none)?;
        }
        self.world.end(Signal::KILL)?;
        let options: &[&str] = if verb == "evict" { &["--zygote-memory", "0"] } else { &[] };
        self.world.launch(options, &[("FORKD_FAULT", place)])?;
        if verb != "evict" {
            let answers = |world: &World| Ok(client::send(&world.socket(), "GET /healthz", "", None).is_ok());
            self.world.until("the daemon answers", answers)?;
        }
        match (verb, place) {
            ("create" | "load", _) => drop(self.load(|load| load.create())?),
            ("branch" | "persist", _) => drop(self.load(|load| load.branch())?),
            ("merge", _) => {
                // There are two sandboxes and more, and each has layers of its own.
                let mut tries = 0..200;
                while tries.next().is_some() {
                    self.load(|load| load.keep())?;
                    if !self.load(|load| load.branch())? {
                        break;
                    }
                }
            }
            ("rollback", _) => drop(self.load(|load| load.roll_back())?),
            (_, "remove.ended") => drop(self.load(|load| load.remove())?),
            (_, "remove.files") => {
                // One that others are made of is refused.
                let mut tries = 0..100;
                while tries.next().is_some() && self.load(|load| load.remove_snapshot())? {}
            }
            ("evict", _) => {}
            _ => return Err(format!("nobody knows how to get to {place}").into()),
        }
        let status = self.world.ended_itself()?;
        assert_eq!(status.signal(), Some(Signal::KILL.as_raw()), "{place}: {status}");
        Ok(())
    }
}

#[test]
fn a_daemon_that_dies_between_two_steps_loses_nothing() -> Result<(), Failure> {
    let world = World::with_guest(&ticking::elf(), &[])?;
    let model = Mutex::new(Model::with_snapshot("base", 0));
    let mut faults = Faults { world, model, random: Random::seeded()? };
    // Those of a pause together with an expiry, which E2B's clients ask for, are in e2b.rs; those of learning in prefault.rs, those of
    // snapshots that arrive in hub.rs.
    let is_elsewhere =
        |place: &str| ["change.", "prefault.", "arrive.", "undo."].iter().any(|verb| place.starts_with(verb));
    for place in PLACES.into_iter().filter(|place| !is_elsewhere(place)) {
        let told = |error: Failure| format!("{place}: {error}");
        faults.fill().map_err(told)?;
        faults.die_at(place).map_err(told)?;
        faults.world.start(&[])?;
        let mut model = faults.model.lock().map_err(|_| "poisoned")?;
        let checked = check::check(&faults.world, &mut model);
        checked.map_err(|error| format!("{place}: {error}\n{}", faults.world.log()))?;
    }
    let Faults { mut world, model, .. } = faults;
    let mut model = model.lock().map_err(|_| "poisoned")?;
    check::empty(&mut world, &mut model, &[])
}
