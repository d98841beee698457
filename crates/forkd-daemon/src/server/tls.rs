//! The certificate of the TCP port, which may be replaced while the daemon runs.
//!
//! The files are looked at every [`INTERVAL`], and on request. New ones count for new connections. If they are no good (half
//! written, a key that is another certificate's), the old certificate stays, and the log says so once for each change.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use forkd_store::Stamp;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio_rustls::TlsAcceptor;

use crate::config::TlsFiles;
use crate::error::chain;
use crate::kept::KeptError;

pub(super) const INTERVAL: Duration = Duration::from_secs(5);

/// The certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} has no certificates in PEM", path.display())]
    Certificate { path: PathBuf, source: pem::Error },
    #[error("{} has no private key in PEM", path.display())]
    Key { path: PathBuf, source: pem::Error },
    #[error("the certificate in {} and the key in {} do not match", files.certificate.display(), files.key.display())]
    Pair { files: TlsFiles, source: rustls::Error },
    #[error("cannot set up TLS")]
    Setup(#[source] rustls::Error),
    #[error("'{0}' is not a domain name such as sandboxes.example.org")]
    Domain(String),
    #[error("cannot use the daemon's CA")]
    Kept(#[from] KeptError),
    #[error("the daemon's CA cannot issue a certificate")]
    Issue(#[source] rcgen::Error),
    #[error("cannot get random bytes from the kernel for a certificate")]
    NoRandomness,
}

/// Certificate and key, as they are now.
#[derive(Debug)]
pub(super) struct Certificate {
    files: TlsFiles,
    current: RwLock<Arc<CertifiedKey>>,
    /// The files that were looked at last, good or not.
    seen: Mutex<[Option<Stamp>; 2]>,
}

impl Certificate {
    pub fn open(files: &TlsFiles) -> Result<Arc<Certificate>, TlsError> {
        let seen = Mutex::new(stamps(files));
        let current = RwLock::new(Arc::new(load(files)?));
        Ok(Arc::new(Certificate { files: files.clone(), current, seen }))
    }

    pub fn acceptor(self: &Arc<Self>) -> Result<TlsAcceptor, TlsError> {
        acceptor(Arc::new(Resolver(Arc::clone(self))))
    }

    /// Reads the files again if they have changed. Blocks.
    pub fn refresh(&self) {
        let now = stamps(&self.files);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *seen, now) == now {
            return;
        }
        match load(&self.files) {
            Ok(key) => {
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(key);
                tracing::info!("read the changed certificate");
            }
            Err(error) => {
                tracing::warn!(error = %chain(&error), "cannot read the changed certificate: keeping the previous one")
            }
        }
    }
}

/// TLS 1.2 and 1.3, for HTTP/1.1.
pub(super) fn acceptor(resolver: Arc<dyn ResolvesServerCert>) -> Result<TlsAcceptor, TlsError> {
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Setup)?;
    let mut config = builder.with_no_client_auth().with_cert_resolver(resolver);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

#[derive(Debug)]
struct Resolver(Arc<Certificate>);

impl ResolvesServerCert for Resolver {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.current.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

fn stamps(files: &TlsFiles) -> [Option<Stamp>; 2] {
    let stamp = |path: &Path| fs::metadata(path).ok().map(|metadata| Stamp::of(&metadata));
    [stamp(&files.certificate), stamp(&files.key)]
}

fn load(files: &TlsFiles) -> Result<CertifiedKey, TlsError> {
    let read =
        |path: &PathBuf| fs::read(path).map_err(|source| TlsError::Read { path: path.clone(), source });
    let path = files.certificate.clone();
    let certificates = CertificateDer::pem_slice_iter(&read(&path)?).collect::<Result<Vec<_>, _>>();
    let certificates = certificates
        .and_then(|found| if found.is_empty() { Err(pem::Error::NoItemsFound) } else { Ok(found) })
        .map_err(|source| TlsError::Certificate { path, source })?;
    let path = files.key.clone();
    let key =
        PrivateKeyDer::from_pem_slice(&read(&path)?).map_err(|source| TlsError::Key { path, source })?;
    CertifiedKey::from_der(certificates, key, &ring::default_provider())
        .map_err(|source| TlsError::Pair { files: files.clone(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(files: &TlsFiles, which: (bool, bool)) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        if which.0 {
            fs::write(&files.certificate, made.cert.pem()).unwrap();
        }
        if which.1 {
            fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
        }
    }

    #[test]
    fn a_pair_is_replaced_when_both_are_there() {
        let directory = tempfile::tempdir().unwrap();
        let files = TlsFiles {
            certificate: directory.path().join("cert.pem"),
            key: directory.path().join("key.pem"),
        };
        assert!(matches!(Certificate::open(&files), Err(TlsError::Read { .. })));
        write(&files, (true, true));
        let certificate = Certificate::open(&files).unwrap();
        certificate.acceptor().unwrap();
        let now = || certificate.current.read().unwrap().cert[0].to_vec();
        let first = now();
        certificate.refresh();
        assert_eq!(now(), first);

        // A certificate whose key has not come yet.
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        fs::write(&files.certificate, made.cert.pem()).unwrap();
        assert!(matches!(load(&files), Err(TlsError::Pair { .. })));
        certificate.refresh();
        assert_eq!(now(), first);
        fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
        certificate.refresh();
        assert_eq!(now(), made.cert.der().to_vec());

        fs::write(&files.key, "garbage").unwrap();
        assert!(matches!(load(&files), Err(TlsError::Key { .. })));
        fs::write(&files.certificate, "").unwrap();
        assert!(matches!(load(&files), Err(TlsError::Certificate { .. })));
        certificate.refresh();
        assert_eq!(now(), made.cert.der().to_vec());
    }
}
