//! Daemons that are killed at any moment, under load: no VM is lost, orphaned or double, and nothing is left at the end.
//!
//! ```text
//!   load: threads that ask for this and that ──▶ kill -9 ──▶ start ──▶ check what is there against what was said
//!     ▲                                                                    │
//!     └────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! What was acknowledged must be there, with its data; what was asked for without an answer is either there as a whole or not
//! at all.

mod check;
/// The places are in builds for tests only, and so is this.
#[cfg(debug_assertions)]
mod faults;
mod load;
mod model;
mod random;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forkd_tests::engine::process::Failure;
use forkd_tests::engine::ticking;
use forkd_tests::scale;
use rustix::process::Signal;

use crate::network;
use crate::world::World;
use load::Load;
use model::Model;
use random::Random;

/// Clients at the same time.
const CLIENTS: u64 = 4;

#[test]
fn a_daemon_that_is_killed_under_load_loses_nothing() -> Result<(), Failure> {
    lose_nothing(World::with_guest(&ticking::elf(), &[])?, &[]).map(drop)
}

#[test]
fn a_daemon_that_is_killed_under_load_loses_no_network() -> Result<(), Failure> {
    network::alone("soak::with_networks")
}

#[test]
#[ignore = "alone, by the test above"]
fn with_networks() -> Result<(), Failure> {
    let mut world = lose_nothing(network::world_of(&ticking::elf())?, &network::OPTIONS)?;
    network::until_only_ready_ones(&world)?;
    world.end(Signal::TERM)?;
    assert_eq!(network::networks(), (vec![], vec![]));
    Ok(())
}

/// Kills it over and over. The world that is returned is empty.
fn lose_nothing(mut world: World, options: &[&str]) -> Result<World, Failure> {
    let mut random = Random::seeded()?;
    let model = Mutex::new(Model::with_snapshot("base", 0));
    for kill in 0..scale::count(5, 100) {
        let delay = Duration::from_millis(random.below(600));
        let (killed, socket) = (AtomicBool::new(false), world.socket());
        let clients: Vec<Load<'_>> = (0..CLIENTS)
            .map(|_| {
                let random = random.another();
                Load { socket: &socket, model: &model, killed: &killed, random, most: 10 }
            })
            .collect();
        std::thread::scope(|scope| -> Result<(), Failure> {
            let clients: Vec<_> = clients.into_iter().map(|client| scope.spawn(|| client.run())).collect();
            std::thread::sleep(delay);
            killed.store(true, Ordering::SeqCst);
            world.end(Signal::KILL)?;
            for client in clients {
                client.join().map_err(|_| "a client panicked")??;
            }
            Ok(())
        })?;
        world.start(options)?;
        let mut model = model.lock().map_err(|_| "a client panicked")?;
        let checked = check::check(&world, &mut model);
        checked.map_err(|error| {
            format!("after kill {kill}, FORKD_SEED={}: {error}\n{}", random.seed, world.log())
        })?;
    }
    let mut model = model.lock().map_err(|_| "a client panicked")?;
    check::empty(&mut world, &mut model, options)
        .map_err(|error| format!("at the end, FORKD_SEED={}: {error}\n{}", random.seed, world.log()))?;
    Ok(world)
}
