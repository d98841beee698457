//! One sandbox's network, from making to release.
//!
//! A lease outlives the process that made it, as the VM does that uses it: its tap is gone when the VM's descriptor is, and
//! everything else stays until it is released, or cleared by a daemon that finds its slot unused.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::drops::{Notice, Notices};
use crate::error::{NetError, blocking};
use crate::host::{Host, forward_from};
use crate::netlink::NetlinkSocket;
use crate::netlink::route::{End, Links};
use crate::nft::{Counter, Family, Transaction, counters, sets};
use crate::plan::{
    GATEWAY_MAC, GATEWAY4, GATEWAY6, GUEST_MAC, GUEST4, GUEST6, PREFIX4, PREFIX6, Slot, TAP, UPLINK,
};
use crate::policy::Policy;
use crate::resolver::{Resolver, Sockets, Upstream};
use crate::rules::TABLE;
use crate::rules::lease::{self as rules, OVER_LIMIT, RECEIVED, REFUSED, SENT, SPOOFED};
use crate::{sysctl, tap};

/// A sandbox's network.
#[derive(Debug)]
pub struct Lease {
    pub(crate) host: Arc<Host>,
    pub(crate) slot: Slot,
    /// `None` in a process that has found the lease again: its VM has the tap.
    pub(crate) tap: Option<OwnedFd>,
    pub(crate) inside: Arc<Inside>,
    pub(crate) tenancy: Tenancy,
    /// How many sandboxes have had the namespace before.
    pub(crate) tenants_before: u32,
}

/// One use of a network. No other has the same, not even of the same slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tenancy(u64);

