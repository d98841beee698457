//! apt, as forkd and mmdebstrap run it: downloads are tried again, and a mirror that cannot be reached is named.

/// apt-get's option (after `-o`) that repeats a failed download, with a growing pause in between.
pub const RETRIES: &str = "Acquire::Retries=5";

/// The same for mmdebstrap.
pub const MMDEBSTRAP_RETRIES: &str = "--aptopt=Acquire::Retries \"5\"";

/// The first mirror that a log of apt's complains about, and the complaint.
///
/// ```text
/// E: Failed to fetch http://mirror/debian/dists/bookworm/InRelease  Temporary failure resolving 'mirror'
/// ```
pub fn mirror_problem(log: &str) -> Option<String> {
    let (url, reason) =
        log.lines().find_map(|line| line.split_once("Failed to fetch ")?.1.split_once(' '))?;
    let (scheme, rest) = url.split_once("://")?;
    let host = rest.split('/').next()?;
    let reason: String = reason.trim().chars().take(200).collect();
    Some(format!("cannot fetch packages from the mirror {scheme}://{host}: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::mirror_problem;

    #[test]
    fn the_mirror_is_named_with_the_reason() {
        let log = "Err:1 http://mirror.test/debian bookworm InRelease\n  Temporary failure resolving 'mirror.test'\n\
                   E: Failed to fetch http://mirror.test/debian/dists/bookworm/InRelease  Temporary failure resolving 'mirror.test'\n\
                   E: Some index files failed to download.\n";
        let expected = "cannot fetch packages from the mirror http://mirror.test: Temporary failure resolving 'mirror.test'";
        assert_eq!(mirror_problem(log).as_deref(), Some(expected));
        for other in ["", "E: Unable to locate package x", "Failed to fetch nothing", "Failed to fetch a b"] {
            assert_eq!(mirror_problem(other), None, "{other}");
        }
    }
}
