//! The file that tokens are kept in.
//!
//! ```json
//! {"version": 1, "tokens": [{"name": "ci", "scope": "run", "project": "default", "sha256": "…", "created_at_unix": 1760000000}],
//!  "projects": [{"name": "default", "limits": {"sandboxes": 100}}]}
//! ```
//!
//! Both the command line and the daemon write it: the whole file each time, under a lock, with a rename at the end. A
//! reader sees one version or the next.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use forkd_api::token::{Project as Limited, Scope, Token, TokenLimits};
use forkd_engine::project::{Project, ProjectError};
use forkd_store::Stamp;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use super::secret::{Fingerprint, NoRandomness, Secret};
use crate::whole_file;

const VERSION: u32 = 1;
/// Thousands of tokens. A larger file is not ours.
const MAX_BYTES: u64 = 1 << 20;
const MAX_TOKENS: usize = 1000;
const MAX_NAME: usize = 64;

/// Tokens could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error("cannot {verb} {}", path.display())]
    Io { verb: &'static str, path: PathBuf, source: io::Error },
    #[error("{} is damaged; repair it, or remove it and make new tokens", path.display())]
    Damaged { path: PathBuf, source: Damage },
    #[error("there is a token named {0} already; remove it first (forkd token rm {0})")]
    NameTaken(String),
    #[error("there is no token named {0} (forkd token ls)")]
    NoSuchToken(String),
    #[error(
        "invalid token name {0:?}: expected 1 to {MAX_NAME} letters, digits, dots, dashes and underscores"
    )]
    BadName(String),
    #[error("there are {MAX_TOKENS} tokens already; remove some (forkd token rm)")]
    TooMany,
    #[error("{MAX_TOKENS} projects have limits already")]
    TooManyProjects,
    #[error("{} has no secret: expected e2b_ and 40 hexadecimal digits (echo e2b_$(openssl rand -hex 20))", .0.display())]
    BadSecret(PathBuf),
    #[error(transparent)]
    NoRandomness(#[from] NoRandomness),
}

/// What is wrong with a token file.
#[derive(Debug, thiserror::Error)]
pub enum Damage {
    #[error("more than {MAX_BYTES} bytes")]
    TooLarge,
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("unsupported version {0}, expected {VERSION}")]
    Version(u32),
    #[error("more than {MAX_TOKENS} tokens or projects")]
    TooMany,
    #[error("invalid token name {0:?}")]
    Name(String),
    #[error("two tokens or two projects are named {0}")]
    Twice(String),
    #[error(transparent)]
    Project(#[from] ProjectError),
}

/// A token as it is kept.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TokenEntry {
    #[serde(flatten)]
    pub token: Token,
    pub sha256: Fingerprint,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Content {
    version: u32,
    pub tokens: Vec<TokenEntry>,
    /// Those with limits. There are others: a token's project need not be here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub projects: Vec<Limited>,
}

impl Content {
    fn add(&mut self, entry: TokenEntry) -> Result<(), TokenError> {
        if self.tokens.len() >= MAX_TOKENS {
            return Err(TokenError::TooMany);
        }
        self.tokens.push(entry);
        Ok(())
    }
}

/// What was read, from which version of the file; it is held open so that the stamp stays its own.
#[derive(Debug, Default)]
pub struct Version {
    pub stamp: Option<Stamp>,
    pub entries: Vec<TokenEntry>,
    pub projects: Vec<Limited>,
    _file: Option<File>,
}

impl Version {
    /// Whether the same secrets are good for the same things in both.
    pub fn has_same_tokens(&self, other: &Version) -> bool {
        let same = |(one, two): (&TokenEntry, &TokenEntry)| {
            let unused = |token: &Token| Token { last_used_at_unix: None, ..token.clone() };
            unused(&one.token) == unused(&two.token) && one.sha256.matches(&two.sha256)
        };
        self.projects == other.projects
            && self.entries.len() == other.entries.len()
            && self.entries.iter().zip(&other.entries).all(same)
    }
}

/// The file of tokens.
#[derive(Debug, Clone)]
pub struct TokenFile {
    path: PathBuf,
}

