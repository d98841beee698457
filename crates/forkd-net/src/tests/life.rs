//! From making to release, and what stays without a release.

use super::in_namespaces;
use super::world::{PORT, Reached, World};
use crate::netlink::route::Links;
use crate::plan::Slot;
use crate::{Lease, NetError, Policy, TransientLease};

fn slot(number: u16) -> Slot {
    Slot::try_from(number).unwrap()
}

/// Links of the host that are forkd's.
pub fn links() -> Vec<String> {
    let links = Links::open().unwrap().list().unwrap();
    links.into_iter().map(|(_, name)| name).filter(|name| name.starts_with("forkd")).collect()
}

#[test]
fn a_lease_leaves_nothing() {
    in_namespaces("life::release");
}

#[tokio::test]
#[ignore = "in namespaces of its own, by the test above"]
async fn release() {
    let world = World::new().await;
    let lease = Lease::make(&world.host, slot(5), Policy::default()).await.unwrap();
    assert_eq!(links(), ["forkd0005"]);
    assert_eq!(world.host.used().unwrap(), [slot(5)]);
    let taken = Lease::make(&world.host, slot(5), Policy::default()).await;
    assert!(matches!(taken, Err(NetError::Make(taken, _)) if taken == slot(5)));
    assert_eq!(links(), ["forkd0005"], "a slot that is taken stays whose it is");
    // A VM that lives a little longer keeps nothing alive.
    let tap = lease.tap().unwrap().try_clone_to_owned().unwrap();
    lease.release().await.unwrap();
    assert_eq!(links(), [""; 0]);
    assert_eq!(world.host.used().unwrap(), []);
    drop(tap);
    let again = Lease::make(&world.host, slot(5), Policy::default()).await.unwrap();
    again.release().await.unwrap();
}

#[test]
fn a_lease_is_found_again() {
    in_namespaces("life::adoption");
}

#[tokio::test]
#[ignore = "in namespaces of its own, by the test above"]
async fn adoption() {
    let world = World::new().await;
    let lease = Lease::make(&world.host, slot(9), Policy::default()).await.unwrap();
    let guest = world.guest("guest", &lease);
    assert!(matches!(guest.reach("9.9.9.9", PORT), Reached::Yes(_)));
    let before = lease.counters().await.unwrap();
    // As after the end of the daemon: the VM has the tap, nobody has the rest.
    drop(lease);
    let (host, _) = world.again().await;
    let lease = Lease::adopt(&host, slot(9), Policy::default()).await.unwrap();
    assert!(lease.counters().await.unwrap().sent.packets >= before.sent.packets, "counters began anew");
    assert!(matches!(guest.reach("9.9.9.9", PORT), Reached::Yes(_)));
    drop(guest);
    lease.release().await.unwrap();
    assert_eq!(world.host.used().unwrap(), []);
    assert!(Lease::adopt(&host, slot(9), Policy::default()).await.is_err());
}

#[test]
fn what_nobody_holds_is_swept() {
    in_namespaces("life::sweep");
}

#[tokio::test]
#[ignore = "in namespaces of its own, by the test above"]
async fn sweep() {
    let world = World::new().await;
    for number in [1, 2, 3, 4001] {
        std::mem::forget(Lease::make(&world.host, slot(number), Policy::default()).await.unwrap());
    }
    // Somebody was killed halfway: a name without a namespace, and a link without a name.
    std::fs::write(world.host.namespaces.path("forkd-0004"), "").unwrap();
    world.host.namespaces.remove("forkd-0003").unwrap();
    let swept = world.host.sweep([slot(2)].into()).await.unwrap();
    assert_eq!(swept, [slot(1), slot(3), slot(4)]);
    assert_eq!(world.host.used().unwrap(), [slot(2), slot(4001)]);
    assert_eq!(links(), ["forkd0002", "forkd4001"]);
}

#[test]
fn transient_networks_end_with_their_holders() {
    in_namespaces("life::transient");
}

#[tokio::test]
#[ignore = "in namespaces of its own, by the test above"]
async fn transient() {
    let world = World::new().await;
    let one = TransientLease::take(&world.host, Policy::default()).await.unwrap();
    let two = TransientLease::take(&world.host, Policy::default()).await.unwrap();
    assert_eq!((one.slot(), two.slot()), (slot(4000), slot(4001)));
    drop(one);
    assert_eq!(world.host.used().unwrap(), [slot(4001)]);
    // Whoever was killed has left a network without a lock.
    let lost = Lease::make(&world.host, slot(4000), Policy::default()).await.unwrap();
    std::mem::forget(lost);
    let three = TransientLease::take(&world.host, Policy::default()).await.unwrap();
    assert_eq!(three.slot(), slot(4000));
    drop((two, three));
    assert_eq!((world.host.used().unwrap(), links()), (vec![], vec![]));
}