impl Tenancy {
    pub(crate) fn new() -> Tenancy {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Tenancy(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A way to a lease's rules that does not own it. Of no use when the lease is released, or reset for another sandbox.
#[derive(Debug, Clone)]
pub struct Access(Arc<Inside>);

/// Sockets to the kernel that belong to the namespace.
#[derive(Debug)]
pub(crate) struct Inside {
    pub(crate) links: Links,
    pub(crate) netfilter: NetlinkSocket,
    rules: Mutex<Rules>,
}

#[derive(Debug, Clone)]
struct Rules {
    policy: Policy,
    generation: u32,
    /// The rules are another's from now on.
    released: bool,
}

/// What a sandbox has sent and received so far, and what was dropped of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    pub sent: Counter,
    pub received: Counter,
    /// Forbidden by the policy.
    pub refused: Counter,
    /// Beyond the bandwidth, or with more connections than a sandbox may have.
    pub over_limit: Counter,
    /// With addresses that are not the guest's.
    pub spoofed: Counter,
}

impl Lease {
    /// Makes the network of a free slot.
    pub async fn make(host: &Arc<Host>, slot: Slot, policy: Policy) -> Result<Lease, NetError> {
        let host = Arc::clone(host);
        blocking(move || Lease::make_now(&host, slot, policy)).await
    }

    pub(crate) fn make_now(host: &Arc<Host>, slot: Slot, policy: Policy) -> Result<Lease, NetError> {
        policy.check()?;
        let made = make(host, slot, policy);
        made.map_err(|error| {
            // A name that existed before belongs to another daemon.
            let taken = matches!(&error, NetError::Kernel { source, .. } if source.kind() == io::ErrorKind::AlreadyExists);
            if !taken {
                // The first failure is the one that counts.
                let _ = host.clear(slot);
            }
            NetError::Make(slot, Box::new(error))
        })
    }

    /// Finds the network of a slot again that a live sandbox has. From now on its policy is this one.
    pub async fn adopt(host: &Arc<Host>, slot: Slot, policy: Policy) -> Result<Lease, NetError> {
        let host = Arc::clone(host);
        blocking(move || {
            policy.check()?;
            let failed = || NetError::when("find the sandbox's namespace again");
            let namespace = host.namespaces.open(&slot.namespace()).map_err(failed())?;
            let open = || Ok((Links::open()?, NetlinkSocket::netfilter()?));
            let (links, netfilter) = namespace.run(open).map_err(failed())?;
            let inside = Arc::new(Inside::new(links, netfilter, policy.clone(), UNMARKED));
            inside.change(policy)?;
            Ok(Lease { host, slot, tap: None, inside, tenancy: Tenancy::new(), tenants_before: 0 })
        })
        .await
    }

    pub fn slot(&self) -> Slot {
        self.slot
    }

    /// The tap, for the VM process.
    pub fn tap(&self) -> Option<BorrowedFd<'_>> {
        self.tap.as_ref().map(AsFd::as_fd)
    }

    /// Of what is told of this network, only what has the same tenancy is of this sandbox.
    pub fn tenancy(&self) -> Tenancy {
        self.tenancy
    }

    /// Whether another sandbox has had the namespace before, and it was reset since.
    pub fn is_reused(&self) -> bool {
        self.tenants_before > 0
    }

    pub fn policy(&self) -> Policy {
        self.inside.policy()
    }

    pub fn access(&self) -> Access {
        Access(Arc::clone(&self.inside))
    }

    /// Another policy, from one packet to the next.
    pub async fn change(&self, policy: Policy) -> Result<(), NetError> {
        self.access().change(policy).await
    }

    pub async fn counters(&self) -> Result<Counters, NetError> {
        self.access().counters().await
    }

    /// Answers the sandbox's questions for names, as long as the resolver is kept, in the runtime that this is called in.
    /// What is dropped is told, if anybody wants to know.
    pub async fn resolver(
        &self,
        upstream: Upstream,
        notices: Option<mpsc::Sender<Notice>>,
    ) -> Result<Resolver, NetError> {
        let (host, slot) = (Arc::clone(&self.host), self.slot);
        let failed = || NetError::when("listen for questions");
        let sockets = blocking(move || {
            let namespace = host.namespaces.open(&slot.namespace()).map_err(failed())?;
            Sockets::open(&namespace, host.ipv6).map_err(failed())
        })
        .await?;
        self.answer(sockets, upstream, notices)
    }

    /// The same with sockets that were opened in the lease's namespace.
    pub(crate) fn answer(
        &self,
        sockets: Sockets,
        upstream: Upstream,
        notices: Option<mpsc::Sender<Notice>>,
    ) -> Result<Resolver, NetError> {
        let notices = Notices::new(self.slot, self.tenancy, notices);
        let resolver = Resolver::start(sockets, Arc::clone(&self.inside), upstream, notices);
        resolver.map_err(NetError::when("listen for questions"))
    }

    /// Removes the network. A VM that still has the tap has a tap that leads nowhere.
    pub async fn release(self) -> Result<(), NetError> {
        blocking(move || self.release_now()).await
    }

    /// Lets go of everything that keeps the namespace alive. The tap goes with the namespace, and with those of others at once:
    /// its automatic removal, with its last descriptor, takes the kernel tens of milliseconds.
    pub(crate) fn leave(self) {
        if let Some(tap) = &self.tap {
            // Otherwise it goes now.
            let _ = tap::set_persistent(tap.as_fd(), true);
        }
    }

    pub(crate) fn release_now(&self) -> Result<(), NetError> {
        self.inside.links.remove(TAP).map_err(NetError::when("remove a tap"))?;
        self.host.clear(self.slot)
    }
}

impl Access {
    #[cfg(test)]
    pub(crate) fn inside(&self) -> &Inside {
        &self.0
    }

    pub fn policy(&self) -> Policy {
        self.0.policy()
    }

    /// Another policy, from one packet to the next.
    pub async fn change(&self, policy: Policy) -> Result<(), NetError> {
        let inside = Arc::clone(&self.0);
        blocking(move || {
            policy.check()?;
            inside.change(policy)
        })
        .await
    }