impl TokenFile {
    /// The file of tokens in this directory.
    pub fn new(home: &Path) -> TokenFile {
        TokenFile { path: home.join("tokens.json") }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Which version there is now; `None` if there is no file.
    pub fn stamp(&self) -> Result<Option<Stamp>, TokenError> {
        match fs::metadata(&self.path) {
            Ok(metadata) => Ok(Some(Stamp::of(&metadata))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.failed("read")(error)),
        }
    }

    /// Reads the file. No file is no tokens.
    pub fn read(&self) -> Result<Version, TokenError> {
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Version::default()),
            Err(error) => return Err(self.failed("read")(error)),
        };
        let metadata = file.metadata().map_err(self.failed("read"))?;
        let mut text = Vec::new();
        (&file).take(MAX_BYTES + 1).read_to_end(&mut text).map_err(self.failed("read"))?;
        let Content { tokens, projects, .. } =
            parse(&text).map_err(|source| TokenError::Damaged { path: self.path.clone(), source })?;
        Ok(Version { stamp: Some(Stamp::of(&metadata)), entries: tokens, projects, _file: Some(file) })
    }

    /// The tokens, in the order of their names.
    pub fn list(&self) -> Result<Vec<Token>, TokenError> {
        let mut tokens: Vec<Token> = self.read()?.entries.into_iter().map(|entry| entry.token).collect();
        tokens.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(tokens)
    }

    /// Makes a token. The secret is nowhere else.
    pub fn create(
        &self,
        name: &str,
        project: &Project,
        scope: Scope,
        limits: TokenLimits,
    ) -> Result<(Token, Secret), TokenError> {
        let secret = Secret::generate()?;
        let token = new_token(name, project, scope, limits)?;
        self.change(|content| {
            if content.tokens.iter().any(|entry| entry.token.name == name) {
                return Err(TokenError::NameTaken(name.to_owned()));
            }
            content.add(TokenEntry { token: token.clone(), sha256: secret.fingerprint() })
        })?;
        Ok((token, secret))
    }

    /// Makes a token with a secret that exists already, and replaces the token of this name if there is one.
    pub fn set(
        &self,
        name: &str,
        project: &Project,
        scope: Scope,
        limits: TokenLimits,
        secret: &Secret,
    ) -> Result<Token, TokenError> {
        let mut token = new_token(name, project, scope, limits)?;
        let sha256 = secret.fingerprint();
        self.change(|content| {
            if let Some(at) = content.tokens.iter().position(|entry| entry.token.name == name) {
                let old = content.tokens.remove(at);
                if old.sha256.matches(&sha256) {
                    token.created_at_unix = old.token.created_at_unix;
                    token.last_used_at_unix = old.token.last_used_at_unix;
                }
            }
            content.add(TokenEntry { token: token.clone(), sha256 })
        })?;
        Ok(token)
    }

    /// Removes a token. A daemon that runs refuses it from its next request on.
    pub fn remove(&self, name: &str) -> Result<(), TokenError> {
        self.change(|Content { tokens: entries, .. }| {
            let before = entries.len();
            entries.retain(|entry| entry.token.name != name);
            if entries.len() == before { Err(TokenError::NoSuchToken(name.to_owned())) } else { Ok(()) }
        })
    }

    /// The projects that tokens belong to or that have limits, in the order of their names.
    pub fn projects(&self) -> Result<Vec<Limited>, TokenError> {
        let Version { entries, projects, .. } = self.read()?;
        let mut all: std::collections::BTreeMap<String, TokenLimits> =
            entries.into_iter().map(|entry| (entry.token.project, TokenLimits::default())).collect();
        all.insert(Project::default().into(), TokenLimits::default());
        all.extend(projects.into_iter().map(|project| (project.name, project.limits)));
        Ok(all.into_iter().map(|(name, limits)| Limited { name, limits }).collect())
    }

    /// Sets what a project's tokens may have together, from the daemon's next request on.
    pub fn limit_project(&self, project: &Project, limits: TokenLimits) -> Result<(), TokenError> {
        self.change(|Content { projects, .. }| {
            projects.retain(|other| other.name != project.as_str());
            if !limits.is_nothing() {
                if projects.len() >= MAX_TOKENS {
                    return Err(TokenError::TooManyProjects);
                }
                projects.push(Limited { name: project.to_string(), limits });
            }
            Ok(())
        })
    }

    /// Reads, changes and replaces the file, under a lock.
    pub(super) fn change(
        &self,
        change: impl FnOnce(&mut Content) -> Result<(), TokenError>,
    ) -> Result<(), TokenError> {
        let home = self.path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(home).map_err(self.failed("make the directory of"))?;
        // Not the file itself, which is another one after each change.
        let lock = File::create(home.join("tokens.lock")).map_err(self.failed("lock"))?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)
            .map_err(|errno| self.failed("lock")(errno.into()))?;
        let Version { entries, projects, .. } = self.read()?;
        let mut content = Content { version: VERSION, tokens: entries, projects };
        change(&mut content)?;
        let mut text =
            serde_json::to_vec_pretty(&content).map_err(|error| self.failed("write")(error.into()))?;
        text.push(b'\n');
        whole_file::replace(&self.path, &text).map_err(self.failed("write"))
    }

    fn failed(&self, verb: &'static str) -> impl FnOnce(io::Error) -> TokenError {
        move |source| TokenError::Io { verb, path: self.path.clone(), source }
    }
}

