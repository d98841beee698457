//! TLS, with a certificate that is replaced.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use forkd_api::error::ErrorCode;
use forkd_api::token::Scope;
use forkd_daemon::config::{Config, Tls, TlsFiles};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::client::{Request, read_all};
use crate::daemon::Daemon;

/// Writes a new pair and returns its certificate.
fn write_pair(directory: &Path) -> CertificateDer<'static> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a pair");
    fs::write(directory.join("cert.pem"), made.cert.pem()).expect("a file");
    fs::write(directory.join("key.pem"), made.signing_key.serialize_pem()).expect("a file");
    made.cert.der().clone()
}

/// The status of a request by a client that trusts this certificate only; `None` if it trusts not the daemon's.
async fn ask(daemon: &Daemon, trusted: &CertificateDer<'static>) -> Option<u16> {
    ask_as(daemon, trusted, "localhost").await
}

/// The same of a host by another name.
async fn ask_as(daemon: &Daemon, trusted: &CertificateDer<'static>, name: &'static str) -> Option<u16> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).expect("a certificate");
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(daemon.address).await.expect("a connection");
    let connector = TlsConnector::from(Arc::new(config));
    let stream = connector.connect(ServerName::try_from(name).expect("a name"), stream).await.ok()?;
    Some(Request::get("/version").send_on(stream).await.status)
}

#[tokio::test]
async fn a_new_certificate_counts_and_a_bad_one_does_not() {
    let files = tempfile::tempdir().unwrap();
    let first = write_pair(files.path());
    let daemon = Daemon::start_with(|config| {
        let tls = TlsFiles { certificate: files.path().join("cert.pem"), key: files.path().join("key.pem") };
        config.tcp.as_mut().unwrap().tls = Some(Tls::Files(tls));
    })
    .await;
    assert_eq!(ask(&daemon, &first).await, Some(200));

    let second = write_pair(files.path());
    daemon.handle.reload().await.unwrap();
    assert_eq!((ask(&daemon, &first).await, ask(&daemon, &second).await), (None, Some(200)));

    fs::write(files.path().join("key.pem"), "no key").unwrap();
    daemon.handle.reload().await.unwrap();
    assert_eq!(ask(&daemon, &second).await, Some(200));

    // Plain HTTP gets no answer, and does no harm.
    let mut plain = daemon.tcp().connect().await;
    plain.write_all(&Request::get("/version").bytes()).await.unwrap();
    assert!(!read_all(&mut plain).await.contains("HTTP"));
    assert_eq!(ask(&daemon, &second).await, Some(200));
    assert_eq!(Request::get("/version").send(daemon.unix()).await.status, 200);
}

#[tokio::test]
async fn a_replaced_file_is_noticed_without_being_told() {
    let files = tempfile::tempdir().unwrap();
    let first = write_pair(files.path());
    let daemon = Daemon::start_with(|config| {
        let tls = TlsFiles { certificate: files.path().join("cert.pem"), key: files.path().join("key.pem") };
        config.tcp.as_mut().unwrap().tls = Some(Tls::Files(tls));
    })
    .await;
    assert_eq!(ask(&daemon, &first).await, Some(200));
    let second = write_pair(files.path());
    for _ in 0..100 {
        if ask(&daemon, &second).await == Some(200) {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    panic!("the new certificate was not noticed");
}

/// The certificate of the CA, as anybody gets it.
async fn ca_of(daemon: &Daemon) -> CertificateDer<'static> {
    let answer = Request::get("/v1/ca").send(daemon.tcp()).await;
    assert_eq!((answer.status, &answer.headers["content-type"][..]), (200, "application/x-pem-file"));
    CertificateDer::from_pem_slice(answer.body.as_bytes()).expect("a certificate")
}

#[tokio::test]
async fn one_port_speaks_plain_http_and_tls_of_the_own_ca() {
    let own = |config: &mut Config| {
        config.tcp.as_mut().unwrap().tls = Some(Tls::Own(vec!["sandboxes.example".into()]));
    };
    let daemon = Daemon::start_with(own).await;
    // A caller without a token may have it.
    daemon.token("someone", Scope::Read);
    let ca = ca_of(&daemon).await;
    assert_eq!(Request::get("/version").send(daemon.tcp()).await.status, 401);
    for name in
        ["localhost", "127.0.0.1", "8000-iabc.localhost", "api.sandboxes.example", "sandboxes.example"]
    {
        assert_eq!(ask_as(&daemon, &ca, name).await, Some(401), "{name}");
    }
    for name in ["example.com", "a.b.localhost", "127.0.0.2"] {
        assert_eq!(ask_as(&daemon, &ca, name).await, None, "{name}");
    }
    // Neither is whoever says nothing, or begins with rubbish, waited for when the daemon stops.
    let silent = daemon.tcp().connect().await;
    let mut rubbish = daemon.tcp().connect().await;
    rubbish.write_all(&[0x16, 3, 1]).await.unwrap();
    let begun = std::time::Instant::now();
    daemon.stop().await;
    assert!(begun.elapsed() < std::time::Duration::from_secs(5), "{:?}", begun.elapsed());
    drop((silent, rubbish));
}

#[tokio::test]
async fn without_an_own_ca_there_is_none() {
    let daemon = Daemon::start().await;
    assert_eq!(Request::get("/v1/ca").send(daemon.tcp()).await.code(), ErrorCode::NotFound);
}
