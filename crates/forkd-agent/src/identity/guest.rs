//! What of the guest's system an identity changes.
//!
//! Only PID 1 of a guest may do that. An agent that runs as an ordinary process must not touch its host, so there it gets
//! [`Foreign`]. All of it blocks but the clock.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::time::{ClockId, Timespec, clock_settime};

use super::{boot_id, entropy};
use forkd_proto::agent::Network;
use forkd_proto::agent::account::Account;

use crate::account::{self, AccountError};
use crate::network::connections::{self, ConnectionsError};
use crate::network::{self, NetworkError};

const HOOKS: &str = "/etc/forkd/fork.d";
const THAW_HOOKS: &str = "/etc/forkd/thaw.d";
const SSH: &str = "/etc/ssh";
const HOSTNAME: &str = "/etc/hostname";
const HOSTS: &str = "/etc/hosts";
const MACHINE_ID_FILE: &str = "/etc/machine-id";
const VOLATILE_MACHINE_ID: &str = "/run/machine-id";
/// In memory.
const COVERS: &str = "/run/forkd/etc";
const NANOSECONDS: u64 = 1_000_000_000;
/// HOST_NAME_MAX.
const MAX_HOSTNAME: usize = 64;
const MACHINE_ID: usize = 32;
const MIN_SEED: usize = 64;
const MAX_SEED: usize = 4096;

#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// Not an error: there is nothing of ours to change.
    #[error("this agent was started without permission to change the system")]
    Foreign,
    /// Nor is this: the guest's kernel has no way to do it.
    #[error(transparent)]
    Unsupported(ConnectionsError),
    #[error("invalid host name '{0}'")]
    Hostname(String),
    #[error("invalid machine id: expected 32 lowercase hexadecimal digits")]
    MachineId,
    #[error("invalid seed: expected base64 of {MIN_SEED} to {MAX_SEED} bytes")]
    Seed,
    #[error("the time is out of range")]
    Time,
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error(transparent)]
    System(#[from] io::Error),
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error(transparent)]
    Connections(ConnectionsError),
    #[error(transparent)]
    Account(#[from] AccountError),
}

pub trait Guest: fmt::Debug + Send + Sync {
    fn set_clock(&self, unix_time_ns: u64) -> Result<(), GuestError>;
    fn credit_entropy(&self, seed: &[u8]) -> Result<(), GuestError>;
    fn set_hostname(&self, name: &str) -> Result<(), GuestError>;
    fn set_machine_id(&self, id: &str) -> Result<(), GuestError>;
    fn set_network(&self, network: &Network) -> Result<(), GuestError>;
    fn add_account(&self, account: &Account) -> Result<(), GuestError>;
    /// Ends the connections to others that a fork has inherited.
    fn destroy_connections(&self) -> Result<(), GuestError>;
    /// Puts what every fork changes where changing it is cheap. Before the fork.
    fn prepare_for_forks(&self) -> Result<(), GuestError>;
    /// Writes what is in memory of files to the disk.
    fn sync(&self) -> Result<(), GuestError>;
    /// Where the programs are that want to know of a fork while the others are frozen.
    fn hooks(&self) -> Option<PathBuf>;
    /// The same, for those that need the others.
    fn thaw_hooks(&self) -> Option<PathBuf>;
    /// Where the SSH server's keys are.
    fn host_keys(&self) -> Option<PathBuf>;
}

/// The system of a guest whose PID 1 this is.
#[derive(Debug, Default)]
pub struct Own {
    network: Mutex<Option<Network>>,
    /// Held while the files of users are changed.
    users: Mutex<()>,
    /// The files that are in memory, and are changed in place.
    covered: Mutex<Vec<&'static str>>,
}

impl Guest for Own {
    fn set_clock(&self, unix_time_ns: u64) -> Result<(), GuestError> {
        let seconds = i64::try_from(unix_time_ns / NANOSECONDS).map_err(|_| GuestError::Time)?;
        let nanoseconds = i64::try_from(unix_time_ns % NANOSECONDS).map_err(|_| GuestError::Time)?;
        let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
        Ok(clock_settime(ClockId::Realtime, time).map_err(io::Error::from)?)
    }

    fn credit_entropy(&self, seed: &[u8]) -> Result<(), GuestError> {
        Ok(entropy::credit(seed)?)
    }

    fn set_hostname(&self, name: &str) -> Result<(), GuestError> {
        rustix::system::sethostname(name.as_bytes()).map_err(io::Error::from)?;
        self.write(HOSTNAME, &format!("{name}\n"))?;
        let before = fs::read_to_string(HOSTS).unwrap_or_default();
        self.write(HOSTS, &hosts_with(&before, name))
    }

