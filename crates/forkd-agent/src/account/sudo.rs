//! `sudo`, for images that have none: this program under that name, owned by root and with the set-user-id bit.
//!
//! E2B's user may become root without a password, so there is nothing to configure and nothing to ask. Anybody else who calls it is
//! refused. Of sudo(8)'s options, those that scripts use are understood; what would need a policy or a password does nothing.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use forkd_proto::agent::account::Account;
use rustix::fs::{Gid, Uid};
use rustix::process::{geteuid, getgid, getuid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::users::{User, Users};

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// What sudo(8) hands on, as it comes.
const KEPT: [&str; 7] = ["TERM", "COLORTERM", "LANG", "LANGUAGE", "DISPLAY", "XAUTHORITY", "TZ"];

/// Whether this program was started under that name.
pub fn is_sudo(program: &OsStr) -> bool {
    Path::new(program).file_name() == Some(OsStr::new("sudo"))
}

pub fn run(arguments: Vec<OsString>) -> ExitCode {
    let failure = match parse(arguments) {
        Ok(Asked::Nothing) => return ExitCode::SUCCESS,
        Ok(Asked::Run(order)) => become_and_run(order),
        Err(message) => message,
    };
    // An error of stderr itself cannot be reported.
    let _ = writeln!(io::stderr(), "sudo: {failure}");
    ExitCode::FAILURE
}

#[derive(Debug, PartialEq, Eq)]
enum Asked {
    /// Something that needs no doing here, such as `-v`.
    Nothing,
    Run(Order),
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Order {
    user: Option<String>,
    group: Option<String>,
    /// A shell as if the user had logged in.
    login: bool,
    shell: bool,
    keeps_environment: bool,
    directory: Option<PathBuf>,
    variables: Vec<(OsString, OsString)>,
    command: Vec<OsString>,
}

fn parse(arguments: Vec<OsString>) -> Result<Asked, String> {
    let mut order = Order::default();
    let mut rest = arguments.into_iter().peekable();
    let mut nothing = false;
    while let Some(word) = rest.next_if(|word| word.len() > 1 && word.as_bytes().starts_with(b"-")) {
        if word == "--" {
            break;
        }
        let word = word.into_string().map_err(|_| "an option is not UTF-8".to_owned())?;
        let mut value = |name: &str, own: Option<String>| match own {
            Some(own) => Ok(own),
            None => {
                let next = rest.next().ok_or_else(|| format!("{name} needs an argument"))?;
                next.into_string().map_err(|_| format!("the argument of {name} is not UTF-8"))
            }
        };
        if let Some(long) = word.strip_prefix("--") {
            let (name, own) = match long.split_once('=') {
                Some((name, own)) => (name, Some(own.to_owned())),
                None => (long, None),
            };
            match name {
                "user" => order.user = Some(value(&word, own)?),
                "group" => order.group = Some(value(&word, own)?),
                "chdir" => order.directory = Some(value(&word, own)?.into()),
                "login" => order.login = true,
                "shell" => order.shell = true,
                "preserve-env" => order.keeps_environment = true,
                "non-interactive" | "set-home" | "stdin" | "background" | "askpass" | "preserve-groups" => {}
                "validate" | "reset-timestamp" | "remove-timestamp" | "version" | "list" => nothing = true,
                _ => return Err(format!("{word} is not supported")),
            }
            continue;
        }
        let mut letters = word[1..].chars();
        while let Some(letter) = letters.next() {
            let own = || Some(letters.as_str().to_owned()).filter(|own| !own.is_empty());
            match letter {
                'u' | 'g' | 'D' | 'p' | 'C' => {
                    let given = value(&format!("-{letter}"), own())?;
                    match letter {
                        'u' => order.user = Some(given),
                        'g' => order.group = Some(given),
                        'D' => order.directory = Some(given.into()),
                        _ => {}
                    }
                    break;
                }
                'i' => order.login = true,
                's' => order.shell = true,
                'E' => order.keeps_environment = true,
                'n' | 'H' | 'S' | 'A' | 'B' | 'P' => {}
                'v' | 'k' | 'K' | 'V' | 'l' => nothing = true,
                _ => return Err(format!("-{letter} is not supported")),
            }
        }
    }
    while let Some(word) = rest.next_if(|word| variable(word).is_some()) {
        order.variables.extend(variable(&word));
    }
    order.command = rest.collect();
    match (order.command.is_empty(), order.login || order.shell) {
        (true, false) if nothing => Ok(Asked::Nothing),
        (true, false) => Err("usage: sudo [-u USER] [-i | -s] [-E] [NAME=VALUE...] [COMMAND...]".into()),
        _ => Ok(Asked::Run(order)),
    }
}

/// `NAME=VALUE`.
fn variable(word: &OsStr) -> Option<(OsString, OsString)> {
    let bytes = word.as_bytes();
    let at = bytes.iter().position(|byte| *byte == b'=')?;
    let (name, value) = (bytes.get(..at)?, bytes.get(at + 1..)?);
    let begins = name.first().is_some_and(|byte| byte.is_ascii_alphabetic() || *byte == b'_');
    let plain = name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    (begins && plain).then(|| (OsString::from_vec(name.into()), OsString::from_vec(value.into())))
}

/// Returns only with what went wrong.
fn become_and_run(order: Order) -> String {
    let users = Users::read();
    let (uid, gid) = (getuid().as_raw(), getgid().as_raw());
    let caller = users.user_name(uid);
    let is_account = users.find(&Account::e2b().name).is_ok_and(|user| user.uid == uid);
    if uid != 0 && !is_account {
        return format!("{caller} may not run sudo");
    }
    if !geteuid().is_root() {
        return "this program must be owned by root and have the set-user-id bit".into();
    }
    let name = order.user.clone().unwrap_or_else(|| "root".into());
    // By number with `#`, as in sudo(8).
    let mut target = match users.find(name.strip_prefix('#').unwrap_or(&name)) {
        Ok(target) => target,
        Err(error) => return error.to_string(),
    };
    if let Some(group) = &order.group {
        match users.find(&format!("{}:{group}", target.uid)) {
            Ok(with_group) => target.gid = with_group.gid,
            Err(_) => return format!("there is no group '{group}'"),
        }
    }
    let mut environment = environment(&order, &target, std::env::vars_os());
    environment.insert("SUDO_USER".into(), caller.into());
    environment.insert("SUDO_UID".into(), uid.to_string().into());
    environment.insert("SUDO_GID".into(), gid.to_string().into());
    let words = words(&order);
    let Some((program, arguments)) = words.split_first() else { return "there is no command".into() };
    let directory = order.directory.clone().or_else(|| order.login.then(|| target.home.clone()));
    if let Err(error) = become_user(&target) {
        return format!("cannot become {}: {error}", target.name);
    }
    // As the user, as a shell would: a user who may not enter it does not start there.
    if let Some(directory) = directory
        && let Err(error) = std::env::set_current_dir(&directory)
        && order.directory.is_some()
    {
        return format!("cannot enter {}: {error}", directory.display());
    }
    let error = Command::new(program).args(arguments).env_clear().envs(environment).exec();
    match error.kind() {
        io::ErrorKind::NotFound => format!("{}: command not found", program.to_string_lossy()),
        _ => format!("{}: {error}", program.to_string_lossy()),
    }
}

/// There is one thread, so the calls for a thread are those for the process.
fn become_user(user: &User) -> io::Result<()> {
    let groups: Vec<Gid> = user.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    set_thread_groups(&groups)?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)?;
    Ok(())
}

fn environment(
    order: &Order,
    target: &User,
    own: impl Iterator<Item = (OsString, OsString)>,
) -> BTreeMap<OsString, OsString> {
    let is_kept = |name: &OsStr| {
        order.keeps_environment
            || name.to_str().is_some_and(|name| KEPT.contains(&name) || name.starts_with("LC_"))
    };
    let mut all: BTreeMap<OsString, OsString> = own.filter(|(name, _)| is_kept(name)).collect();
    all.insert("PATH".into(), PATH.into());
    all.insert("HOME".into(), target.home.clone().into());
    all.insert("USER".into(), target.name.clone().into());
    all.insert("LOGNAME".into(), target.name.clone().into());
    all.insert("SHELL".into(), shell().into());
    all.extend(order.variables.iter().cloned());
    all
}

fn shell() -> &'static str {
    if Path::new("/bin/bash").exists() { "/bin/bash" } else { "/bin/sh" }
}