    pub async fn counters(&self) -> Result<Counters, NetError> {
        let inside = Arc::clone(&self.0);
        blocking(move || {
            let counters = inside.counters().map_err(NetError::when("read the counters"))?;
            // Looked at afterwards: they were read before anybody else could have them.
            inside.rules().check()?;
            Ok(counters)
        })
        .await
    }
}

impl Rules {
    fn check(&self) -> Result<(), NetError> {
        if self.released { Err(NetError::Released) } else { Ok(()) }
    }
}

impl Inside {
    pub(crate) fn new(links: Links, netfilter: NetlinkSocket, policy: Policy, generation: u32) -> Inside {
        let rules = Mutex::new(Rules { policy, generation, released: false });
        Inside { links, netfilter, rules }
    }

    fn rules(&self) -> MutexGuard<'_, Rules> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn policy(&self) -> Policy {
        self.rules().policy.clone()
    }

    /// The owner of this can neither read nor change the rules any more. What was on its way to the kernel is there.
    pub(crate) fn release(&self) {
        self.rules().released = true;
    }

    /// A generation that none of its connections is marked with.
    pub(crate) fn other_generation(&self) -> io::Result<u32> {
        let old = self.rules().generation;
        loop {
            let new = generation()?;
            if new != old {
                return Ok(new);
            }
        }
    }

    fn change(&self, policy: Policy) -> Result<(), NetError> {
        let mut rules = self.rules();
        rules.check()?;
        // What was just found again may have any rules.
        if rules.generation != UNMARKED && rules.policy.egress == policy.egress {
            rules::change_bandwidth(&policy, rules.generation).commit(&self.netfilter)?;
            rules.policy = policy;
            return Ok(());
        }
        let old = sets(&self.netfilter, Family::Inet, TABLE).map_err(NetError::when("read the rules"))?;
        let generation = generation().map_err(NetError::when("get random numbers"))?;
        rules::change(&policy, generation, &old).commit(&self.netfilter)?;
        *rules = Rules { policy, generation, released: false };
        Ok(())
    }

    /// Opens addresses for entries of the policy, each for some time. Nothing is opened for a policy that is no more.
    pub(crate) fn open(
        &self,
        policy: &Policy,
        entries: &[usize],
        addresses: &[(IpAddr, Duration)],
    ) -> Result<bool, NetError> {
        let rules = self.rules();
        if rules.released || rules.policy != *policy {
            return Ok(false);
        }
        let mut transaction = Transaction::new(Family::Inet, TABLE);
        for (address, lifetime) in addresses {
            for entry in entries {
                let set = rules::set_name(rules.generation, *entry, address.is_ipv4());
                transaction = transaction.add_element(&set, *address, *lifetime);
            }
        }
        transaction.commit(&self.netfilter)?;
        Ok(true)
    }

    pub(crate) fn counters(&self) -> io::Result<Counters> {
        let inet = counters(&self.netfilter, Family::Inet, TABLE)?;
        let guard = counters(&self.netfilter, Family::Netdev, TABLE)?;
        let of = |name: &str| inet.get(name).copied().unwrap_or_default();
        Ok(Counters {
            sent: of(SENT),
            received: of(RECEIVED),
            refused: of(REFUSED),
            over_limit: of(OVER_LIMIT),
            spoofed: guard.get(SPOOFED).copied().unwrap_or_default(),
        })
    }
}

/// The mark of an unmarked connection, which is no generation's.
const UNMARKED: u32 = 0;

/// None is [`UNMARKED`].
fn generation() -> io::Result<u32> {
    Ok(getrandom::u32()? | 1)
}

/// Removes both ends of the calling thread's namespace.
pub(crate) fn remove_links() -> io::Result<()> {
    let links = Links::open()?;
    links.remove(TAP)?;
    links.remove(UPLINK)?;
    Ok(())
}

