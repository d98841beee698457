//! apt, as forkd and mmdebstrap run it: a mirror that hiccups is asked again, one that cannot be reached is named.

use std::fmt;
use std::time::Duration;

/// apt-get's option (after `-o`) that repeats a download whose connection failed, after 1, 2 and 4 seconds.
pub const RETRIES: &str = "Acquire::Retries=3";

/// The same for mmdebstrap.
pub const MMDEBSTRAP_RETRIES: &str = "--aptopt=Acquire::Retries \"3\"";

/// Versions of Debian's kernel that are not used, each with its reason. There is one before, and soon one after.
const BROKEN_KERNELS: [&str; 1] = [
    "6.1.192-1", // ext4 follows a null pointer once a page of its allocator has left the page cache
];

/// Whether this is a kernel that is better not used.
pub fn is_broken_kernel(version: &str) -> bool {
    BROKEN_KERNELS.contains(&version)
}

/// What apt's preferences say so that it does not install them.
pub fn kernel_preferences() -> String {
    let pin =
        |version: &&str| format!("Package: linux-image-*\nPin: version {version}\nPin-Priority: -1\n\n");
    BROKEN_KERNELS.iter().map(pin).collect()
}

/// Pauses before a whole run is repeated: apt takes the errors of a server, such as 503, for final.
const PAUSES: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(10)];

/// A mirror that apt could not fetch from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MirrorProblem {
    /// `http://host`
    mirror: String,
    reason: String,
}

impl MirrorProblem {
    /// The first one that a log of apt's complains about:
    ///
    /// ```text
    /// E: Failed to fetch http://mirror/debian/dists/bookworm/InRelease  Temporary failure resolving 'mirror'
    /// ```
    pub fn of(log: &str) -> Option<MirrorProblem> {
        let fetch = |line: &'_ str| {
            let (url, reason) = line.split_once("Failed to fetch ")?.1.split_once(' ')?;
            let (scheme, rest) = url.split_once("://")?;
            let mirror = format!("{scheme}://{}", rest.split('/').next()?);
            Some(MirrorProblem { mirror, reason: reason.trim().chars().take(200).collect() })
        };
        log.lines().find_map(fetch)
    }

    /// Whether asking again is of no use: the mirror answers, and does not have the file.
    fn is_final(&self) -> bool {
        self.reason.starts_with('4')
    }
}

impl fmt::Display for MirrorProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot fetch packages from the mirror {}: {}", self.mirror, self.reason)
    }
}

/// Runs something that fetches packages, and repeats it while it fails because of a mirror that may recover.
pub fn retry<T, E>(
    mut attempt: impl FnMut() -> Result<T, E>,
    problem: impl Fn(&E) -> Option<&MirrorProblem>,
    warn: impl Fn(&str),
) -> Result<T, E> {
    for pause in PAUSES {
        match attempt() {
            Err(error) => match problem(&error).filter(|problem| !problem.is_final()) {
                Some(problem) => warn(&format!("{problem}; trying again in {} s", pause.as_secs())),
                None => return Err(error),
            },
            done => return done,
        }
        std::thread::sleep(pause);
    }
    attempt()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "Err:1 http://mirror.test/debian bookworm InRelease\n  503  busy [IP: 127.0.0.1 80]\n\
                       E: Failed to fetch http://mirror.test/debian/dists/bookworm/InRelease  503  busy [IP: 127.0.0.1 80]\n\
                       E: Some index files failed to download.\n";

    #[test]
    fn the_mirror_is_named_with_the_reason() {
        let expected =
            "cannot fetch packages from the mirror http://mirror.test: 503  busy [IP: 127.0.0.1 80]";
        assert_eq!(MirrorProblem::of(LOG).unwrap().to_string(), expected);
        for other in ["", "E: Unable to locate package x", "Failed to fetch nothing", "Failed to fetch a b"] {
            assert_eq!(MirrorProblem::of(other), None, "{other}");
        }
    }

    fn itself(problem: &MirrorProblem) -> Option<&MirrorProblem> {
        Some(problem)
    }

    #[test]
    fn a_hiccup_is_tried_again_and_a_missing_file_is_not() {
        let busy = MirrorProblem::of(LOG).unwrap();
        let tries = std::cell::Cell::new(0);
        let second_works = || {
            tries.set(tries.get() + 1);
            if tries.get() == 2 { Ok(()) } else { Err(busy.clone()) }
        };
        assert_eq!(retry(second_works, itself, |_| {}), Ok(()));
        let missing = MirrorProblem { reason: "404  Not Found".into(), ..busy };
        tries.set(0);
        let fails = || {
            tries.set(tries.get() + 1);
            Err::<(), _>(missing.clone())
        };
        assert_eq!(retry(fails, itself, |_| {}), Err(missing.clone()));
        assert_eq!(tries.get(), 1);
    }
}