/// What is executed: the command, or a shell that is given it.
fn words(order: &Order) -> Vec<OsString> {
    if !order.login && !order.shell {
        return order.command.clone();
    }
    let mut words = vec![OsString::from(shell())];
    if order.login {
        words.push("-l".into());
    }
    if !order.command.is_empty() {
        words.push("-c".into());
        words.push(quoted(&order.command));
    }
    words
}

/// Words that a shell reads as the words that they are. Dollars stay what they are, as in sudo(8).
fn quoted(words: &[OsString]) -> OsString {
    let mut line = Vec::new();
    for word in words {
        if !line.is_empty() {
            line.push(b' ');
        }
        for byte in word.as_bytes() {
            if !(byte.is_ascii_alphanumeric() || b"_-$".contains(byte) || !byte.is_ascii()) {
                line.push(b'\\');
            }
            line.push(*byte);
        }
    }
    OsString::from_vec(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(line: &str) -> Result<Asked, String> {
        parse(line.split_whitespace().map(OsString::from).collect())
    }

    fn order(line: &str) -> Order {
        match asked(line) {
            Ok(Asked::Run(order)) => order,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn options_end_where_the_command_begins() {
        let plain = order("-n apt-get install -y x");
        assert_eq!(plain.command, ["apt-get", "install", "-y", "x"]);
        assert_eq!((plain.user, plain.login), (None, false));
        let other = order("-nEHu user -D /tmp -- A=1 env");
        assert_eq!(
            (other.user.as_deref(), other.directory.as_deref()),
            (Some("user"), Some(Path::new("/tmp")))
        );
        assert!(other.keeps_environment && other.variables == [("A".into(), "1".into())]);
        assert_eq!(other.command, ["env"]);
        for same in ["-u root id", "-uroot id", "--user=root id", "--user root id"] {
            assert_eq!(order(same).user.as_deref(), Some("root"), "{same}");
        }
        assert_eq!(order("-i").command, [""; 0]);
        assert_eq!(asked("-v"), Ok(Asked::Nothing));
        for wrong in ["", "-u", "-n", "-x id", "--edit x", "A=1"] {
            assert!(asked(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_shell_gets_the_words_as_they_are() {
        assert_eq!(words(&order("-s echo a;b $HOME"))[1..], ["-c", r"echo a\;b $HOME"]);
        assert_eq!(words(&order("-i"))[1..], ["-l"]);
        assert_eq!(quoted(&["a b".into(), "ü".into()]), r"a\ b ü");
    }

    #[test]
    fn little_of_the_environment_is_kept() {
        let root = User { name: "root".into(), uid: 0, gid: 0, home: "/root".into(), groups: vec![0] };
        let own = || {
            [("LC_ALL", "C"), ("SECRET", "x"), ("HOME", "/home/user"), ("PATH", "/tmp")]
                .map(|(name, value)| (OsString::from(name), OsString::from(value)))
                .into_iter()
        };
        let clean = environment(&order("A=1 id"), &root, own());
        let value = |name: &str| clean.get(OsStr::new(name)).and_then(|value| value.to_str());
        assert_eq!((value("LC_ALL"), value("SECRET"), value("A")), (Some("C"), None, Some("1")));
        assert_eq!((value("HOME"), value("USER"), value("PATH")), (Some("/root"), Some("root"), Some(PATH)));
        assert!(environment(&order("-E id"), &root, own()).contains_key(OsStr::new("SECRET")));
    }

    #[test]
    fn it_is_known_by_its_name() {
        assert!(is_sudo(OsStr::new("/usr/bin/sudo")) && is_sudo(OsStr::new("sudo")));
        assert!(!is_sudo(OsStr::new("/init")) && !is_sudo(OsStr::new("forkd-agent")));
    }
}