fn parse(text: &[u8]) -> Result<Content, Damage> {
    if u64::try_from(text.len()).is_ok_and(|length| length > MAX_BYTES) {
        return Err(Damage::TooLarge);
    }
    let content: Content = serde_json::from_slice(text)?;
    if content.version != VERSION {
        return Err(Damage::Version(content.version));
    }
    if content.tokens.len() > MAX_TOKENS || content.projects.len() > MAX_TOKENS {
        return Err(Damage::TooMany);
    }
    let mut names = std::collections::BTreeSet::new();
    for TokenEntry { token, .. } in &content.tokens {
        if !is_name(&token.name) {
            return Err(Damage::Name(token.name.clone()));
        }
        if !names.insert(&token.name) {
            return Err(Damage::Twice(token.name.clone()));
        }
        token.project.parse::<Project>()?;
    }
    let mut names = std::collections::BTreeSet::new();
    for Limited { name, .. } in &content.projects {
        if !names.insert(name.parse::<Project>()?) {
            return Err(Damage::Twice(name.clone()));
        }
    }
    Ok(content)
}

fn new_token(name: &str, project: &Project, scope: Scope, limits: TokenLimits) -> Result<Token, TokenError> {
    if !is_name(name) {
        return Err(TokenError::BadName(name.to_owned()));
    }
    Ok(Token {
        name: name.to_owned(),
        scope,
        project: project.to_string(),
        created_at_unix: now_unix(),
        limits,
        last_used_at_unix: None,
    })
}

fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(plain)
}

