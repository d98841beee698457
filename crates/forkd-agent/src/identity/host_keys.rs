//! New SSH host keys, for images that have some: an image's are the same in all its sandboxes, and its users know them.
//!
//! Keys that are made in milliseconds (Ed25519, ECDSA) are made anew at once, before any program runs again. An RSA key takes
//! seconds of a CPU, in every child, so it is removed where there is a key of another kind: sshd offers those that it has, and
//! clients have known Ed25519 since 2014. An RSA key that is the only one is made anew. DSA keys, which no sshd takes any more,
//! are removed.
//!
//! A running sshd has its keys in memory and is sent SIGHUP, on which it starts again with the new ones. Without a host key in
//! `/etc/ssh`, all this is one look for the directory.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::hooks::{self, RunError};
use crate::agent::Agent;
use crate::children::SpawnError;
use crate::listing;
use crate::runtime::blocking;

/// RSA in an emulated guest takes the longest.
const LIMIT: Duration = Duration::from_secs(40);
const PROGRAM: &str = "ssh-keygen";
const PID_FILE: &str = "/run/sshd.pid";

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Ed25519,
    Ecdsa,
    Rsa,
    Dsa,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::Ed25519, Kind::Ecdsa, Kind::Rsa, Kind::Dsa];

    fn name(self) -> &'static str {
        match self {
            Kind::Ed25519 => "ed25519",
            Kind::Ecdsa => "ecdsa",
            Kind::Rsa => "rsa",
            Kind::Dsa => "dsa",
        }
    }

    fn file(self) -> String {
        format!("ssh_host_{}_key", self.name())
    }
}

/// What a fork does with the keys of its image.
#[derive(Debug, Default, PartialEq, Eq)]
struct Plan {
    make: Vec<Kind>,
    remove: Vec<Kind>,
}

/// What became of the keys.
#[derive(Debug, PartialEq, Eq)]
pub enum Renewed {
    /// The image has none.
    Nothing,
    /// It has no program to make some; those it has stay.
    NoProgram,
    Done(Vec<String>),
}

/// Makes the keys in a directory new.
pub async fn renew(agent: &Agent, directory: PathBuf) -> Renewed {
    let plan = match plan(&directory) {
        Ok(plan) => plan,
        Err(error) => return Renewed::Done(vec![format!("cannot read the keys: {error}")]),
    };
    if plan == Plan::default() {
        return Renewed::Nothing;
    }
    let mut problems = Vec::new();
    for kind in plan.make {
        match make(agent, &directory, kind).await {
            Ok(()) => {}
            Err(MakeError::Run(RunError::Spawn(SpawnError::NotFound(_)))) => return Renewed::NoProgram,
            Err(error) => problems.push(format!("{}: {error}", kind.name())),
        }
    }
    let finish = move || {
        for kind in plan.remove {
            remove(&directory, kind)?;
        }
        tell_sshd(Path::new(PID_FILE));
        Ok::<_, io::Error>(())
    };
    if let Ok(Err(error)) | Err(error) = blocking(finish).await {
        problems.push(format!("cannot remove a key: {error}"));
    }
    Renewed::Done(problems)
}

fn plan(directory: &Path) -> io::Result<Plan> {
    let files = listing::paths(directory)?;
    let has = |kind: &Kind| files.contains(&directory.join(kind.file()));
    let present: Vec<Kind> = Kind::ALL.into_iter().filter(has).collect();
    let quick = present.iter().any(|kind| *kind < Kind::Rsa);
    let made = |kind: &Kind| *kind < Kind::Rsa || *kind == Kind::Rsa && !quick;
    let (make, remove) = present.into_iter().partition(made);
    Ok(Plan { make, remove })
}

