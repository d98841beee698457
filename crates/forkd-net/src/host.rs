//! The host's side, prepared once: its table of rules, and that it forwards.
//!
//! Forwarding is a setting of the whole host. If it is off, it is turned on, and two things keep that from changing more than
//! sandboxes need: packets between links that do not belong to forkd are dropped as before, by a chain of their own; and links that
//! learn their IPv6 routes from announcements still do, which a router by default does not. What was changed is said in
//! [`Prepared`].

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::error::{NetError, blocking};
use crate::lease;
use crate::namespace::{Namespace, Namespaces};
use crate::netlink::NetlinkSocket;
use crate::netlink::route::Links;
use crate::nft::{Family, chain_exists};
use crate::plan::{Slot, UPLINK};
use crate::rules::TABLE;
use crate::rules::host::{FOREIGN4, FOREIGN6, table};
use crate::{sysctl, tap};

/// How often it is looked whether the kernel has removed a namespace.
const LOOKS: usize = 100;
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);

const FORWARD4: &str = "ipv4/ip_forward";
const FORWARD6: &str = "ipv6/conf/all/forwarding";

/// Where things are.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Names of namespaces.
    pub namespaces: PathBuf,
    /// Locks of those who make networks on this host.
    pub locks: PathBuf,
    /// Whether forwarding may be turned on. If not, it must be on.
    pub may_turn_on_forwarding: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            namespaces: "/run/netns".into(),
            locks: "/run/forkd-net".into(),
            may_turn_on_forwarding: true,
        }
    }
}

/// What was changed beyond forkd's own table, one sentence each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prepared {
    pub changes: Vec<String>,
}

/// A host that can have networks of sandboxes.
#[derive(Debug)]
pub struct Host {
    pub(crate) namespaces: Namespaces,
    pub(crate) ipv6: bool,
    locks: PathBuf,
}

impl Host {
    /// Only root makes networks.
    pub fn is_permitted() -> bool {
        rustix::process::geteuid().is_root()
    }

    /// Prepares the host of the calling process. Doing it again, also from another process, changes nothing.
    pub async fn prepare(settings: Settings) -> Result<(Arc<Host>, Prepared), NetError> {
        blocking(move || prepare(&settings)).await
    }

    /// A lock that ends with the process that holds it. `None` if another process has it.
    pub(crate) fn lock(&self, name: &str) -> io::Result<Option<File>> {
        let file = lock_file(&self.locks, name)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes the networks of all sandboxes but these, of any daemon. Returns whose were removed.
    pub async fn sweep(self: &Arc<Host>, held: BTreeSet<Slot>) -> Result<Vec<Slot>, NetError> {
        let host = Arc::clone(self);
        blocking(move || {
            let mut swept = host.used()?;
            swept.retain(|slot| slot.is_sandbox() && !held.contains(slot));
            host.abandon(&swept)?;
            Ok(swept)
        })
        .await
    }

    /// Slots that have anything on this host, of any daemon.
    pub(crate) fn used(&self) -> Result<Vec<Slot>, NetError> {
        let failed = NetError::when("list the networks of this host");
        let names = self.namespaces.names().map_err(failed)?;
        let failed = NetError::when("list the links of this host");
        let links = Links::open().and_then(|links| links.list()).map_err(failed)?;
        let mut slots: Vec<Slot> = names.iter().filter_map(|name| Slot::of_namespace(name)).collect();
        slots.extend(links.iter().filter_map(|(_, name)| Slot::of_link(name)));
        slots.sort_unstable();
        slots.dedup();
        Ok(slots)
    }

    /// Finds a slot's namespace by the tap of its VM, if it has no name: names are mounts, and those of a daemon with a mount
    /// namespace of its own end with it. The tap is the VM's word, so what it leads to must be the slot's.
    pub async fn name_again(self: &Arc<Host>, slot: Slot, tap: OwnedFd) -> Result<(), NetError> {
        let host = Arc::clone(self);
        blocking(move || host.name_now(slot, &tap).map_err(NetError::when("find a namespace by its tap")))
            .await
    }

    fn name_now(&self, slot: Slot, tap: &OwnedFd) -> io::Result<()> {
        let name = slot.namespace();
        if self.namespaces.open(&name).is_ok_and(|namespace| namespace.run(|| Ok(())).is_ok()) {
            return Ok(());
        }
        let namespace = Namespace::from(tap::namespace_of(tap.as_fd())?);
        let mac = namespace.run(|| Links::open()?.mac(UPLINK))?;
        if mac.as_deref() != Some(&slot.uplink_mac()[..]) {
            return Err(io::Error::other("the tap is another's"));
        }
        self.namespaces.name(&name, &namespace)
    }

    /// Takes the names away from unused namespaces, and waits until the kernel has removed what was in them.
    /// It does so for many at once, which takes no longer than for one. Blocks.
    pub(crate) fn abandon(&self, slots: &[Slot]) -> Result<(), NetError> {
        for slot in slots {
            let removed = self.namespaces.remove(&slot.namespace());
            removed.map_err(NetError::when("remove a namespace"))?;
        }
        let links = Links::open().map_err(NetError::when("talk to the kernel"))?;
        let mut left = slots.to_vec();
        for _ in 0..LOOKS {
            let there = links.list().map_err(NetError::when("list the links of this host"))?;
            let there: BTreeSet<Slot> = there.iter().filter_map(|(_, name)| Slot::of_link(name)).collect();
            left.retain(|slot| there.contains(slot));
            if left.is_empty() {
                return Ok(());
            }
            std::thread::sleep(BETWEEN_LOOKS);
        }
        // A process still has a tap open. It leads nowhere from now on.
        left.iter().try_for_each(|slot| self.clear(*slot))
    }

    /// Removes whatever a slot has on this host.
    pub(crate) fn clear(&self, slot: Slot) -> Result<(), NetError> {
        let links = Links::open().map_err(NetError::when("talk to the kernel"))?;
        links.remove(&slot.link()).map_err(NetError::when("remove a link"))?;
        // A tap that a process has open would keep its namespace alive.
        if let Ok(namespace) = self.namespaces.open(&slot.namespace()) {
            // It may be a plain file, left by a process that was killed before the namespace was there.
            let _ = namespace.run(lease::remove_links);
        }
        let removed = self.namespaces.remove(&slot.namespace());
        removed.map_err(NetError::when("remove a namespace"))
    }
}

fn lock_file(locks: &Path, name: &str) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(false).open(locks.join(name))
}

