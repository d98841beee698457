//! What build steps need to know of the host behind an intercepting proxy: its certificates and its proxies.

use std::collections::BTreeMap;
use std::env;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Debian's bundle has a quarter of a megabyte.
const MAX_BUNDLE: u64 = 8 << 20;
/// Where distributions keep it: Debian, Fedora, openSUSE, Alpine.
const BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
const PROXIES: [&str; 4] = ["http_proxy", "https_proxy", "no_proxy", "all_proxy"];

#[derive(Debug, thiserror::Error)]
pub enum HostEnvironmentError {
    #[error(
        "this host has no bundle of certificates; install the package ca-certificates, or set SSL_CERT_FILE"
    )]
    NoBundle,
    #[error("cannot read the host's certificates in {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} holds no certificates", .0.display())]
    NoCertificates(PathBuf),
}

/// The host's certificates and proxies, for `--host-certs`. No part of any key: they do not change what a step means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostEnvironment {
    /// PEM.
    pub certificates: Vec<u8>,
    /// Variables in both spellings, since programs read one or the other.
    pub proxies: BTreeMap<String, String>,
}

impl HostEnvironment {
    /// Takes them from this process's environment and the places where distributions keep certificates.
    pub fn collect() -> Result<HostEnvironment, HostEnvironmentError> {
        let chosen = env::var_os("SSL_CERT_FILE").filter(|path| !path.is_empty()).map(PathBuf::from);
        let known = BUNDLES.iter().map(PathBuf::from).find(|path| path.is_file());
        let path = chosen.or(known).ok_or(HostEnvironmentError::NoBundle)?;
        let variables = env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        Ok(HostEnvironment { certificates: bundle(&path)?, proxies: proxies(variables) })
    }

    /// The same without the user names and passwords of proxies: for guests whose memory is kept.
    pub fn without_credentials(mut self) -> HostEnvironment {
        for value in self.proxies.values_mut() {
            *value = without_credentials(value);
        }
        self
    }
}

fn bundle(path: &Path) -> Result<Vec<u8>, HostEnvironmentError> {
    let read = || {
        let mut content = Vec::new();
        let count = File::open(path)?.take(MAX_BUNDLE + 1).read_to_end(&mut content)?;
        if count as u64 > MAX_BUNDLE { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(content) }
    };
    let content = read().map_err(|source| HostEnvironmentError::Read { path: path.into(), source })?;
    let begin = b"-----BEGIN CERTIFICATE-----";
    if content.windows(begin.len()).any(|window| window == begin) {
        return Ok(content);
    }
    Err(HostEnvironmentError::NoCertificates(path.into()))
}

fn proxies(variables: impl Iterator<Item = (String, String)>) -> BTreeMap<String, String> {
    let mut proxies = BTreeMap::new();
    for (name, value) in variables {
        let lower = name.to_ascii_lowercase();
        if PROXIES.contains(&lower.as_str()) && !value.is_empty() {
            proxies.entry(lower.to_ascii_uppercase()).or_insert_with(|| value.clone());
            proxies.entry(lower).or_insert(value);
        }
    }
    proxies
}

/// A proxy's address without what is before its last `@`, since passwords with an `@` or a `/` are not always escaped.
fn without_credentials(address: &str) -> String {
    let Some((before, host)) = address.rsplit_once('@') else { return address.to_owned() };
    let is_scheme = |scheme: &str| scheme.bytes().all(|byte| byte.is_ascii_alphanumeric());
    match before.split_once("://").filter(|(scheme, _)| is_scheme(scheme)) {
        Some((scheme, _)) => format!("{scheme}://{host}"),
        None => host.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxies_come_in_both_spellings() {
        let variables =
            [("HTTPS_PROXY", "http://p:1"), ("no_proxy", "localhost"), ("PATH", "/bin"), ("http_proxy", "")];
        let found = proxies(variables.into_iter().map(|(name, value)| (name.into(), value.into())));
        let names: Vec<&str> = found.keys().map(String::as_str).collect();
        assert_eq!(names, ["HTTPS_PROXY", "NO_PROXY", "https_proxy", "no_proxy"]);
        assert_eq!(found["https_proxy"], "http://p:1");
    }

    #[test]
    fn credentials_of_proxies_can_be_left_out() {
        for (address, expected) in [
            ("http://proxy:3128", "http://proxy:3128"),
            ("http://me:secret@proxy:3128/", "http://proxy:3128/"),
            ("https://me@proxy", "https://proxy"),
            ("socks5h://me:s@cr/et@[::1]:1080", "socks5h://[::1]:1080"),
            ("me:secret@proxy:3128", "proxy:3128"),
            ("me:se://cret@proxy:3128", "proxy:3128"),
            ("localhost,.example", "localhost,.example"),
            ("@", ""),
        ] {
            let proxies = [("http_proxy".to_owned(), address.to_owned())].into();
            let host = HostEnvironment { certificates: Vec::new(), proxies }.without_credentials();
            assert_eq!(host.proxies["http_proxy"], expected);
        }
    }

    #[test]
    fn a_bundle_holds_certificates() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("bundle.pem");
        std::fs::write(&path, "-----BEGIN CERTIFICATE-----\nx\n").unwrap();
        assert!(bundle(&path).is_ok());
        std::fs::write(&path, "-----BEGIN PRIVATE KEY-----\n").unwrap();
        assert!(matches!(bundle(&path), Err(HostEnvironmentError::NoCertificates(_))));
        File::create(&path).unwrap().set_len(MAX_BUNDLE + 1).unwrap();
        assert!(matches!(bundle(&path), Err(HostEnvironmentError::Read { .. })));
    }
}
