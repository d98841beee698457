//! Where a driver runs: its user, its environment, its directory.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::agent::{Agent, Settings};
use crate::runtime::blocking;
use crate::users::{UnknownUser, User, Users};

/// Where E2B's contexts start.
const E2B_DIRECTORY: &str = "/home/user";
/// For an image that sets none.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    #[error(transparent)]
    User(#[from] UnknownUser),
    #[error("cannot look for the user: {0}")]
    Io(#[from] io::Error),
    #[error("'{0}' is not a directory")]
    Directory(String),
}

pub async fn user(agent: &Agent) -> Result<User, PlaceError> {
    let name = agent.settings().default_user;
    Ok(blocking(move || Users::read().find(&name)).await??)
}

/// What the user is, then what the sandbox has.
pub fn environment(user: &User, settings: &Settings) -> Vec<(OsString, OsString)> {
    let mut all: BTreeMap<OsString, OsString> = BTreeMap::from([
        ("PATH".into(), std::env::var_os("PATH").unwrap_or_else(|| PATH.into())),
        ("HOME".into(), user.home.clone().into()),
        ("USER".into(), user.name.clone().into()),
        ("LOGNAME".into(), user.name.clone().into()),
        // Images often have no locale, and Python before 3.7 and many tools then fear everything above ASCII.
        ("LANG".into(), "C.UTF-8".into()),
    ]);
    all.extend(settings.environment.iter().map(|(name, value)| (name.into(), value.into())));
    all.into_iter().collect()
}

/// Whether a driver's program is where it would be looked for.
pub async fn has_program(agent: &Agent, program: &'static str) -> Result<bool, PlaceError> {
    let environment = environment(&user(agent).await?, &agent.settings());
    let path = environment.into_iter().find(|(name, _)| name == "PATH").map(|(_, path)| path);
    let found = blocking(move || {
        std::env::split_paths(&path.unwrap_or_default()).any(|directory| is_program(&directory.join(program)))
    });
    Ok(found.await?)
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|data| data.is_file() && data.mode() & 0o111 != 0)
}

/// The directory that was asked for, which must be one; or the first of the usual ones that is there.
pub async fn directory(agent: &Agent, wanted: Option<String>) -> Result<PathBuf, PlaceError> {
    let home = user(agent).await?.home;
    let default = agent.settings().default_workdir;
    blocking(move || match wanted {
        Some(wanted) if Path::new(&wanted).is_dir() => Ok(wanted.into()),
        Some(wanted) => Err(PlaceError::Directory(wanted.chars().take(200).collect())),
        None => {
            let candidates = [default, Some(E2B_DIRECTORY.into()), Some(home)];
            Ok(candidates.into_iter().flatten().find(|path| path.is_dir()).unwrap_or_else(|| "/".into()))
        }
    })
    .await?
}

/// Where a driver starts: in its context's directory, or at home if the user has changed since and may not enter it.
pub async fn start_directory(user: &User, directory: &Path) -> io::Result<PathBuf> {
    let (user, directory) = (user.clone(), directory.to_owned());
    blocking(move || match may_enter(&user, &directory) {
        true => directory,
        false => user.home,
    })
    .await
}

/// By the directory's own permissions. One that cannot be examined is not refused here.
fn may_enter(user: &User, directory: &Path) -> bool {
    let Ok(data) = std::fs::metadata(directory) else { return true };
    let bit = match data.uid() == user.uid {
        true => 0o100,
        false if user.groups.contains(&data.gid()) => 0o010,
        false => 0o001,
    };
    user.uid == 0 || data.mode() & bit != 0
}

/// An unused path. `/run` is memory in a guest; elsewhere there is a temporary directory.
pub fn unused_path(extension: &str) -> io::Result<PathBuf> {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let parent = if std::process::id() == 1 { PathBuf::from("/run") } else { std::env::temp_dir() };
    let number = COUNTER.fetch_add(1, Ordering::Relaxed);
    let name = format!("forkd-{}-{number}.{extension}", std::process::id());
    let path = parent.join(name);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(path),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_driver_starts_where_its_user_may_be() {
        let directory = tempfile::tempdir().unwrap();
        let (path, data) = (directory.path(), directory.path().metadata().unwrap());
        let stranger = User {
            name: "user".into(),
            uid: data.uid() + 1000,
            gid: data.gid() + 1000,
            home: "/home/user".into(),
            groups: vec![data.gid() + 1000],
        };
        let member = User { groups: vec![data.gid()], ..stranger.clone() };
        let owner = User { uid: data.uid(), ..stranger.clone() };
        for (mode, may) in [(0o700, [true, false, false]), (0o710, [true, true, false]), (0o711, [true; 3])] {
            std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
            assert_eq!([&owner, &member, &stranger].map(|user| may_enter(user, path)), may, "{mode:o}");
        }
        std::fs::set_permissions(path, Permissions::from_mode(0o700)).unwrap();
        let start = crate::runtime::new().unwrap().block_on(start_directory(&stranger, path));
        assert_eq!(start.unwrap(), Path::new("/home/user"));
    }
}
