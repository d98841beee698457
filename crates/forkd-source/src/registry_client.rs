//! What pulls of images and transfers of snapshots have in common: how a registry is reached, and who asks.

use std::net::IpAddr;
use std::time::Duration;

use oci_client::Client;
use oci_client::client::{ClientConfig, ClientProtocol, linux_amd64_resolver};
use oci_client::secrets::RegistryAuth;

use crate::credentials::Credentials;

/// A registry that sends nothing for this long is gone.
pub const READ_TIMEOUT: Duration = Duration::from_secs(60);
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
pub const USER_AGENT: &str = concat!("forkd/", env!("CARGO_PKG_VERSION"));

/// A client for a registry (`host` or `host:port`) that speaks TLS, but not with this host itself.
pub fn client(registry: &str) -> Client {
    install_tls();
    let mut config = ClientConfig {
        platform_resolver: Some(Box::new(linux_amd64_resolver)),
        read_timeout: Some(READ_TIMEOUT),
        connect_timeout: Some(CONNECT_TIMEOUT),
        user_agent: USER_AGENT,
        ..ClientConfig::default()
    };
    if is_loopback(registry) {
        config.protocol = ClientProtocol::Http;
        // The client takes proxies from the environment unless it is given one. This one is for everybody but us.
        config.http_proxy = Some("http://127.0.0.1:9".into());
        config.no_proxy = Some("localhost,127.0.0.0/8,::1".into());
    }
    Client::new(config)
}

/// Chooses the TLS library of this process. If one was chosen before, that one is used.
pub fn install_tls() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// What the client authenticates with.
pub fn auth(credentials: Option<&Credentials>) -> RegistryAuth {
    match credentials {
        Some(Credentials { username, password }) => RegistryAuth::Basic(username.clone(), password.clone()),
        None => RegistryAuth::Anonymous,
    }
}

/// Whether a registry (`host` or `host:port`) is on this host. It is spoken to without TLS then.
pub fn is_loopback(registry: &str) -> bool {
    let host = match registry.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => registry.split(':').next().unwrap_or(registry),
    };
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_host_is_spoken_to_without_tls() {
        for registry in ["localhost", "localhost:5000", "127.0.0.1:1", "127.9.9.9", "[::1]:5000"] {
            assert!(is_loopback(registry), "{registry}");
        }
        for registry in
            ["localhost.example", "10.0.0.1:5000", "127.0.0.1.example:80", "[::2]:1", "registry.example", ""]
        {
            assert!(!is_loopback(registry), "{registry}");
        }
    }
}