pub(super) fn now_unix() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn tokens_come_and_go() {
        let home = tempfile::tempdir().unwrap();
        let file = TokenFile::new(home.path());
        assert!(file.list().unwrap().is_empty());
        let (token, secret) =
            file.create("ci", &Project::default(), Scope::Run, TokenLimits::default()).unwrap();
        file.create("a.b-c_1", &Project::default(), Scope::Read, TokenLimits::default()).unwrap();
        assert!(matches!(
            file.create("ci", &Project::default(), Scope::Read, TokenLimits::default()),
            Err(TokenError::NameTaken(_))
        ));
        for name in ["", "a b", "ü", "a/b", &"x".repeat(65)] {
            assert!(
                matches!(
                    file.create(name, &Project::default(), Scope::Read, TokenLimits::default()),
                    Err(TokenError::BadName(_))
                ),
                "{name}"
            );
        }
        let names: Vec<String> = file.list().unwrap().into_iter().map(|token| token.name).collect();
        assert_eq!(names, ["a.b-c_1", "ci"]);
        assert_eq!(file.list().unwrap()[1], token);
        let text = fs::read_to_string(file.path()).unwrap();
        assert!(!text.contains(&secret.expose()[4..]));
        assert_eq!(fs::metadata(file.path()).unwrap().permissions().mode() & 0o777, 0o600);
        file.remove("ci").unwrap();
        assert!(matches!(file.remove("ci"), Err(TokenError::NoSuchToken(_))));
        assert_eq!(file.list().unwrap().len(), 1);
    }

    #[test]
    fn a_token_is_set_to_a_given_secret() {
        let home = tempfile::tempdir().unwrap();
        let file = TokenFile::new(home.path());
        let (one, two) = (Secret::generate().unwrap(), Secret::generate().unwrap());
        let set =
            |name, secret| file.set(name, &Project::default(), Scope::Run, TokenLimits::default(), secret);
        set("pod", &one).unwrap();
        file.change(|content| {
            content.tokens[0].token.last_used_at_unix = Some(9);
            Ok(())
        })
        .unwrap();
        // The same secret again is the same token, another one a new token.
        assert_eq!(set("pod", &one).unwrap().last_used_at_unix, Some(9));
        assert_eq!(set("pod", &two).unwrap().last_used_at_unix, None);
        let entries = file.read().unwrap().entries;
        assert_eq!(entries.len(), 1);
        assert!(entries[0].sha256.matches(&two.fingerprint()));
        assert!(matches!(set("a b", &one), Err(TokenError::BadName(_))));
    }

    #[test]
    fn projects_are_those_of_tokens_and_those_with_limits() {
        let home = tempfile::tempdir().unwrap();
        let file = TokenFile::new(home.path());
        let (one, two): (Project, Project) = ("one".parse().unwrap(), "two".parse().unwrap());
        file.create("ci", &one, Scope::Run, TokenLimits::default()).unwrap();
        let limits = TokenLimits { sandboxes: Some(3), ..TokenLimits::default() };
        file.limit_project(&two, limits).unwrap();
        let listed = |file: &TokenFile| -> Vec<(String, Option<u64>)> {
            file.projects().unwrap().into_iter().map(|it| (it.name, it.limits.sandboxes)).collect()
        };
        let with = |two| vec![("default".into(), None), ("one".into(), None), ("two".into(), two)];
        assert_eq!(listed(&file), with(Some(3)));
        file.limit_project(&two, TokenLimits { sandboxes: Some(4), ..limits }).unwrap();
        assert_eq!(listed(&file), with(Some(4)));
        file.limit_project(&two, TokenLimits::default()).unwrap();
        assert_eq!(listed(&file).len(), 2);
        assert_eq!(file.list().unwrap()[0].project, "one");
    }

    #[test]
    fn every_version_has_its_own_stamp() {
        let home = tempfile::tempdir().unwrap();
        let file = TokenFile::new(home.path());
        assert_eq!(file.stamp().unwrap(), None);
        // The same size each time, as quickly as it goes.
        for _ in 0..50 {
            file.change(|_| Ok(())).unwrap();
            let version = file.read().unwrap();
            assert_eq!(file.stamp().unwrap(), version.stamp);
            file.change(|_| Ok(())).unwrap();
            assert_ne!(file.stamp().unwrap(), version.stamp);
        }
    }

    #[test]
    fn damage_is_named() {
        let entry = |name: &str| {
            format!(r#"{{"name":"{name}","scope":"run","created_at_unix":1,"sha256":"{}"}}"#, "0".repeat(64))
        };
        let content = |version: u32, entries: &[String]| {
            format!(r#"{{"version":{version},"tokens":[{}]}}"#, entries.join(","))
        };
        assert_eq!(parse(content(1, &[entry("a"), entry("b")]).as_bytes()).unwrap().tokens.len(), 2);
        let check = |text: String| parse(text.as_bytes()).unwrap_err();
        assert!(matches!(check("{".into()), Damage::Json(_)));
        assert!(matches!(check(content(2, &[])), Damage::Version(2)));
        assert!(matches!(check(content(1, &[entry("a b")])), Damage::Name(_)));
        assert!(matches!(check(content(1, &[entry("a"), entry("a")])), Damage::Twice(_)));
        assert!(matches!(check(content(1, &[entry("a").replace("run", "root")])), Damage::Json(_)));
        assert!(matches!(check(" ".repeat(1 << 21)), Damage::TooLarge));
        let of_project = |project: &str| {
            content(1, &[entry("a").replace("\"scope\"", &format!("\"project\":\"{project}\",\"scope\""))])
        };
        assert_eq!(parse(of_project("one").as_bytes()).unwrap().tokens[0].token.project, "one");
        assert!(matches!(check(of_project("a b")), Damage::Project(_)));
        let limited = |names: &[&str]| {
            let projects: Vec<_> =
                names.iter().map(|name| format!(r#"{{"name":"{name}","limits":{{}}}}"#)).collect();
            format!(r#"{{"version":1,"tokens":[],"projects":[{}]}}"#, projects.join(","))
        };
        assert_eq!(parse(limited(&["a", "b"]).as_bytes()).unwrap().projects.len(), 2);
        assert!(matches!(check(limited(&["a", "a"])), Damage::Twice(_)));
        assert!(matches!(check(limited(&["a b"])), Damage::Project(_)));
        let many: Vec<String> = (0..=MAX_TOKENS).map(|i| entry(&i.to_string())).collect();
        assert!(matches!(check(content(1, &many)), Damage::TooMany));
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn what_is_written_is_read(
            names in proptest::collection::btree_set("[a-zA-Z0-9._-]{1,64}", 0..20),
            place: prop::sample::Index,
        ) {
            let entries: Vec<TokenEntry> = names.iter().map(|name| TokenEntry {
                token: Token {
                    name: name.clone(),
                    scope: Scope::Admin,
                    project: "default".into(),
                    created_at_unix: 7,
                    limits: TokenLimits::default(),
                    last_used_at_unix: (name.len() % 2 == 0).then_some(9),
                },
                sha256: Secret::generate().unwrap().fingerprint(),
            }).collect();
            let text = serde_json::to_vec(&Content { version: VERSION, tokens: entries.clone(), projects: Vec::new() }).unwrap();
            let read = parse(&text).unwrap().tokens;
            prop_assert_eq!(read.len(), entries.len());
            for (read, written) in read.iter().zip(&entries) {
                prop_assert_eq!(&read.token, &written.token);
                prop_assert!(read.sha256.matches(&written.sha256));
            }
            // A bit that is wrong is seen or harmless, never a panic.
            let mut text = text;
            let index = place.index(text.len());
            text[index] ^= 1;
            let _ = parse(&text);
        }
    }
}
