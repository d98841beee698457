//! Making the account: lines in the user files, a home, sudo.
//!
//! An image may have any of it already, or nothing at all. What is there stays; passwd(5) is written last, so that a guest that
//! ends half-way does the rest the next time.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown, lchown};
use std::path::{Path, PathBuf};

use forkd_proto::agent::account::Account;

use crate::users::{User, Users};

const MAX_NAME: usize = 32;
/// The ids of people, as useradd(8) gives them out.
const LAST_ID: u32 = 60_000;
const SHELLS: [&str; 2] = ["/bin/bash", "/bin/sh"];
const SKELETON: &str = "/etc/skel";
const LOCAL: &str = "/usr/local";
const SUDOERS: &str = "/etc/sudoers";
const SUDOERS_DIRECTORY: &str = "/etc/sudoers.d";
/// Where a sudo may be, as its own search path has it.
const PROGRAM_DIRECTORIES: [&str; 6] =
    ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
/// Where ours is put: the first that is there. A package of sudo has its own there, and replaces ours.
const OWN_DIRECTORIES: [&str; 2] = ["/usr/bin", "/bin"];
/// A larger file is not a list of users, nor of rules.
const MAX_FILE: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum AccountError {
    #[error("invalid account name '{0}': expected a-z, 0-9, _ and -, at most {MAX_NAME} characters")]
    Name(String),
    #[error("invalid home '{0}': expected an absolute path without colons")]
    Home(String),
    #[error("no free id for the account up to {LAST_ID}")]
    NoId,
    #[error("cannot make {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
}

/// Sees to it that the system below `root` has the account. `program` is a sudo for an image without one.
pub fn make(root: &Path, account: &Account, program: Option<&Path>) -> Result<(), AccountError> {
    check(account)?;
    let system = System { root };
    let user = match Users::read_below(root).find(&account.name) {
        Ok(user) => user,
        Err(_) => system.add_user(account)?,
    };
    system.make_home(&user.home, &user)?;
    // Programs have this path in them, wherever the image's own user of the name lives.
    system.make_home(Path::new(&account.home), &user)?;
    system.give_local(&user)?;
    system.allow_sudo(&account.name)?;
    match program {
        Some(program) => system.provide_sudo(program),
        None => Ok(()),
    }
}

fn check(account: &Account) -> Result<(), AccountError> {
    let Account { name, home, .. } = account;
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-');
    let begins = name.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase() || byte == b'_');
    if !begins || name.len() > MAX_NAME || !name.bytes().all(plain) {
        return Err(AccountError::Name(name.chars().take(MAX_NAME).collect()));
    }
    let bad = |character: char| character == ':' || character.is_control();
    if !home.starts_with('/') || home.contains(bad) {
        return Err(AccountError::Home(home.chars().take(100).collect()));
    }
    Ok(())
}

/// The files of a system.
struct System<'a> {
    root: &'a Path,
}

