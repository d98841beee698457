//! Debian without a registry: mmdebstrap's archive as an image.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forkd_host::apt::{self, MirrorProblem};
use forkd_host::disk;
use forkd_host::tool::{self, MissingTool};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::archive::{ArchiveError, Limits, Whiteouts};
use crate::files::FileError;
use crate::images::{Config, Draft, Finish, Image, ImageError, ImageStore, Name, Source};
use crate::progress::Progress;

/// What a bootstrap needs on the disk while it runs: archive, staging and file system of a small system.
const DISK: u64 = 2 << 30;
/// Lines of mmdebstrap's that an error shows.
const LINES: usize = 12;
/// How often the caller is asked whether it still wants the result.
const ASK: Duration = Duration::from_millis(100);
/// How long mmdebstrap may clean up.
const GRACE: Duration = Duration::from_secs(10);
/// dpkg waits for the disk after every file; what is half-made when the host dies is thrown away here. The archive is the same.
const HASTEN: &str =
    r#"mkdir -p "$1"/etc/dpkg/dpkg.cfg.d && echo force-unsafe-io > "$1"/etc/dpkg/dpkg.cfg.d/forkd-bootstrap"#;
const UNHASTEN: &str = r#"rm "$1"/etc/dpkg/dpkg.cfg.d/forkd-bootstrap"#;
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

