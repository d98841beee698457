//! What a process finds around itself: its variables and its directory.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use forkd_envd::connect::ConnectError;
use forkd_envd::process::ProcessConfig;

use crate::agent::Settings;
use crate::envd::paths;
use crate::runtime::blocking;
use crate::users::User;

/// For an image that sets none.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The later wins: what the user is, what the sandbox has, what the request says.
pub fn variables(user: &User, settings: &Settings, config: &ProcessConfig) -> Vec<(OsString, OsString)> {
    let own = [
        ("PATH", std::env::var("PATH").unwrap_or_else(|_| PATH.to_owned())),
        ("HOME", paths::text(&user.home)),
        ("USER", user.name.clone()),
        ("LOGNAME", user.name.clone()),
    ];
    let mut all: BTreeMap<&str, &str> = own.iter().map(|(name, value)| (*name, value.as_str())).collect();
    for variables in [&settings.environment, &config.envs] {
        all.extend(variables.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    }
    all.into_iter().map(|(name, value)| (name.into(), value.into())).collect()
}

/// The directory that was asked for must be one. The default falls back to the root, as an image need not have a home.
pub async fn directory(
    user: &User,
    settings: &Settings,
    wanted: Option<&str>,
) -> Result<PathBuf, ConnectError> {
    let wanted = wanted.unwrap_or_default();
    let path = paths::resolve(wanted, user, settings.default_workdir.as_deref())
        .map_err(|error| ConnectError::invalid(error.to_string()))?;
    let candidate = path.clone();
    let found =
        blocking(move || candidate.metadata().map(|found| found.is_dir())).await.and_then(|found| found);
    match found {
        Ok(true) => Ok(path),
        _ if wanted.is_empty() => Ok(Path::new("/").to_owned()),
        Ok(false) => Err(ConnectError::invalid(format!("cwd '{}' is not a directory", path.display()))),
        Err(_) => Err(ConnectError::invalid(format!("cwd '{}' does not exist", path.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn the_request_wins_over_the_sandbox_and_that_over_the_user() {
        let user = User { name: "ann".into(), uid: 1, gid: 1, home: "/home/ann".into(), groups: vec![1] };
        let settings = Settings {
            environment: map(&[("A", "sandbox"), ("HOME", "/h"), ("B", "b")]),
            ..Settings::default()
        };
        let config =
            ProcessConfig { envs: map(&[("A", "request"), ("USER", "other")]), ..ProcessConfig::default() };
        let variables: BTreeMap<_, _> = variables(&user, &settings, &config).into_iter().collect();
        let value = |name: &str| variables.get(&OsString::from(name)).and_then(|value| value.to_str());
        assert_eq!((value("A"), value("B"), value("HOME")), (Some("request"), Some("b"), Some("/h")));
        assert_eq!((value("USER"), value("LOGNAME")), (Some("other"), Some("ann")));
        assert!(value("PATH").is_some());
    }
}