    fn set_machine_id(&self, id: &str) -> Result<(), GuestError> {
        for path in [MACHINE_ID_FILE, VOLATILE_MACHINE_ID] {
            self.write(path, &format!("{id}\n"))?;
        }
        Ok(boot_id::renew()?)
    }

    fn set_network(&self, network: &Network) -> Result<(), GuestError> {
        let mut before = self.network.lock().unwrap_or_else(PoisonError::into_inner);
        network::configure(network, before.as_ref())?;
        *before = Some(network.clone());
        if network.dns.is_empty() {
            return Ok(());
        }
        replace(Path::new("/etc/resolv.conf"), &network::resolver_configuration(&network.dns))
    }

    fn add_account(&self, account: &Account) -> Result<(), GuestError> {
        let _turn = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(account::make(Path::new("/"), account, Some(Path::new("/proc/self/exe")))?)
    }

    fn destroy_connections(&self) -> Result<(), GuestError> {
        match connections::destroy() {
            Ok(_) => Ok(()),
            Err(error @ ConnectionsError::Unsupported(_)) => Err(GuestError::Unsupported(error)),
            Err(error) => Err(GuestError::Connections(error)),
        }
    }

    fn prepare_for_forks(&self) -> Result<(), GuestError> {
        let mut covered = self.covered.lock().unwrap_or_else(PoisonError::into_inner);
        for path in [HOSTNAME, HOSTS, MACHINE_ID_FILE] {
            let fail = |source| GuestError::Write { path: path.into(), source };
            if !covered.contains(&path) && cover(Path::new(path), Path::new(COVERS)).map_err(fail)? {
                covered.push(path);
            }
        }
        // It is in memory as it is.
        if Path::new(VOLATILE_MACHINE_ID).is_file() && !covered.contains(&VOLATILE_MACHINE_ID) {
            covered.push(VOLATILE_MACHINE_ID);
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), GuestError> {
        rustix::fs::sync();
        Ok(())
    }

    fn hooks(&self) -> Option<PathBuf> {
        Some(HOOKS.into())
    }

    fn thaw_hooks(&self) -> Option<PathBuf> {
        Some(THAW_HOOKS.into())
    }

    fn host_keys(&self) -> Option<PathBuf> {
        Some(SSH.into())
    }
}

impl Own {
    fn write(&self, path: &'static str, text: &str) -> Result<(), GuestError> {
        let covered = self.covered.lock().unwrap_or_else(PoisonError::into_inner);
        match covered.contains(&path) {
            true => overwrite(Path::new(path), text)
                .map_err(|source| GuestError::Write { path: path.into(), source }),
            false => replace(Path::new(path), text),
        }
    }
}

/// A system that the agent does not own.
#[derive(Debug)]
pub struct Foreign;

impl Guest for Foreign {
    fn set_clock(&self, _: u64) -> Result<(), GuestError> {
        Err(GuestError::Foreign)
    }

    fn credit_entropy(&self, _: &[u8]) -> Result<(), GuestError> {
        Err(GuestError::Foreign)
    }

    fn set_hostname(&self, _: &str) -> Result<(), GuestError> {
        Err(GuestError::Foreign)
    }

    fn set_machine_id(&self, _: &str) -> Result<(), GuestError> {
        Err(GuestError::Foreign)
    }

    fn set_network(&self, _: &Network) -> Result<(), GuestError> {
        Err(GuestError::Foreign)
    }

    fn add_account(&self, _: &Account) -> Result<(), GuestError> {
        Err(GuestError::Foreign)
    }

    fn destroy_connections(&self) -> Result<(), GuestError> {
        Err(GuestError::Foreign)
    }

    fn prepare_for_forks(&self) -> Result<(), GuestError> {
        Err(GuestError::Foreign)
    }

    fn sync(&self) -> Result<(), GuestError> {
        Err(GuestError::Foreign)
    }

    fn hooks(&self) -> Option<PathBuf> {
        None
    }

    fn thaw_hooks(&self) -> Option<PathBuf> {
        None
    }

