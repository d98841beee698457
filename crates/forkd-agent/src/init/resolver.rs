//! The resolver of one boot: a file in memory, mounted over the image's own, so that the image's disk does not get it.

use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use rustix::mount::mount_bind;

use crate::network::resolver_configuration;

const PLACE: &str = "/etc/resolv.conf";
const OURS: &str = "/run/forkd-resolv.conf";
/// As many as the kernel follows.
const MAX_LINKS: usize = 40;

/// Mounts over `/etc/resolv.conf`. An image without one gets an empty file, since there must be something to mount over.
pub fn cover(servers: &[IpAddr]) -> io::Result<()> {
    fs::write(OURS, resolver_configuration(servers))?;
    let place = end_of_links(Path::new(PLACE))?;
    if let Some(directory) = place.parent() {
        fs::create_dir_all(directory)?;
    }
    File::options().append(true).create(true).open(&place)?;
    Ok(mount_bind(OURS, &place)?)
}

/// Where a path leads. Images link to files that a service would make in `/run`.
fn end_of_links(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        let Ok(next) = fs::read_link(&path) else { return Ok(path) };
        // A link that is relative begins beside itself.
        path = path.parent().unwrap_or(Path::new("/")).join(next);
    }
    Err(rustix::io::Errno::LOOP.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_are_followed_to_where_nothing_is_yet() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        symlink("../run/stub", at("one")).unwrap();
        symlink(at("one"), at("two")).unwrap();
        assert_eq!(end_of_links(&at("two")).unwrap(), directory.path().join("../run/stub"));
        assert_eq!(end_of_links(&at("plain")).unwrap(), at("plain"));
        symlink(at("loop"), at("loop")).unwrap();
        assert!(end_of_links(&at("loop")).is_err());
    }
}
