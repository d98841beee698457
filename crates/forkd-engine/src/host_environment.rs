//! The host's certificates and proxies, where programs of a guest find them: in `/run`, which is no part of the disk, in the
//! environment, and in the file that the guest trusts by default (`trust.rs`).

use std::collections::BTreeMap;

use forkd_image::host_environment::HostEnvironment;

use crate::agent::{Agent, AgentError};
use crate::small::{self, TarEntry};

const BUNDLE: &str = "/run/forkd/ca-certificates.crt";
const APT: &str = "/run/forkd/apt.conf";

/// Who looks there: OpenSSL, curl, Python's requests and pip, Node, git, AWS's tools, Cargo.
const VARIABLES: [&str; 8] = [
    "SSL_CERT_FILE",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "PIP_CERT",
    "NODE_EXTRA_CA_CERTS",
    "GIT_SSL_CAINFO",
    "AWS_CA_BUNDLE",
    "CARGO_HTTP_CAINFO",
];

/// Paths the files of `/run`.
pub async fn place(agent: &Agent, host: &HostEnvironment) -> Result<(), AgentError> {
    let files = files(host);
    let entries: Vec<TarEntry<'_>> =
        files.iter().map(|(path, content)| TarEntry::File(path, content)).collect();
    small::place(agent, &entries).await
}

/// The files, each with its path.
fn files(host: &HostEnvironment) -> Vec<(&'static str, Vec<u8>)> {
    let apt = format!("Acquire::https::CAInfo \"{BUNDLE}\";\n");
    vec![(BUNDLE, host.certificates.clone()), (APT, apt.into_bytes())]
}

/// The environment of a step or an image. What that says itself wins.
pub fn environment(host: &HostEnvironment, own: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut all = host.proxies.clone();
    all.extend(VARIABLES.iter().map(|name| ((*name).to_owned(), BUNDLE.to_owned())));
    all.insert("APT_CONFIG".into(), APT.into());
    all.extend(own.clone());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_wins() {
        let proxies = [("http_proxy".to_owned(), "http://p".to_owned())].into();
        let host = HostEnvironment { certificates: b"pem".to_vec(), proxies };
        let step = [("SSL_CERT_FILE".to_owned(), "/own".to_owned()), ("A".into(), "1".into())].into();
        let all = environment(&host, &step);
        assert_eq!(
            (&all["SSL_CERT_FILE"][..], &all["A"][..], &all["http_proxy"][..]),
            ("/own", "1", "http://p")
        );
        assert_eq!(all["PIP_CERT"], BUNDLE);
        let files = files(&host);
        assert!(files.iter().all(|(path, _)| path.starts_with("/run/")), "{files:?}");
        assert!(String::from_utf8_lossy(&files[1].1).contains(BUNDLE));
    }
}
