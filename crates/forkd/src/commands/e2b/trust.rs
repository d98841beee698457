//! The files that make a client's TLS trust the daemon's own CA.
//!
//! OpenSSL and Python's requests take one file in place of the system's, so theirs has both. Node adds its file to its own list.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::{env, fs};

/// Where systems have all CAs that they trust: Debian, Fedora, SUSE, Alpine and macOS.
const SYSTEM: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// What OpenSSL takes instead.
const OF_OPENSSL: &str = "SSL_CERT_FILE";
/// A bundle has some hundred kilobytes.
const MAX_BYTES: u64 = 16 << 20;
const DIRECTORY: &str = "ca";

/// The variables that name the files, after these are written below forkd's home. Without a bundle of the system there is nothing to
/// take the place of, and only Node is told.
pub fn files(home: &Path, certificate: &str) -> io::Result<Vec<(&'static str, String)>> {
    let directory = home.join(DIRECTORY);
    let named = env::var_os(OF_OPENSSL).map(PathBuf::from);
    // What an earlier run has written has a CA too many, perhaps of another daemon.
    let named = named.filter(|path| !path.starts_with(&directory));
    let system = named.into_iter().chain(SYSTEM.map(PathBuf::from)).find_map(|path| bundle(&path));
    write(&directory, certificate, system.as_deref())
}

fn write(
    directory: &Path,
    certificate: &str,
    system: Option<&[u8]>,
) -> io::Result<Vec<(&'static str, String)>> {
    fs::create_dir_all(directory)?;
    // Several daemons have several CAs.
    let id = &blake3::hash(certificate.as_bytes()).to_hex()[..16];
    let alone = directory.join(format!("{id}.pem"));
    replace(&alone, &[certificate.as_bytes()])?;
    let mut variables = vec![("NODE_EXTRA_CA_CERTS", alone.display().to_string())];
    if let Some(system) = system {
        let both = directory.join(format!("{id}-and-system.pem"));
        replace(&both, &[system, b"\n", certificate.as_bytes()])?;
        let both = both.display().to_string();
        variables.push((OF_OPENSSL, both.clone()));
        variables.push(("REQUESTS_CA_BUNDLE", both));
    }
    Ok(variables)
}

/// A file with certificates, if it is one.
fn bundle(path: &Path) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    fs::File::open(path).ok()?.take(MAX_BYTES).read_to_end(&mut text).ok()?;
    text.windows(10).any(|window| window == b"-----BEGIN").then_some(text)
}

fn replace(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::with_prefix_in(".new-", directory)?;
    for part in parts {
        file.write_all(part)?;
    }
    file.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_has_the_systems_and_ours() {
        let home = tempfile::tempdir().unwrap();
        let variables = write(home.path(), "OURS\n", Some(b"SYSTEM")).unwrap();
        let names: Vec<&str> = variables.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"]);
        let read = |at: usize| fs::read_to_string(&variables[at].1).unwrap();
        assert_eq!([read(0), read(1), read(2)], ["OURS\n", "SYSTEM\nOURS\n", "SYSTEM\nOURS\n"]);
        // Without a bundle, nothing replaces the one that a client may find.
        assert_eq!(write(home.path(), "OURS\n", None).unwrap(), variables[..1]);
        assert_ne!(write(home.path(), "OTHER\n", None).unwrap(), variables[..1]);
    }

    #[test]
    fn a_bundle_is_a_file_with_certificates() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("x.pem");
        assert_eq!(bundle(&path), None);
        fs::write(&path, "nothing").unwrap();
        assert_eq!(bundle(&path), None);
        fs::write(&path, "-----BEGIN CERTIFICATE-----\n").unwrap();
        assert!(bundle(&path).is_some());
    }
}