/// The recipe: namespace and tap, veth, addresses and routes, rules; at last everything is up.
fn make(host: &Arc<Host>, slot: Slot, policy: Policy) -> Result<Lease, NetError> {
    let ipv6 = host.ipv6;
    let created = host.namespaces.create(&slot.namespace(), |_| {
        prepare_inside(ipv6)?;
        let tap = tap::open(TAP)?;
        Ok((tap, Links::open()?, NetlinkSocket::netfilter()?))
    });
    let (namespace, (tap, inside, netfilter)) = created.map_err(NetError::when("make a namespace"))?;
    let outside = Links::open().map_err(NetError::when("talk to the kernel"))?;
    let (here, there) = (
        End { name: slot.link(), mac: slot.host_mac() },
        End { name: UPLINK.into(), mac: slot.uplink_mac() },
    );
    outside.add_veth(&here, &there, namespace.as_fd()).map_err(NetError::when("make a veth"))?;
    let generation = generation().map_err(NetError::when("get random numbers"))?;
    rules::guard().commit(&netfilter)?;
    rules::table(rules::fragments(), &policy, generation).commit(&netfilter)?;
    connect_tap(ipv6, &inside).map_err(NetError::when("set up the tap"))?;
    connect(slot, ipv6, &outside, &inside).map_err(NetError::when("set up the links"))?;
    forward_from(&slot.link(), ipv6).map_err(NetError::when("turn on forwarding"))?;
    let inside = Arc::new(Inside::new(inside, netfilter, policy, generation));
    let tenancy = Tenancy::new();
    Ok(Lease { host: Arc::clone(host), slot, tap: Some(tap), inside, tenancy, tenants_before: 0 })
}

/// In the new namespace, before there is any link that these settings would not reach.
fn prepare_inside(ipv6: bool) -> io::Result<()> {
    sysctl::write("ipv4/ip_forward", "1")?;
    // The guest is the only one who is told of refusals, and it should hear of each. The limit a second for all stays.
    sysctl::write("ipv4/icmp_ratelimit", "0")?;
    // How fast one guest reads the resolver's answers over TCP is nothing that another's connections begin with.
    sysctl::write("ipv4/tcp_no_metrics_save", "1")?;
    if ipv6 {
        for (setting, value) in [
            ("ipv6/icmp/ratelimit", "0"),
            ("ipv6/conf/all/disable_ipv6", "0"),
            ("ipv6/conf/default/disable_ipv6", "0"),
            ("ipv6/conf/all/forwarding", "1"),
            // Only a hostile guest announces anything here.
            ("ipv6/conf/default/accept_ra", "0"),
            ("ipv6/conf/default/accept_redirects", "0"),
        ] {
            sysctl::write(setting, value)?;
        }
    }
    Ok(())
}

/// The guest's side: who has which address is known, so no request for it is sent.
pub(crate) fn connect_tap(ipv6: bool, inside: &Links) -> io::Result<()> {
    let mut tap = vec![(IpAddr::from(GATEWAY4), PREFIX4, IpAddr::from(GUEST4))];
    if ipv6 {
        tap.push((GATEWAY6.into(), PREFIX6, GUEST6.into()));
    }
    let index = inside.expect(TAP)?;
    inside.set_up(index, Some(GATEWAY_MAC))?;
    for (address, prefix, guest) in tap {
        inside.add_address(index, address, prefix)?;
        inside.add_neighbour(index, guest, GUEST_MAC)?;
    }
    Ok(())
}

/// Addresses, neighbours and routes of both ends of the veth.
fn connect(slot: Slot, ipv6: bool, outside: &Links, inside: &Links) -> io::Result<()> {
    let mut uplink = vec![(IpAddr::from(slot.uplink4()), PREFIX4, IpAddr::from(slot.host4()))];
    if ipv6 {
        uplink.push((slot.uplink6().into(), PREFIX6, slot.host6().into()));
    }
    let (near, far) = (inside.expect(UPLINK)?, outside.expect(&slot.link())?);
    inside.set_up(near, None)?;
    outside.set_up(far, None)?;
    for (address, prefix, gateway) in uplink {
        inside.add_address(near, address, prefix)?;
        inside.add_neighbour(near, gateway, slot.host_mac())?;
        outside.add_address(far, gateway, prefix)?;
        outside.add_neighbour(far, address, slot.uplink_mac())?;
        inside.add_default_route(near, gateway)?;
    }
    Ok(())
}