    fn host_keys(&self) -> Option<PathBuf> {
        None
    }
}

pub fn check_hostname(name: &str) -> Result<(), GuestError> {
    let plain = |character: char| character.is_ascii_alphanumeric() || character == '-' || character == '.';
    let edges = name.starts_with(['-', '.']) || name.ends_with(['-', '.']);
    if name.is_empty() || name.len() > MAX_HOSTNAME || edges || !name.chars().all(plain) {
        return Err(GuestError::Hostname(name.chars().take(MAX_HOSTNAME).collect()));
    }
    Ok(())
}

pub fn check_machine_id(id: &str) -> Result<(), GuestError> {
    let digits = id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if id.len() == MACHINE_ID && digits { Ok(()) } else { Err(GuestError::MachineId) }
}

pub fn decode_seed(text: &str) -> Result<Vec<u8>, GuestError> {
    use base64::Engine;
    let seed = base64::engine::general_purpose::STANDARD.decode(text).map_err(|_| GuestError::Seed)?;
    if (MIN_SEED..=MAX_SEED).contains(&seed.len()) { Ok(seed) } else { Err(GuestError::Seed) }
}

/// `/etc/hosts` with this host's name at 127.0.1.1, as Debian writes it: without, sudo complains and getfqdn waits for DNS.
fn hosts_with(before: &str, name: &str) -> String {
    let own = |line: &&str| line.split_whitespace().next() == Some("127.0.1.1");
    let has_localhost = before.lines().any(|line| line.split_whitespace().any(|word| word == "localhost"));
    let mut lines: Vec<&str> = before.lines().filter(|line| !own(line)).collect();
    if !has_localhost {
        lines.insert(0, "127.0.0.1\tlocalhost");
    }
    format!("{}\n127.0.1.1\t{name}\n", lines.join("\n"))
}

/// Lays a copy in memory over a file, so that a fork that changes it writes to no disk: on ext4 each change costs a child dozens of
/// pages. Only a plain file is covered. A program can write to it as before, and not rename another one to its place.
fn cover(path: &Path, memory: &Path) -> io::Result<bool> {
    let is_file = fs::symlink_metadata(path).is_ok_and(|file| file.is_file());
    let Some(name) = path.file_name().filter(|_| is_file) else { return Ok(false) };
    let copy = memory.join(name);
    fs::create_dir_all(memory)?;
    fs::copy(path, &copy)?;
    rustix::mount::mount_bind(&copy, path)?;
    Ok(true)
}

/// Changes what is in a file, in place: who has it mounted somewhere sees it as well.
fn overwrite(path: &Path, text: &str) -> io::Result<()> {
    let file = fs::File::options().write(true).open(path)?;
    file.write_all_at(text.as_bytes(), 0)?;
    file.set_len(text.len() as u64)
}

/// Replaces a file whole, also when it is a link to somewhere: images link resolv.conf to places that are not there.
fn replace(path: &Path, text: &str) -> Result<(), GuestError> {
    let fail = |source| GuestError::Write { path: path.to_owned(), source };
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".forkd");
    fs::write(&temporary, text).map_err(fail)?;
    fs::rename(&temporary, path).map_err(fail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_ids_and_seeds_are_checked() {
        for good in ["a", "sandbox-3", "A.b", &"x".repeat(64)] {
            assert!(check_hostname(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", "a.", "a b", "a/b", "ä", "a\n", &"x".repeat(65)] {
            assert!(check_hostname(bad).is_err(), "{bad}");
        }
        assert!(check_machine_id("0123456789abcdef0123456789abcdef").is_ok());
        for bad in ["", "0123456789ABCDEF0123456789abcdef", "0123456789abcdef0123456789abcde", "../"] {
            assert!(check_machine_id(bad).is_err(), "{bad}");
        }
        assert!(decode_seed("AAAA").is_err() && decode_seed("!").is_err());
        assert_eq!(decode_seed(&format!("{}==", "A".repeat(86))).unwrap().len(), 64);
    }

    #[test]
    fn a_host_is_in_its_own_table_once() {
        let once = hosts_with("127.0.0.1 localhost\n10.0.0.1 other\n", "new");
        assert_eq!(once, "127.0.0.1 localhost\n10.0.0.1 other\n127.0.1.1\tnew\n");
        assert_eq!(hosts_with(&once, "newer"), once.replace("new", "newer"));
        assert_eq!(hosts_with("", "a"), "127.0.0.1\tlocalhost\n127.0.1.1\ta\n");
    }

    #[test]
    fn a_link_is_replaced_and_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("resolv.conf");
        std::os::unix::fs::symlink("/nowhere/at/all", &path).unwrap();
        replace(&path, "text").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "text");
    }

    #[test]
    fn a_file_is_changed_in_place() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("hosts");
        fs::write(&path, "a longer text than the next").unwrap();
        let before = fs::File::open(&path).unwrap();
        overwrite(&path, "short").unwrap();
        assert_eq!(io::read_to_string(before).unwrap(), "short");
        assert!(overwrite(&directory.path().join("none"), "").is_err());
        // Neither a link nor what is not there is covered, and nothing is left behind.
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let memory = directory.path().join("memory");
        assert!(!cover(&link, &memory).unwrap() && !cover(Path::new("/none"), &memory).unwrap());
        assert!(!memory.exists());
    }

    #[test]
    fn the_system_of_somebody_else_is_left_alone() {
        assert!(matches!(Foreign.set_clock(1), Err(GuestError::Foreign)));
        assert!(matches!(Foreign.set_hostname("x"), Err(GuestError::Foreign)));
        assert!(matches!(Foreign.sync(), Err(GuestError::Foreign)));
        assert!(Foreign.hooks().is_none());
    }
}