impl System<'_> {
    fn path(&self, absolute: impl AsRef<Path>) -> PathBuf {
        let absolute = absolute.as_ref();
        self.root.join(absolute.strip_prefix("/").unwrap_or(absolute))
    }

    fn add_user(&self, account: &Account) -> Result<User, AccountError> {
        let Account { name, home, .. } = account;
        let users = Users::read_below(self.root);
        let uid = (account.uid..=LAST_ID).find(|uid| users.by_uid(*uid).is_none());
        let uid = uid.ok_or(AccountError::NoId)?;
        let gid = match users.group(name) {
            Some(gid) => gid,
            None => {
                let gid = (uid..=LAST_ID).find(|gid| !users.has_group(*gid)).ok_or(AccountError::NoId)?;
                self.add_line("/etc/group", &format!("{name}:x:{gid}:"), 0o644)?;
                gid
            }
        };
        let etc = self.path("/etc");
        fs::create_dir_all(&etc).map_err(at(&etc))?;
        let shell = SHELLS.into_iter().find(|shell| self.path(shell).exists()).unwrap_or(SHELLS[1]);
        // No password fits `*`. Without an entry, PAM takes the account for a broken one, and sudo refuses it. Empty dates
        // never expire.
        for (file, line) in
            [("/etc/shadow", format!("{name}:*::0:99999:7:::")), ("/etc/gshadow", format!("{name}:!::"))]
        {
            if self.path(file).exists() {
                self.add_line(file, &line, 0o640)?;
            }
        }
        let password = if self.path("/etc/shadow").exists() { "x" } else { "*" };
        self.add_line("/etc/passwd", &format!("{name}:{password}:{uid}:{gid}::{home}:{shell}"), 0o644)?;
        Ok(User { name: name.clone(), uid, gid, home: home.into(), groups: vec![gid] })
    }

    /// Adds a line for a name that the file has no line for.
    fn add_line(&self, file: &str, line: &str, mode: u32) -> Result<(), AccountError> {
        let path = self.path(file);
        let name = line.split(':').next().unwrap_or(line);
        let add = || {
            let parent = path.parent().unwrap_or(self.root);
            fs::create_dir_all(parent)?;
            let mut open = File::options();
            let mut file = open.read(true).append(true).create(true).mode(mode).open(&path)?;
            let mut before = Vec::new();
            (&file).take(MAX_FILE).read_to_end(&mut before)?;
            let is_there = before
                .split(|byte| *byte == b'\n')
                .any(|line| line.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.starts_with(b":")));
            if is_there {
                return Ok(());
            }
            // Who reads the file meanwhile sees the whole line or nothing of it: it is one write, at the end.
            let begun = if ends_a_line(&mut file)? { "" } else { "\n" };
            file.write_all(format!("{begun}{line}\n").as_bytes())
        };
        add().map_err(at(&path))
    }

    /// A directory that is the user's, with what new homes begin with. One that belonged to another user is handed over with
    /// everything in it.
    fn make_home(&self, home: &Path, user: &User) -> Result<(), AccountError> {
        let path = self.path(home);
        // A system user may live in `/` or share a directory with others.
        if home.components().count() < 3 || home.starts_with("/usr") || home.starts_with("/var") {
            return Ok(());
        }
        match fs::metadata(&path) {
            Ok(found) if found.is_dir() && found.uid() == user.uid => return Ok(()),
            Ok(_) => {}
            Err(_) => {
                fs::create_dir_all(&path).map_err(at(&path))?;
                fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(at(&path))?;
                self.copy_skeleton(&path);
            }
        }
        hand_over(&path, user).map_err(at(&path))
    }

    /// The user may install programs: on E2B everybody may write to /usr/local. Here only the user may, who has sudo anyway: what other
    /// accounts put there, root would run. Files stay root's.
    fn give_local(&self, user: &User) -> Result<(), AccountError> {
        let path = self.path(LOCAL);
        if !fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir()) {
            return Ok(());
        }
        let owner = fs::metadata(self.root).map_err(at(self.root))?.uid();
        each(&path, |path, data| match data.is_dir() && data.uid() == owner {
            true => lchown(path, Some(user.uid), None),
            false => Ok(()),
        })
        .map_err(at(&path))
    }

    /// The files that useradd(8) copies. They are a convenience: what cannot be copied is left out.
    fn copy_skeleton(&self, home: &Path) {
        let entries = fs::read_dir(self.path(SKELETON)).into_iter().flatten().flatten();
        for entry in entries {
            let is_small = |data: fs::Metadata| data.is_file() && data.len() <= MAX_FILE;
            if fs::symlink_metadata(entry.path()).is_ok_and(is_small) {
                let _ = fs::copy(entry.path(), home.join(entry.file_name()));
            }
        }
    }

    /// The rule is written also where there is no sudo: one that is installed later finds it.
    fn allow_sudo(&self, name: &str) -> Result<(), AccountError> {
        let rule = format!("{name} ALL=(ALL:ALL) NOPASSWD: ALL\n");
        let (main, directory) = (self.path(SUDOERS), self.path(SUDOERS_DIRECTORY));
        let own = directory.join(format!("forkd-{name}"));
        let mut text = String::new();
        if let Ok(file) = File::open(&main) {
            // What is not text says nothing of the directory.
            let _ = file.take(MAX_FILE).read_to_string(&mut text);
        }
        let is_included = |line: &str| {
            let mut words = line.split_whitespace();
            matches!(words.next(), Some("@includedir" | "#includedir"))
                && words.next() == Some(SUDOERS_DIRECTORY)
        };
        if main.exists() && !text.lines().any(is_included) {
            if text.contains(rule.trim_end()) {
                return Ok(());
            }
            let begun = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
            let append =
                || File::options().append(true).open(&main)?.write_all(format!("{begun}{rule}").as_bytes());
            return append().map_err(at(&main));
        }
        if own.exists() {
            return Ok(());
        }
        let write = || {
            if !directory.exists() {
                fs::create_dir_all(&directory)?;
                fs::set_permissions(&directory, fs::Permissions::from_mode(0o750))?;
            }
            // sudo ignores names with a dot, so half a rule is never read.
            let new = directory.join(format!("forkd-{name}.new"));
            fs::write(&new, &rule)?;
            fs::set_permissions(&new, fs::Permissions::from_mode(0o440))?;
            fs::rename(&new, &own)
        };
        write().map_err(at(&own))
    }

    /// Puts ours where there is no other.
    fn provide_sudo(&self, program: &Path) -> Result<(), AccountError> {
        let is_there = |directory: &&str| fs::symlink_metadata(self.path(directory).join("sudo")).is_ok();
        if PROGRAM_DIRECTORIES.iter().any(is_there) {
            return Ok(());
        }
        let directory = OWN_DIRECTORIES.into_iter().find(|directory| self.path(directory).is_dir());
        let directory = self.path(directory.unwrap_or(OWN_DIRECTORIES[0]));
        let path = directory.join("sudo");
        let write = || {
            fs::create_dir_all(&directory)?;
            let new = directory.join(".sudo.forkd");
            fs::copy(program, &new)?;
            // In this order: a change of the owner takes the right away.
            let owner = fs::metadata(self.root)?;
            chown(&new, Some(owner.uid()), Some(owner.gid()))?;
            fs::set_permissions(&new, fs::Permissions::from_mode(0o4755))?;
            fs::rename(&new, &path)
        };
        write().map_err(at(&path))
    }
}

fn at(path: &Path) -> impl Fn(io::Error) -> AccountError {
    move |source| AccountError::Write { path: path.to_owned(), source }
}

fn ends_a_line(file: &mut File) -> io::Result<bool> {
    if file.seek(SeekFrom::End(0))? == 0 {
        return Ok(true);
    }
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

/// Gives a directory and everything in it to the user.
fn hand_over(path: &Path, user: &User) -> io::Result<()> {
    each(path, |path, _| lchown(path, Some(user.uid), Some(user.gid)))
}

/// Does something with a directory and everything in it. Links are not followed, other filesystems not entered.
fn each(path: &Path, act: impl Fn(&Path, &fs::Metadata) -> io::Result<()>) -> io::Result<()> {
    let device = fs::metadata(path)?.dev();
    let mut waiting = vec![path.to_owned()];
    while let Some(path) = waiting.pop() {
        let data = fs::symlink_metadata(&path)?;
        if data.dev() != device {
            continue;
        }
        act(&path, &data)?;
        if data.is_dir() {
            for entry in fs::read_dir(&path)? {
                waiting.push(entry?.path());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
