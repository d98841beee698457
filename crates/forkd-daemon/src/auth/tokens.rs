//! The tokens that are good now.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use forkd_api::token::{Scope, TokenLimits};
use forkd_engine::project::Project;
use forkd_store::Stamp;

use super::file::{TokenError, TokenFile, Version, now_unix};
use super::secret::Secret;

/// The daemon's view of the token file. Each request looks whether the file is still the one that was read: one stat(2),
/// and a removed token is refused from the very next request on. A watch (inotify) would be told later than it happens.
#[derive(Debug)]
pub struct Tokens {
    file: TokenFile,
    current: RwLock<Arc<Version>>,
    /// What was complained about already.
    complained: Mutex<Complaint>,
    /// When tokens were used since this was last written.
    used: Mutex<BTreeMap<String, u64>>,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Complaint {
    #[default]
    Nothing,
    /// The file could not be looked at.
    Unseen,
    /// This version of it could not be read.
    Unread(Option<Stamp>),
}

/// Whose request it is, by its token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pub name: String,
    pub scope: Scope,
    pub project: Project,
    pub limits: TokenLimits,
}

impl Tokens {
    /// A file that is damaged from the start is an error: its author wanted protection.
    pub fn open(file: TokenFile) -> Result<Tokens, TokenError> {
        let current = RwLock::new(Arc::new(file.read()?));
        Ok(Tokens { file, current, complained: Mutex::default(), used: Mutex::default() })
    }

    /// Whether requests need one: there is one, or there was. The file stays when the last one is removed from it.
    pub fn needed(&self) -> bool {
        self.current().stamp.is_some()
    }

    /// Whether there are any.
    pub fn any(&self) -> bool {
        !self.current().entries.is_empty()
    }

    /// Whose secret this is.
    pub fn holder(&self, secret: &Secret) -> Option<Holder> {
        let fingerprint = secret.fingerprint();
        let version = self.current();
        // All of them are looked at, so that the time says nothing about which one it was.
        let found = version.entries.iter().fold(None, |found, entry| {
            if entry.sha256.matches(&fingerprint) { Some(&entry.token) } else { found }
        })?;
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.insert(found.name.clone(), now_unix());
        // It was checked when it was read.
        let project = found.project.parse().ok()?;
        Some(Holder { name: found.name.clone(), scope: found.scope, project, limits: found.limits })
    }

    /// What all of a project's may have together.
    pub fn limits_of(&self, project: &Project) -> TokenLimits {
        let version = self.current();
        let found = version.projects.iter().find(|limited| limited.name == project.as_str());
        found.map(|limited| limited.limits).unwrap_or_default()
    }

