//! Credentials for registries, from the file that `docker login` and `podman login` write.
//!
//! The file may name a helper instead, a program that keeps passwords. The command line runs it; the daemon, which is root, does not.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::{env, fmt};

use base64::Engine;
use oci_spec::distribution::Reference;
use serde::Deserialize;

use crate::credential_helper::{self, HelperError};

/// No such file is larger.
const MAX_FILE: u64 = 8 << 20;

#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is damaged", path.display())]
    Syntax { path: PathBuf, source: serde_json::Error },
    #[error(
        "the credentials for {registry} are in the credential helper {helper:?} ({}), which the daemon does not run; use the command line as the user who has logged in, or send credentials with the request",
        file.display()
    )]
    Helper { registry: String, helper: String, file: PathBuf },
    #[error(
        "there is an identity token for {registry} in {}, which is not supported; log in with a password or an access token",
        file.display()
    )]
    IdentityToken { registry: String, file: PathBuf },
    #[error("cannot get the credentials for {registry} from a credential helper ({})", file.display())]
    Asked { registry: String, file: PathBuf, source: HelperError },
    #[error("the credentials for {registry} in {} are invalid; log in again", file.display())]
    Damaged { registry: String, file: PathBuf },
}

/// Who pulls. It is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub username: String,
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Credentials(…)")
    }
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct DockerConfig {
    auths: BTreeMap<String, Entry>,
    creds_store: Option<String>,
    cred_helpers: BTreeMap<String, String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Entry {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
}

/// Asks a helper by its name for the credentials of a server.
pub type AskHelper<'a> = &'a dyn Fn(&str, &str) -> Result<Option<Credentials>, HelperError>;

/// What this user's Docker config file has for the registry of a reference, for pulls in this user's name. Helpers are run.
/// What is not a reference has none.
pub fn user_credentials(reference: &str) -> Result<Option<Credentials>, AuthError> {
    find(reference, Some(&credential_helper::ask))
}

/// The same for the daemon: no helper is run, and one that would have to be is an error.
pub fn own_credentials(reference: &str) -> Result<Option<Credentials>, AuthError> {
    find(reference, None)
}

fn find(reference: &str, helper: Option<AskHelper<'_>>) -> Result<Option<Credentials>, AuthError> {
    let Ok(reference) = reference.parse::<Reference>() else { return Ok(None) };
    match config_file() {
        Some(file) => credentials(&file, reference.resolve_registry(), helper),
        None => Ok(None),
    }
}

/// Where the file is: `$DOCKER_CONFIG/config.json`, else `~/.docker/config.json`.
fn config_file() -> Option<PathBuf> {
    let directory = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let directory = directory("DOCKER_CONFIG").or_else(|| Some(directory("HOME")?.join(".docker")))?;
    Some(directory.join("config.json"))
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, AuthError> {
    let failed = |source| AuthError::Read { path: path.into(), source };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(failed(error)),
    };
    let mut bytes = Vec::new();
    let length = file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(failed)?;
    if length as u64 > MAX_FILE {
        return Err(failed(io::ErrorKind::FileTooLarge.into()));
    }
    Ok(Some(bytes))
}

/// The credentials for a registry, if the file has some, or a helper that it names.
fn credentials(
    file: &Path,
    registry: &str,
    helper: Option<AskHelper<'_>>,
) -> Result<Option<Credentials>, AuthError> {
    match read(file)? {
        Some(bytes) => parse(&bytes, file, registry, helper),
        None => Ok(None),
    }
}

/// The same of the contents of a file, which errors name.
pub fn parse(
    bytes: &[u8],
    file: &Path,
    registry: &str,
    helper: Option<AskHelper<'_>>,
) -> Result<Option<Credentials>, AuthError> {
    let syntax = |source| AuthError::Syntax { path: file.into(), source };
    let config: DockerConfig = serde_json::from_slice(bytes).map_err(syntax)?;
    let damaged = || AuthError::Damaged { registry: registry.into(), file: file.into() };
    // A helper knows a registry by the key that the file has for it.
    let ask = |name: &str, key: &str| match helper {
        Some(helper) => helper(name, key).map_err(|source| AuthError::Asked {
            registry: registry.into(),
            file: file.into(),
            source,
        }),
        None => Err(AuthError::Helper {
            registry: registry.into(),
            helper: name.chars().take(80).collect(),
            file: file.into(),
        }),
    };
    if let Some((key, name)) = config.cred_helpers.iter().find(|(key, _)| host(key) == host(registry)) {
        return ask(name, key);
    }
    let Some((key, entry)) = config.auths.iter().find(|(key, _)| host(key) == host(registry)) else {
        return Ok(None);
    };
    let basic = |username: &str, password: &str| {
        Ok(Some(Credentials { username: username.to_owned(), password: password.to_owned() }))
    };
    if let (Some(username), Some(password)) = (&entry.username, &entry.password) {
        return basic(username, password);
    }
    match entry.auth.as_deref().filter(|auth| !auth.is_empty()) {
        Some(auth) => {
            let decoded = base64::engine::general_purpose::STANDARD.decode(auth).map_err(|_| damaged())?;
            let decoded = String::from_utf8(decoded).map_err(|_| damaged())?;
            let (username, password) = decoded.split_once(':').ok_or_else(damaged)?;
            basic(username, password)
        }
        None if entry.identitytoken.is_some() => {
            Err(AuthError::IdentityToken { registry: registry.into(), file: file.into() })
        }
        // An entry without content says that a helper has it.
        None => match &config.creds_store {
            Some(name) => ask(name, key),
            None => Ok(None),
        },
    }
}

/// The registry that a key of the file means. A registry's index and its first server are it too: Docker's own has three
/// names from its history.
fn host(key: &str) -> &str {
    let key = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")).unwrap_or(key);
    let host = key.split('/').next().unwrap_or(key);
    host.strip_prefix("index.").or_else(|| host.strip_prefix("registry-1.")).unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::STANDARD;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn ask(config: &str, registry: &str) -> Result<Option<Credentials>, AuthError> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config.json");
        std::fs::write(&file, config).unwrap();
        credentials(&file, registry, None)
    }

    #[test]
    fn credentials_are_found_by_registry() {
        // "me:pass:word"
        let config = r#"{"auths": {"https://index.hub.example/v1/": {"auth": "bWU6cGFzczp3b3Jk"},
            "registry.example:5000": {"username": "a", "password": "b"}}}"#;
        let basic = |user: &str, password: &str| {
            Some(Credentials { username: user.into(), password: password.into() })
        };
        for name in ["index.hub.example", "registry-1.hub.example", "hub.example"] {
            assert!(ask(config, name).unwrap() == basic("me", "pass:word"), "{name}");
        }
        assert!(ask(config, "registry.example:5000").unwrap() == basic("a", "b"));
        assert!(ask(config, "registry.example").unwrap().is_none());
        assert!(ask("{}", "x").unwrap().is_none());
        assert!(credentials(Path::new("/nonexistent/config.json"), "x", None).unwrap().is_none());
    }

    #[test]
    fn helpers_are_asked_by_the_keys_of_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config.json");
        let config = r#"{"auths": {"https://index.hub.example/v1/": {}, "in.example": {"auth": "bWU6cGFzcw=="}},
            "credsStore": "desktop", "credHelpers": {"b.example": "gcloud"}}"#;
        std::fs::write(&file, config).unwrap();
        let helper = |name: &str, server: &str| match name {
            "desktop" | "gcloud" => {
                Ok(Some(Credentials { username: name.to_owned(), password: server.to_owned() }))
            }
            _ => Err(HelperError::Name(name.into())),
        };
        let asked = |registry: &str| credentials(&file, registry, Some(&helper)).unwrap();
        let who = |username: &str, password: &str| {
            Some(Credentials { username: username.into(), password: password.into() })
        };
        assert!(asked("index.hub.example") == who("desktop", "https://index.hub.example/v1/"));
        assert!(asked("b.example") == who("gcloud", "b.example"));
        assert!(asked("in.example") == who("me", "pass"));
        assert!(asked("other.example").is_none(), "nobody has logged in there");
        std::fs::write(&file, r#"{"credHelpers": {"b.example": "../x"}}"#).unwrap();
        let error = credentials(&file, "b.example", Some(&helper)).unwrap_err();
        assert!(matches!(error, AuthError::Asked { .. }), "{error}");
        let token = r#"{"auths": {"a": {"identitytoken": "x"}}}"#;
        assert!(matches!(ask(token, "a"), Err(AuthError::IdentityToken { .. })));
    }

    #[test]
    fn the_daemon_refuses_helpers_by_name() {
        let config = r#"{"auths": {"a.example": {}}, "credsStore": "desktop", "credHelpers": {"b.example": "gcloud"}}"#;
        assert!(ask(config, "a.example").unwrap_err().to_string().contains("\"desktop\""));
        assert!(ask(config, "b.example").unwrap_err().to_string().contains("\"gcloud\""));
        assert!(ask(config, "c.example").unwrap().is_none());
    }

    #[test]
    fn damage_is_named_and_secrets_are_not() {
        for auth in ["???", "bm9jb2xvbg=="] {
            let error = ask(&format!(r#"{{"auths": {{"a": {{"auth": "{auth}"}}}}}}"#), "a").unwrap_err();
            assert!(matches!(error, AuthError::Damaged { .. }) && !error.to_string().contains(auth));
        }
        assert!(matches!(ask("[", "a"), Err(AuthError::Syntax { .. })));
    }

    proptest! {
        #[test]
        fn stored_credentials_are_found(
            username in "[^:]{0,20}",
            password in ".{0,30}",
            registry in "[a-z]{1,8}(\\.example)?(:[0-9]{1,5})?",
            scheme in prop::sample::select(vec!["", "http://", "https://"]),
            path in prop::sample::select(vec!["", "/v1/", "/v2"]),
            in_words in any::<bool>(),
        ) {
            let entry = match in_words {
                true => json!({"username": username.as_str(), "password": password.as_str()}),
                false => json!({"auth": STANDARD.encode(format!("{username}:{password}"))}),
            };
            let key = format!("{scheme}{registry}{path}");
            let config = json!({"auths": {"other.example:1": {}, key: entry}, "credsStore": "desktop"}).to_string();
            let file = Path::new("config.json");
            let found = parse(config.as_bytes(), file, &registry, None).unwrap();
            let expected = Some(Credentials { username, password });
            prop_assert!(found == expected);
            prop_assert!(parse(config.as_bytes(), file, "another.example:2", None).unwrap().is_none());
        }

        #[test]
        fn any_file_has_credentials_has_none_or_is_refused(
            bytes in any::<Vec<u8>>(),
            auth in "[!-~]{24,40}",
            at in any::<prop::sample::Index>(),
            byte in any::<u8>(),
        ) {
            let read = |bytes: &[u8]| parse(bytes, Path::new("config.json"), "a.example", None);
            let _ = read(&bytes);
            let config = json!({"auths": {"a.example": {"auth": auth.as_str()}}, "credHelpers": {"b.example": "x"}});
            let mut config = config.to_string().into_bytes();
            match read(&config) {
                Ok(found) => {
                    let found = found.unwrap();
                    let text = format!("{}:{}", found.username, found.password);
                    prop_assert!(STANDARD.encode(text) == auth);
                }
                Err(error) => prop_assert!(!error.to_string().contains(&auth)),
            }
            let at = at.index(config.len());
            config[at] = byte;
            let _ = read(&config);
        }
    }
}