fn prepare(settings: &Settings) -> Result<(Arc<Host>, Prepared), NetError> {
    fs::create_dir_all(&settings.locks).map_err(NetError::when("make the directory for locks"))?;
    let lock = lock_file(&settings.locks, "host").map_err(NetError::when("make a lock"))?;
    flock(&lock, FlockOperation::LockExclusive).map_err(|error| NetError::when("lock")(error.into()))?;
    let namespaces = Namespaces::new(&settings.namespaces);
    let namespaces = namespaces.map_err(NetError::when("make the directory for namespaces"))?;
    let socket = NetlinkSocket::netfilter().map_err(NetError::when("talk to netfilter"))?;
    let mut prepared = Prepared::default();
    let ipv6 = sysctl::has_ipv6();
    let mut foreign = [false; 2];
    let families = [(true, FORWARD4, FOREIGN4), (ipv6, FORWARD6, FOREIGN6)];
    for (index, (has, setting, chain)) in families.into_iter().enumerate() {
        if !has {
            continue;
        }
        let reading = NetError::when("read whether this host forwards");
        let is_on = sysctl::read(setting).map_err(reading)? != "0";
        let reading = NetError::when("read the rules of this host");
        // Forwarding that forkd has turned on earlier.
        let was_foreign = chain_exists(&socket, Family::Inet, TABLE, chain).map_err(reading)?;
        foreign[index] = !is_on || was_foreign;
        if !is_on && !settings.may_turn_on_forwarding {
            return Err(NetError::Forwarding { setting });
        }
    }
    // The rules are there before anything is forwarded.
    table(foreign[0], foreign[1]).commit(&socket)?;
    for (has, setting, _) in families {
        if has {
            turn_on(setting, &mut prepared).map_err(NetError::when("turn on forwarding"))?;
        }
    }
    for change in &prepared.changes {
        tracing::info!("{change}");
    }
    Ok((Arc::new(Host { namespaces, ipv6, locks: settings.locks.clone() }), prepared))
}

fn turn_on(setting: &str, prepared: &mut Prepared) -> io::Result<()> {
    if sysctl::read(setting)? != "0" {
        return Ok(());
    }
    if setting == FORWARD6 {
        for interface in sysctl::interfaces("ipv6")? {
            let accept = format!("ipv6/conf/{interface}/accept_ra");
            // A link that came or went meanwhile is not an uplink yet.
            if sysctl::read(&accept).is_ok_and(|value| value == "1") && sysctl::write(&accept, "2").is_ok() {
                prepared.changes.push(format!(
                    "net/{accept} is 2 now: the link takes its routes from announcements as before"
                ));
            }
        }
    }
    sysctl::write(setting, "1")?;
    prepared.changes.push(format!(
        "net/{setting} is 1 now, so that sandboxes reach the internet; packets between other links are dropped as before"
    ));
    Ok(())
}

/// Forwarding of one link of the host: its default may be another.
pub(crate) fn forward_from(link: &str, ipv6: bool) -> io::Result<()> {
    sysctl::write(&format!("ipv4/conf/{link}/forwarding"), "1")?;
    if ipv6 && link != UPLINK {
        sysctl::write(&format!("ipv6/conf/{link}/forwarding"), "1")?;
    }
    Ok(())
}