    /// The newest version that can be read. One that cannot leaves what was: no token becomes good by damage, and those
    /// that were stay so until it is repaired.
    fn current(&self) -> Arc<Version> {
        let held = Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner));
        let seen = self.file.stamp();
        if seen.as_ref().is_ok_and(|stamp| *stamp == held.stamp) {
            return held;
        }
        let mut complained = self.complained.lock().unwrap_or_else(PoisonError::into_inner);
        let (complaint, error) = match seen {
            Ok(stamp) if *complained == Complaint::Unread(stamp) => return held,
            Ok(stamp) => match self.file.read() {
                Ok(version) => {
                    // The file changes also when it is written down that tokens were used.
                    if !held.has_same_tokens(&version) {
                        tracing::info!(tokens = version.entries.len(), "read the changed tokens");
                    }
                    *complained = Complaint::Nothing;
                    let version = Arc::new(version);
                    *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&version);
                    return version;
                }
                Err(error) => (Complaint::Unread(stamp), error),
            },
            Err(_) if *complained == Complaint::Unseen => return held,
            Err(error) => (Complaint::Unseen, error),
        };
        tracing::error!(error = %crate::error::chain(&error), "cannot read the tokens again: keeping the previous ones");
        *complained = complaint;
        held
    }

    /// Writes when tokens were last used. Blocks; called now and then, and at the end.
    pub fn write_usage(&self) -> Result<(), TokenError> {
        let used = std::mem::take(&mut *self.used.lock().unwrap_or_else(PoisonError::into_inner));
        if used.is_empty() {
            return Ok(());
        }
        self.file.change(|content| {
            for entry in &mut content.tokens {
                let last = used.get(&entry.token.name).copied();
                entry.token.last_used_at_unix = entry.token.last_used_at_unix.max(last);
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_the_file_are_seen_at_once() {
        let home = tempfile::tempdir().unwrap();
        let file = TokenFile::new(home.path());
        let tokens = Tokens::open(file.clone()).unwrap();
        assert!(!tokens.any());
        let (_, secret) =
            file.create("one", &Project::default(), Scope::Run, TokenLimits::default()).unwrap();
        let (_, other) =
            file.create("two", &Project::default(), Scope::Read, TokenLimits::default()).unwrap();
        let limits = TokenLimits::default();
        let project = Project::default();
        let holder = Holder { name: "one".into(), scope: Scope::Run, project: project.clone(), limits };
        assert_eq!(tokens.holder(&secret), Some(holder));
        assert!(tokens.limits_of(&project).is_nothing());
        file.limit_project(&project, TokenLimits { vcpus: Some(2), ..limits }).unwrap();
        assert_eq!(tokens.limits_of(&project).vcpus, Some(2));
        assert_eq!(tokens.holder(&Secret::generate().unwrap()), None);
        file.remove("one").unwrap();
        assert_eq!(tokens.holder(&secret), None);
        assert!(tokens.holder(&other).is_some());
    }

    #[test]
    fn a_daemon_that_had_a_token_stays_closed_without() {
        let home = tempfile::tempdir().unwrap();
        let file = TokenFile::new(home.path());
        let tokens = Tokens::open(file.clone()).unwrap();
        assert!(!tokens.needed());
        file.create("one", &Project::default(), Scope::Run, TokenLimits::default()).unwrap();
        assert!(tokens.needed());
        file.remove("one").unwrap();
        assert!(tokens.needed() && !tokens.any());
        assert!(Tokens::open(file).unwrap().needed(), "also the next daemon");
    }

    /// Which is what is logged.
    #[test]
    fn use_of_a_token_is_not_a_change() {
        let home = tempfile::tempdir().unwrap();
        let file = TokenFile::new(home.path());
        let (_, secret) =
            file.create("one", &Project::default(), Scope::Run, TokenLimits::default()).unwrap();
        let tokens = Tokens::open(file.clone()).unwrap();
        let before = tokens.current();
        assert!(tokens.holder(&secret).is_some());
        tokens.write_usage().unwrap();
        let used = tokens.current();
        assert!(used.stamp != before.stamp && used.has_same_tokens(&before));
        file.create("two", &Project::default(), Scope::Read, TokenLimits::default()).unwrap();
        let more = tokens.current();
        assert!(!more.has_same_tokens(&used));
        // The same name with another secret is another token.
        file.remove("two").unwrap();
        file.create("two", &Project::default(), Scope::Read, TokenLimits::default()).unwrap();
        assert!(!tokens.current().has_same_tokens(&more));
    }

    #[test]
    fn damage_leaves_what_was() {
        let home = tempfile::tempdir().unwrap();
        let file = TokenFile::new(home.path());
        let (_, secret) =
            file.create("one", &Project::default(), Scope::Run, TokenLimits::default()).unwrap();
        let tokens = Tokens::open(file.clone()).unwrap();
        std::fs::write(file.path(), "{").unwrap();
        assert!(tokens.holder(&secret).is_some());
        assert!(tokens.any());
        assert!(matches!(Tokens::open(file.clone()), Err(TokenError::Damaged { .. })));
        std::fs::remove_file(file.path()).unwrap();
        assert!(!tokens.any());
    }

    #[test]
    fn usage_is_written_and_removed_tokens_stay_removed() {
        let home = tempfile::tempdir().unwrap();
        let file = TokenFile::new(home.path());
        let (_, one) = file.create("one", &Project::default(), Scope::Run, TokenLimits::default()).unwrap();
        let (_, two) = file.create("two", &Project::default(), Scope::Run, TokenLimits::default()).unwrap();
        let tokens = Tokens::open(file.clone()).unwrap();
        assert!(tokens.holder(&one).is_some() && tokens.holder(&two).is_some());
        file.remove("two").unwrap();
        tokens.write_usage().unwrap();
        let listed = file.list().unwrap();
        assert_eq!(listed.len(), 1);
        assert!(listed[0].last_used_at_unix.is_some_and(|at| at >= listed[0].created_at_unix));
    }
}