#[derive(Debug, thiserror::Error)]
pub enum DebianError {
    #[error("{0:?} is not a suite: use a name such as bookworm")]
    Suite(String),
    #[error("{0:?} is not the name of a package")]
    Package(String),
    #[error("{0:?} is not a mirror: use an address that begins with http:// or https://")]
    Mirror(String),
    #[error(transparent)]
    Tool(#[from] MissingTool),
    #[error("cannot run mmdebstrap")]
    Run(#[source] std::io::Error),
    #[error("{problem}\nmmdebstrap failed:\n{log}")]
    Unreachable { problem: MirrorProblem, log: String },
    #[error("mmdebstrap failed:\n{0}")]
    Failed(String),
    #[error(transparent)]
    Image(#[from] ImageError),
}

impl DebianError {
    fn mirror_problem(&self) -> Option<&MirrorProblem> {
        match self {
            DebianError::Unreachable { problem, .. } => Some(problem),
            _ => None,
        }
    }
}

/// A Debian system to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Debian {
    pub suite: String,
    /// Packages beyond the smallest system.
    pub include: Vec<String>,
    pub mirror: Option<String>,
    pub name: Option<Name>,
    pub min_mib: Option<u64>,
}

impl Debian {
    /// The name that the image gets unless another is asked for: `debian:bookworm`, `debian:bookworm-python3-numpy`.
    pub fn default_name(&self) -> Result<Name, DebianError> {
        let packages: String = self.include.iter().map(|package| format!("-{package}")).collect();
        let packages = packages.replace(['+', ':'], "_");
        let text = format!("debian:{}{}", self.suite, packages.chars().take(100).collect::<String>());
        text.trim_end_matches(['-', '.', '_']).parse().map_err(|_| DebianError::Suite(self.suite.clone()))
    }

    /// Refuses what mmdebstrap would take for something else: its arguments are also paths, options and commands.
    fn check(&self) -> Result<(), DebianError> {
        let plain = |text: &str, more: &[u8]| {
            text.bytes().take(1).all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
                && (1..=80).contains(&text.len())
                && text.bytes().all(|byte| {
                    byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || more.contains(&byte)
                })
        };
        let shown = |text: &str| text.chars().take(80).collect();
        if !plain(&self.suite, b".") {
            return Err(DebianError::Suite(shown(&self.suite)));
        }
        if let Some(package) = self.include.iter().find(|package| !plain(package, b"+.:")) {
            return Err(DebianError::Package(shown(package)));
        }
        let is_address = |mirror: &&String| {
            (mirror.starts_with("http://") || mirror.starts_with("https://"))
                && mirror.bytes().all(|byte| byte.is_ascii_graphic())
        };
        match self.mirror.as_ref().filter(|mirror| !is_address(mirror)) {
            Some(mirror) => Err(DebianError::Mirror(shown(mirror))),
            None => Ok(()),
        }
    }
}

/// Makes the image.
pub fn debian(store: &ImageStore, debian: &Debian, progress: &dyn Progress) -> Result<Image, DebianError> {
    debian.check()?;
    let name = match &debian.name {
        Some(name) => name.clone(),
        None => debian.default_name()?,
    };
    let mut mmdebstrap = tool::MMDEBSTRAP.command()?;
    let mut draft = Draft::new(store, Limits::default())?;
    disk::require(store.directory(), DISK, "a Debian system").map_err(ImageError::from)?;
    let archive = draft.scratch().join("root.tar");

    mmdebstrap.args(["--variant=minbase", "--format=tar"]).arg(apt::MMDEBSTRAP_RETRIES);
    mmdebstrap.arg(format!("--setup-hook={HASTEN}")).arg(format!("--customize-hook={UNHASTEN}"));
    if !debian.include.is_empty() {
        mmdebstrap.arg(format!("--include={}", debian.include.join(",")));
    }
    mmdebstrap.arg(&debian.suite).arg(&archive).args(&debian.mirror);
    mmdebstrap.env("TMPDIR", draft.scratch());
    mmdebstrap.env("SOURCE_DATE_EPOCH", today().to_string());
    progress.step(&format!("building Debian {}", debian.suite));
    let attempt = || run(&mut mmdebstrap, progress);
    apt::retry(attempt, DebianError::mirror_problem, |text| progress.warn(text))?;

    progress.step(&format!("unpacking Debian {}", debian.suite));
    let file = File::open(&archive).map_err(FileError::at("open", &archive)).map_err(ImageError::from)?;
    draft.layer(file, Whiteouts::Keep, None, progress)?;
    std::fs::remove_file(&archive).map_err(FileError::at("remove", &archive)).map_err(ImageError::from)?;
    let config = Config {
        env: [("PATH".to_owned(), PATH.to_owned())].into(),
        cmd: vec!["bash".into()],
        ..Config::default()
    };
    let source = Source::Debian {
        suite: debian.suite.clone(),
        include: debian.include.clone(),
        mirror: debian.mirror.clone(),
    };
    let finish = Finish { config, source, min_mib: debian.min_mib, name: Some(name) };
    Ok(draft.finish(finish, progress)?)
}

/// Midnight. Files that the bootstrap itself wrote get this time, so that the same packages make the same image on the
/// same day. An older time would also change files of packages, and Python would compile all of them anew.
fn today() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    now - now % 86_400
}

/// Runs it with its complaints as progress. It has children of its own, so it is ended as a group; the first time it is
/// asked to, because it cleans up after itself.
fn run(mmdebstrap: &mut Command, progress: &dyn Progress) -> Result<(), DebianError> {
    let command = mmdebstrap.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.process_group(0).spawn().map_err(DebianError::Run)?;
    let group = Pid::from_child(&child);
    let stderr = child.stderr.take().ok_or_else(|| DebianError::Failed(String::new()))?;
    let (sender, lines) = mpsc::sync_channel(LINES);
    let reader = thread::spawn(move || {
        for line in BufReader::new(stderr).split(b'\n') {
            if line.is_err() || sender.send(line).is_err() {
                return;
            }
        }
    });
    let mut last: Vec<String> = Vec::new();
    let mut cancelled: Option<Instant> = None;
    loop {
        let line = match lines.recv_timeout(ASK) {
            Ok(line) => Some(line.map_err(DebianError::Run)?),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => break,
        };
        match cancelled {
            None if progress.is_cancelled() => {
                cancelled = Some(Instant::now());
                // It may have ended already, here as below.
                let _ = kill_process_group(group, Signal::TERM);
            }
            Some(since) if since.elapsed() > GRACE => drop(kill_process_group(group, Signal::KILL)),
            _ => {}
        }
        let Some(line) = line else { continue };
        let line = String::from_utf8_lossy(&line).trim().to_owned();
        progress.detail(&line);
        if last.len() == LINES {
            last.remove(0);
        }
        last.push(line.chars().take(500).collect());
    }
    let status = child.wait().map_err(DebianError::Run)?;
    // All lines have come, so it has ended.
    let _ = reader.join();
    if cancelled.is_some() {
        return Err(ImageError::from(ArchiveError::Cancelled).into());
    }
    if status.success() {
        return Ok(());
    }
    let log = last.join("\n");
    Err(match MirrorProblem::of(&log) {
        Some(problem) => DebianError::Unreachable { problem, log },
        None => DebianError::Failed(log),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(suite: &str, include: &[&str], mirror: Option<&str>) -> Debian {
        Debian {
            suite: suite.into(),
            include: include.iter().map(|&package| package.into()).collect(),
            mirror: mirror.map(Into::into),
            name: None,
            min_mib: None,
        }
    }

    #[test]
    fn what_mmdebstrap_would_misunderstand_is_refused() {
        assert!(
            of("bookworm", &["python3", "libstdc++6", "gcc:amd64"], Some("http://deb.example/debian"))
                .check()
                .is_ok()
        );
        for suite in ["", "--help", "/etc/passwd", "a b", "Bookworm"] {
            assert!(matches!(of(suite, &[], None).check(), Err(DebianError::Suite(_))), "{suite}");
        }
        for package in ["", "-x", "?essential", "./local.deb", "a,b", "a b"] {
            assert!(matches!(of("sid", &[package], None).check(), Err(DebianError::Package(_))), "{package}");
        }
        for mirror in ["-", "/etc/apt/sources.list", "deb http://x y", "http://x y"] {
            assert!(matches!(of("sid", &[], Some(mirror)).check(), Err(DebianError::Mirror(_))), "{mirror}");
        }
    }

    struct Gone;

    impl Progress for Gone {
        fn step(&self, _: &str) {}
        fn detail(&self, _: &str) {}
        fn warn(&self, _: &str) {}
        fn is_cancelled(&self) -> bool {
            true
        }
    }

    #[test]
    fn what_nobody_wants_is_ended_with_its_children() {
        let begun = Instant::now();
        let mut command = Command::new("sh");
        // The child holds the pipe too, and says nothing.
        let error = run(command.args(["-c", "sleep 600 & sleep 600"]), &Gone).unwrap_err();
        assert!(matches!(error, DebianError::Image(ImageError::Archive(ArchiveError::Cancelled))), "{error}");
        assert!(begun.elapsed() < GRACE);
    }

    /// A mirror that is busy for the first request and refuses the later ones. Returns its address and counts requests.
    fn mirror() -> (String, std::sync::Arc<std::sync::atomic::AtomicU32>) {
        use std::io::{BufRead, Write};
        use std::sync::atomic::Ordering;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let requests = std::sync::Arc::<std::sync::atomic::AtomicU32>::default();
        let counter = std::sync::Arc::clone(&requests);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                while lines.by_ref().map_while(Result::ok).any(|line| line.is_empty()) {
                    let first = counter.fetch_add(1, Ordering::SeqCst) == 0;
                    let status = if first { "503 Busy" } else { "403 Forbidden" };
                    let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
                    if (&stream).write_all(answer.as_bytes()).is_err() {
                        break;
                    }
                }
            }
        });
        (address, requests)
    }

    #[test]
    fn a_mirror_that_hiccups_is_asked_again_and_named_when_it_fails() {
        if !rustix::process::geteuid().is_root() {
            return; // As all that makes images.
        }
        let home = tempfile::tempdir().unwrap();
        let (address, requests) = mirror();
        let wanted = of("bookworm", &[], Some(&format!("{address}/debian")));
        let error = debian(&ImageStore::new(home.path()), &wanted, &crate::progress::Silent).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with(&format!("cannot fetch packages from the mirror {address}: 403")), "{text}");
        assert!(requests.load(std::sync::atomic::Ordering::SeqCst) > 1, "the mirror was asked once");
    }

    #[test]
    fn names_say_what_is_inside() {
        let name = |debian: Debian| debian.default_name().unwrap().to_string();
        assert_eq!(name(of("bookworm", &[], None)), "debian:bookworm");
        assert_eq!(
            name(of("bookworm", &["python3-numpy", "libstdc++6"], None)),
            "debian:bookworm-python3-numpy-libstdc__6"
        );
    }
}
