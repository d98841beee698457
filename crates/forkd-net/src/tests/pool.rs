//! Many networks: taken, given back, found again, and nothing left of any.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::in_namespaces;
use super::world::{PORT, Reached, World};
use crate::plan::Slot;
use crate::{Counters, Egress, Network, Others, Policy, Pool, PoolSettings};

fn settings() -> PoolSettings {
    PoolSettings { ready: 4, ..PoolSettings::default() }
}

fn deny() -> Policy {
    Policy { egress: Egress::Deny, bandwidth: None }
}

/// Descriptors of this process.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Small in every run; as many as was asked for in `make soak`.
fn rounds() -> usize {
    if std::env::var_os("FORKD_SOAK").is_some_and(|value| value == "1") { 1000 } else { 30 }
}

const MOST_HELD: usize = 8;

#[test]
fn many_leases_leave_nothing() {
    in_namespaces("pool::soak");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "in namespaces of its own, by the test above"]
async fn soak() {
    let world = World::new().await;
    let (before, links) = (descriptors(), super::life::links().len());
    let (pool, recovered) =
        Pool::start(world.host.clone(), settings(), BTreeMap::new(), Others::Remove).await.unwrap();
    assert_eq!((recovered.networks.len(), recovered.swept.len()), (0, 0));
    let begun = Instant::now();
    let mut held: Vec<Network> = Vec::new();
    let mut slots = BTreeSet::new();
    for round in 0..rounds() {
        let network = pool.take(if round % 2 == 0 { Policy::default() } else { deny() }).await.unwrap();
        assert_eq!(network.counters().await.unwrap(), Counters::default());
        assert!(held.iter().all(|other| other.slot() != network.slot()), "a network has one sandbox");
        slots.insert(network.slot());
        held.push(network);
        if held.len() == MOST_HELD {
            pool.give_back(held.swap_remove(round % (MOST_HELD - 1)));
        }
    }
    held.into_iter().for_each(|network| pool.give_back(network));
    pool.settled().await;
    println!("{} networks in {} slots, {:?} in all", rounds(), slots.len(), begun.elapsed());
    let stats = pool.stats();
    let taken = stats.taken_new + stats.taken_reused;
    assert_eq!(taken, u64::try_from(rounds()).unwrap());
    assert_eq!(stats.not_reused, 0, "{stats:?}");
    assert!(settings().ready < MOST_HELD);
    let kept = MOST_HELD..=2 * MOST_HELD;
    assert!(kept.contains(&stats.ready), "as many wait as were held at once, and may come back: {stats:?}");
    assert_eq!(world.host.used().unwrap().len(), stats.ready);
    pool.stop().await.unwrap();
    assert_eq!(world.host.used().unwrap(), []);
    assert_eq!(super::life::links().len(), links);
    // Tasks that were ended let go of their sockets a little later.
    for _ in 0..100 {
        if descriptors() <= before {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    // The runtime's own, and what spawning threads has left open for a moment.
    assert!(descriptors() <= before + 3, "{} descriptors were {before}", descriptors());
}

#[test]
fn a_pool_survives_its_daemon() {
    in_namespaces("pool::recovery");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "in namespaces of its own, by the test above"]
async fn recovery() {
    let world = World::new().await;
    let (pool, _) =
        Pool::start(world.host.clone(), settings(), BTreeMap::new(), Others::Remove).await.unwrap();
    let (kept, lost) = (pool.take(Policy::default()).await.unwrap(), pool.take(deny()).await.unwrap());
    let guest = world.guest("guest", &kept);
    let (kept_slot, lost_slot) = (kept.slot(), lost.slot());
    pool.settled().await;
    // The daemon is killed: nothing is given back, and nobody remembers those that wait.
    drop((kept, lost, pool));
    let before = world.host.used().unwrap();
    assert_eq!(before.len(), 2 + settings().ready);

    // Whose they are cannot be read: all of them stay, no other sandbox gets one, and one that is known later is adopted.
    let (host, _) = world.again().await;
    let (pool, recovered) = Pool::start(host, settings(), BTreeMap::new(), Others::Keep).await.unwrap();
    assert!(recovered.swept.is_empty());
    let adopted = pool.adopt(kept_slot, Policy::default()).await.unwrap();
    assert!(matches!(guest.reach("9.9.9.9", PORT), Reached::Yes(_)));
    let other = pool.take(Policy::default()).await.unwrap();
    assert!(!before.contains(&other.slot()));
    pool.settled().await;
    drop((adopted, other, pool));
    let before = world.host.used().unwrap();
    assert!(before.contains(&lost_slot) && before.len() > 2 + settings().ready);

    let (host, _) = world.again().await;
    let gone = Slot::try_from(3999).unwrap();
    let live = BTreeMap::from([(kept_slot, Policy::default()), (gone, deny())]);
    let (pool, mut recovered) = Pool::start(host, settings(), live, Others::Remove).await.unwrap();
    assert_eq!(recovered.networks.keys().copied().collect::<Vec<_>>(), [kept_slot]);
    assert_eq!(recovered.lost.keys().copied().collect::<Vec<_>>(), [gone]);
    assert!(recovered.swept.contains(&lost_slot) && recovered.swept.len() == before.len() - 1);
    // The sandbox that lives did not notice, and obeys a new policy.
    assert!(matches!(guest.reach("9.9.9.9", PORT), Reached::Yes(_)));
    let network = recovered.networks.remove(&kept_slot).unwrap();
    network.change(deny()).await.unwrap();
    assert_eq!(guest.reach("9.9.9.9", PORT), Reached::Forbidden);
    drop(guest);
    pool.give_back(network);
    pool.settled().await;
    pool.stop().await.unwrap();
    assert_eq!(world.host.used().unwrap(), []);
}

#[test]
fn whoever_waits_no_more_takes_nothing() {
    in_namespaces("pool::cancelled");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "in namespaces of its own, by the test above"]
async fn cancelled() {
    let world = World::new().await;
    let none = PoolSettings { ready: 0, ..PoolSettings::default() };
    let (pool, _) = Pool::start(world.host.clone(), none, BTreeMap::new(), Others::Remove).await.unwrap();
    for milliseconds in [0, 1, 5, 20] {
        let limit = std::time::Duration::from_millis(milliseconds);
        if let Ok(network) = tokio::time::timeout(limit, pool.take(deny())).await {
            pool.give_back(network.unwrap());
        }
    }
    // What came too late is given back by itself.
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    let network = pool.take(Policy::default()).await.unwrap();
    pool.give_back(network);
    pool.settled().await;
    pool.stop().await.unwrap();
    assert_eq!(world.host.used().unwrap(), []);
}
