//! What all handlers share: the children, and the settings that a fork changes.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::children::{CGROUPS, Children};
use crate::envd::{LastTimes, Processes, Watchers};
use crate::identity::{Foreign, Gate, Guest, Own};
use crate::interpreter::Contexts;
use crate::startup::Startup;

/// One per process.
#[derive(Debug)]
pub struct Agent {
    pub children: Children,
    pub processes: Processes,
    pub watchers: Watchers,
    pub contexts: Contexts,
    /// Closed between a fork and its identity.
    pub gate: Gate,
    pub guest: Box<dyn Guest>,
    pub startup: Startup,
    pub last_times: LastTimes,
    /// Whether this is a guest's PID 1: then the clock is ours to set.
    pub owns_guest: bool,
    settings: Mutex<Settings>,
}

/// What a sandbox is told about itself. A fork replaces it before anything is served.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// The environment of every process: the image's, then the sandbox's.
    pub environment: BTreeMap<String, String>,
    /// Without one, everybody who reaches the agent is welcome.
    pub access_token: Option<String>,
    /// Empty: `user` where the image has one, otherwise root.
    pub default_user: String,
    /// Where relative paths begin, and where processes start. Without one: the user's home.
    pub default_workdir: Option<PathBuf>,
    /// Whether the host has asked for an account ([`crate::account`]) and it was made.
    pub has_account: bool,
}

impl Agent {
    /// Starts reaping, so it must be called within the runtime, and once in a process.
    pub fn start(settings: Settings, owns_guest: bool) -> io::Result<Self> {
        let children = Children::start()?;
        let children = if owns_guest { children.below(Path::new(CGROUPS)) } else { children };
        Ok(Self::with_children(children, settings, owns_guest))
    }

    pub fn with_children(children: Children, settings: Settings, owns_guest: bool) -> Self {
        Self {
            children,
            processes: Processes::default(),
            watchers: Watchers::default(),
            contexts: Contexts::default(),
            gate: Gate::default(),
            startup: Startup::default(),
            guest: if owns_guest { Box::new(Own::default()) } else { Box::new(Foreign) },
            last_times: LastTimes::default(),
            owns_guest,
            settings: Mutex::new(settings),
        }
    }

    /// A copy: settings are small, and no task waits while another reads them.
    pub fn settings(&self) -> Settings {
        self.lock().clone()
    }

    /// Changes the settings for every request that begins after this.
    pub fn change(&self, change: impl FnOnce(&mut Settings)) {
        change(&mut self.lock());
    }

    fn lock(&self) -> MutexGuard<'_, Settings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