#[derive(Debug, thiserror::Error)]
enum MakeError {
    #[error("ssh-keygen: {0}")]
    Run(#[from] RunError),
    #[error("cannot install the key: {0}")]
    File(#[from] io::Error),
}

/// Beside the old key first: an sshd that starts meanwhile finds one or the other.
async fn make(agent: &Agent, directory: &Path, kind: Kind) -> Result<(), MakeError> {
    let key = directory.join(kind.file());
    let new = directory.join(format!("{}.forkd", kind.file()));
    let beside = new.clone();
    // ssh-keygen asks whether it may replace what another fork has left.
    blocking(move || drop([fs::remove_file(public(&beside)), fs::remove_file(beside)])).await?;
    let mut arguments: Vec<OsString> =
        ["-q", "-t", kind.name(), "-N", "", "-C", "", "-f"].map(OsString::from).into();
    arguments.push(new.clone().into());
    let environment = hooks::settings_environment(agent);
    hooks::run_beside(agent, PROGRAM.into(), arguments, environment, LIMIT).await?;
    let place = move || {
        fs::rename(public(&new), public(&key))?;
        fs::rename(new, key)
    };
    Ok(blocking(place).await??)
}

fn remove(directory: &Path, kind: Kind) -> io::Result<()> {
    let key = directory.join(kind.file());
    match fs::remove_file(public(&key)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::remove_file(key)
}

fn public(key: &Path) -> PathBuf {
    let mut path = key.as_os_str().to_owned();
    path.push(".pub");
    path.into()
}

/// Sends SIGHUP to the sshd that has written its number here. A frozen one gets it when it is thawed.
fn tell_sshd(pid_file: &Path) {
    let number = fs::read_to_string(pid_file).ok().and_then(|text| text.trim().parse::<i32>().ok());
    let Some(pid) = number.filter(|number| *number > 1).and_then(Pid::from_raw) else { return };
    let name = fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero())).unwrap_or_default();
    if name.trim_end() == "sshd" {
        // It may have ended in this moment.
        let _ = kill_process(pid, Signal::HUP);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::Settings;

    fn with_keys(kinds: &[Kind]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for kind in kinds {
            for path in [directory.path().join(kind.file()), public(&directory.path().join(kind.file()))] {
                fs::write(path, "the image's").unwrap();
            }
        }
        directory
    }

    #[test]
    fn slow_keys_are_made_only_where_there_is_no_other() {
        let of = |kinds: &[Kind]| plan(with_keys(kinds).path()).unwrap();
        let (ed25519, ecdsa, rsa, dsa) = (Kind::Ed25519, Kind::Ecdsa, Kind::Rsa, Kind::Dsa);
        assert_eq!(of(&Kind::ALL), Plan { make: vec![ed25519, ecdsa], remove: vec![rsa, dsa] });
        assert_eq!(of(&[rsa, dsa]), Plan { make: vec![rsa], remove: vec![dsa] });
        assert_eq!(of(&[ecdsa]), Plan { make: vec![ecdsa], remove: vec![] });
        assert_eq!(of(&[]), Plan::default());
        assert_eq!(plan(Path::new("/nonexistent")).unwrap(), Plan::default());
    }

    fn renewed(path: Option<&str>, directory: &Path) -> Renewed {
        crate::runtime::new().unwrap().block_on(async {
            let environment = path.map(|path| ("PATH".to_owned(), path.to_owned())).into_iter().collect();
            let agent = crate::testing::agent(Settings { environment, ..Settings::default() });
            renew(&agent, directory.to_owned()).await
        })
    }

    #[test]
    fn keys_are_replaced_with_their_public_halves() {
        let directory = with_keys(&[Kind::Ed25519, Kind::Rsa]);
        let path = directory.path();
        if !Path::new("/usr/bin/ssh-keygen").exists() {
            return;
        }
        let read = |name: &str| fs::read_to_string(path.join(name)).unwrap();
        assert_eq!(renewed(None, path), Renewed::Done(Vec::new()));
        let first = read("ssh_host_ed25519_key.pub");
        assert!(first.starts_with("ssh-ed25519 ") && read("ssh_host_ed25519_key").contains("PRIVATE KEY"));
        assert_eq!(renewed(None, path), Renewed::Done(Vec::new()));
        assert_ne!(read("ssh_host_ed25519_key.pub"), first);
        let mut left: Vec<_> = listing::paths(path).unwrap();
        left.sort();
        assert_eq!(left, ["ssh_host_ed25519_key", "ssh_host_ed25519_key.pub"].map(|name| path.join(name)));
    }

    #[test]
    fn an_image_without_the_program_keeps_its_keys() {
        let directory = with_keys(&[Kind::Ed25519, Kind::Rsa]);
        assert_eq!(renewed(Some("/nonexistent"), directory.path()), Renewed::NoProgram);
        assert_eq!(listing::paths(directory.path()).unwrap().len(), 4);
        assert_eq!(renewed(None, Path::new("/nonexistent")), Renewed::Nothing);
    }

    #[test]
    fn only_an_sshd_is_signalled() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("sshd.pid");
        // This process would be ended by it.
        fs::write(&file, std::process::id().to_string()).unwrap();
        tell_sshd(&file);
        for text in ["", "0", "1", "-1", "sshd", "999999999999"] {
            fs::write(&file, text).unwrap();
            tell_sshd(&file);
        }
        tell_sshd(Path::new("/nonexistent"));
    }
}
