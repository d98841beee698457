//! The daemon's own certificate authority, for TLS without files: `https://8000-<id>.localhost:8889`.
//!
//! ```text
//!   tls-ca.json (key, 0600) ──▶ CA, 10 years, for these names only ──▶ a certificate for each name asked for, 90 days
//! ```
//!
//! OpenSSL and Node accept no certificate for `*.localhost`: a wildcard must have two labels behind it. So each host name gets a
//! certificate when a client asks for it, of one key that never leaves the memory. The CA's certificate says for which names it
//! may be trusted, so that its key is of no use for any other name.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, CidrSubnet, DnType, ExtendedKeyUsagePurpose, GeneralSubtree, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, NameConstraints, PublicKeyData, SerialNumber,
};
use rustls::crypto::ring;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::{CertifiedKey, SigningKey};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::tls::TlsError;
use crate::kept::Kept;

/// Below forkd's home.
const FILE: &str = "tls-ca.json";
/// The domain that every CA is for, with the names below it.
const LOCALHOST: &str = "localhost";

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const CA_LIFE: Duration = DAY.saturating_mul(3650);
/// A CA that ends sooner gets a new certificate for the same key when the daemon starts.
const CA_RENEWAL: Duration = DAY.saturating_mul(365);
const LIFE: Duration = DAY.saturating_mul(90);
/// How long a certificate is handed out.
const USE: Duration = DAY.saturating_mul(7);
/// Clients whose clocks are behind.
const BACKDATED: Duration = DAY;
/// Certificates that are kept. Any client may ask for one, and making one takes less than a millisecond.
const MAX_ISSUED: usize = 256;

/// What is kept of the CA.
#[derive(Clone, Default, Serialize, Deserialize)]
struct Kernel {
    /// In PEM, PKCS #8.
    key: String,
    certificate: String,
    domains: Vec<String>,
    addresses: Vec<IpAddr>,
    expires_unix: u64,
}

/// The CA, and what it has issued.
pub(super) struct OwnCa {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
    /// Of all certificates.
    key: KeyPair,
    signing: Arc<dyn SigningKey>,
    domains: Vec<String>,
    addresses: Vec<IpAddr>,
    /// By host name; the one for clients that say none, or another, under the empty name.
    issued: Mutex<HashMap<String, Issued>>,
}

struct Issued {
    at: SystemTime,
    key: Arc<CertifiedKey>,
}

impl fmt::Debug for OwnCa {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("OwnCa").field("domains", &self.domains).finish_non_exhaustive()
    }
}

impl OwnCa {
    /// Opens the CA, or makes it. It is for the loopback, for these domains with the names below them, and for the address that
    /// the daemon listens on. Blocks.
    pub fn open(home: &Path, domains: &[String], listen: IpAddr) -> Result<Arc<OwnCa>, TlsError> {
        OwnCa::open_at(home, domains, listen, SystemTime::now())
    }

    fn open_at(
        home: &Path,
        domains: &[String],
        listen: IpAddr,
        now: SystemTime,
    ) -> Result<Arc<OwnCa>, TlsError> {
        let mut all = vec![LOCALHOST.to_owned()];
        for domain in domains {
            let domain = domain.to_ascii_lowercase();
            if !is_domain(&domain) {
                return Err(TlsError::Domain(domain));
            }
            all.push(domain);
        }
        let mut addresses = vec![IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)];
        if !listen.is_unspecified() && !listen.is_loopback() {
            addresses.push(listen);
        }
        let kept: Kept<Kernel> = Kept::open(home.join(FILE))?;
        let mut kernel = kept.look().clone();
        let key = match kernel.key.is_empty() {
            true => KeyPair::generate().map_err(TlsError::Issue)?,
            false => KeyPair::from_pem(&kernel.key).map_err(TlsError::Issue)?,
        };
        let params = ca(&key, &all, &addresses, now)?;
        let stale = unix(now + CA_RENEWAL) > kernel.expires_unix;
        if kernel.key.is_empty() || stale || kernel.domains != all || kernel.addresses != addresses {
            let certificate = params.self_signed(&key).map_err(TlsError::Issue)?;
            kernel = Kernel {
                key: key.serialize_pem(),
                certificate: certificate.pem(),
                domains: all,
                addresses,
                expires_unix: unix(now + CA_LIFE),
            };
            kept.change(|content| content.clone_from(&kernel))?;
            tracing::info!(domains = %kernel.domains.join(", "), "created the certificate of the daemon's CA");
        }
        let leaf = KeyPair::generate().map_err(TlsError::Issue)?;
        let der = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(leaf.serialize_der()));
        let signing = ring::default_provider().key_provider.load_private_key(der).map_err(TlsError::Setup)?;
        let Kernel { certificate, domains, addresses, .. } = kernel;
        Ok(Arc::new(OwnCa {
            certificate,
            issuer: Issuer::new(params, key),
            key: leaf,
            signing,
            domains,
            addresses,
            issued: Mutex::default(),
        }))
    }

    /// The CA's certificate, in PEM. It is no secret.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// The certificate for a host name, as a client says it.
    fn issued(&self, asked: Option<&str>, now: SystemTime) -> Result<Arc<CertifiedKey>, TlsError> {
        let asked = asked.map(str::to_ascii_lowercase).filter(|name| self.is_for(name)).unwrap_or_default();
        let mut issued = self.issued.lock().unwrap_or_else(PoisonError::into_inner);
        // A clock that was set back makes a new one, too.
        let fresh = |issued: &Issued| now.duration_since(issued.at).is_ok_and(|age| age < USE);
        if let Some(known) = issued.get(&asked).filter(|known| fresh(known)) {
            return Ok(Arc::clone(&known.key));
        }
        let names = match asked.is_empty() {
            true => {
                let addresses = self.addresses.iter().map(ToString::to_string);
                self.domains.iter().cloned().chain(addresses).collect()
            }
            false => vec![asked.clone()],
        };
        let key = Arc::new(self.issue(names, now)?);
        if issued.len() >= MAX_ISSUED {
            let oldest = issued.iter().min_by_key(|(_, issued)| issued.at).map(|(name, _)| name.clone());
            oldest.map(|name| issued.remove(&name));
        }
        issued.insert(asked, Issued { at: now, key: Arc::clone(&key) });
        Ok(key)
    }

    fn issue(&self, names: Vec<String>, now: SystemTime) -> Result<CertifiedKey, TlsError> {
        let mut params = CertificateParams::new(names).map_err(TlsError::Issue)?;
        lives(&mut params, now, LIFE)?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "forkd");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&self.key, &self.issuer).map_err(TlsError::Issue)?;
        Ok(CertifiedKey::new(vec![certificate.der().clone()], Arc::clone(&self.signing)))
    }

    /// Whether it is one of the domains, or a label and one of them.
    fn is_for(&self, name: &str) -> bool {
        let below = name.split_once('.').map(|(_, domain)| domain);
        is_domain(name) && self.domains.iter().any(|domain| domain == name || Some(&domain[..]) == below)
    }
}

impl ResolvesServerCert for OwnCa {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let issued = self.issued(hello.server_name(), SystemTime::now());
        issued.inspect_err(|error| tracing::error!(%error, "cannot issue a certificate")).ok()
    }
}

/// The CA's own certificate. Its name is the same for the same key, so that what it has issued goes with each certificate of it.
fn ca(
    key: &KeyPair,
    domains: &[String],
    addresses: &[IpAddr],
    now: SystemTime,
) -> Result<CertificateParams, TlsError> {
    let mut params = CertificateParams::default();
    lives(&mut params, now, CA_LIFE)?;
    let digest = Sha256::digest(key.der_bytes());
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, format!("forkd CA {}", hex::encode(&digest[..4])));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let names = domains.iter().cloned().map(GeneralSubtree::DnsName);
    let prefix = |address: &IpAddr| if address.is_ipv4() { 32 } else { 128 };
    let addresses = addresses.iter().map(|address| CidrSubnet::from_addr_prefix(*address, prefix(address)));
    params.name_constraints = Some(NameConstraints {
        permitted_subtrees: names.chain(addresses.map(GeneralSubtree::IpAddress)).collect(),
        excluded_subtrees: Vec::new(),
    });
    Ok(params)
}

/// When it begins and ends, and a number that no other certificate has.
fn lives(params: &mut CertificateParams, now: SystemTime, life: Duration) -> Result<(), TlsError> {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + Duration::from_secs(unix(now - BACKDATED));
    params.not_after = epoch + Duration::from_secs(unix(now + life));
    let mut serial = [0; 16];
    getrandom::fill(&mut serial).map_err(|_| TlsError::NoRandomness)?;
    // Positive, and of full length.
    serial[0] = serial[0] & 0x7f | 0x40;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    Ok(())
}

fn unix(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A name of hosts: labels of letters, digits and dashes, the last of which is not a number.
fn is_domain(text: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= 253
        && text.split('.').all(label)
        && !text.rsplit('.').next().is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use rustls::client::danger::ServerCertVerifier;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime};

    use super::*;

    const ANY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

    fn der(ca: &OwnCa, name: Option<&str>, now: SystemTime) -> Vec<u8> {
        ca.issued(name, now).unwrap().cert[0].to_vec()
    }

    #[test]
    fn a_ca_is_made_once_and_its_key_is_private() {
        let home = tempfile::tempdir().unwrap();
        let first = OwnCa::open(home.path(), &[], ANY).unwrap();
        let again = OwnCa::open(home.path(), &[], ANY).unwrap();
        assert_eq!(first.certificate(), again.certificate());
        let mode = std::fs::metadata(home.path().join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(!format!("{first:?}").contains("PRIVATE"), "{first:?}");
        // Other names, and an end that is near, change the certificate and not the key.
        let key = first.issuer.key().serialize_pem();
        let other = OwnCa::open(home.path(), &["Sandboxes.example.org".into()], ANY).unwrap();
        assert_ne!(other.certificate(), first.certificate());
        let late = SystemTime::now() + CA_LIFE - CA_RENEWAL + DAY;
        let renewed = OwnCa::open_at(home.path(), &["sandboxes.example.org".into()], ANY, late).unwrap();
        assert_ne!(renewed.certificate(), other.certificate());
        assert_eq!(
            (other.issuer.key().serialize_pem(), renewed.issuer.key().serialize_pem()),
            (key.clone(), key)
        );
        std::fs::write(home.path().join(FILE), "{}").unwrap();
        assert!(matches!(OwnCa::open(home.path(), &[], ANY), Err(TlsError::Kept(_))));
    }

    #[test]
    fn names_that_are_not_domains_are_refused() {
        let home = tempfile::tempdir().unwrap();
        for wrong in ["", ".", "a..b", "*.example.org", "10.0.0.1", "a b", "-a.example", "ü.example"] {
            let error = OwnCa::open(home.path(), &[wrong.to_owned()], ANY).unwrap_err();
            assert!(matches!(error, TlsError::Domain(_)), "{wrong}: {error}");
        }
    }

    #[test]
    fn each_name_of_the_domains_gets_a_certificate() {
        let home = tempfile::tempdir().unwrap();
        let ca = OwnCa::open(home.path(), &["example.org".into()], ANY).unwrap();
        let now = SystemTime::now();
        let all = der(&ca, None, now);
        let one = der(&ca, Some("8000-iabc.localhost"), now);
        assert_ne!(all, one);
        assert_eq!(der(&ca, Some("8000-IABC.LocalHost"), now), one);
        assert_ne!(der(&ca, Some("8001-iabc.localhost"), now), one);
        for own in ["localhost", "example.org", "api.example.org"] {
            assert_ne!(der(&ca, Some(own), now), all, "{own}");
        }
        for other in ["example.com", "a.b.localhost", "org", "notlocalhost", "a.xlocalhost"] {
            assert_eq!(der(&ca, Some(other), now), all, "{other}");
        }
        // It is replaced long before its end.
        assert_eq!(der(&ca, None, now + USE - DAY), all);
        assert_ne!(der(&ca, None, now + USE), all);
    }

    #[test]
    fn the_ca_may_not_be_trusted_for_other_names() {
        let home = tempfile::tempdir().unwrap();
        let ca = OwnCa::open(home.path(), &["example.org".into()], ANY).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(ca.certificate().as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(ring::default_provider());
        let verifier = rustls::client::WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .unwrap();
        let verify = |name: &'static str| {
            let key = ca.issue(vec![name.to_owned()], SystemTime::now()).unwrap();
            let name = ServerName::try_from(name).unwrap();
            verifier.verify_server_cert(&key.cert[0], &[], &name, &[], UnixTime::now())
        };
        for own in ["8000-i.localhost", "a.example.org", "127.0.0.1", "::1"] {
            verify(own).unwrap();
        }
        for other in ["example.com", "google.com", "192.168.1.1", "::2"] {
            let error = verify(other).unwrap_err().to_string();
            assert!(error.contains("NameConstraintViolation"), "{other}: {error}");
        }
    }

    #[test]
    fn names_that_anybody_asks_for_do_not_pile_up() {
        let home = tempfile::tempdir().unwrap();
        let ca = OwnCa::open(home.path(), &[], ANY).unwrap();
        let now = SystemTime::now();
        for number in 0..MAX_ISSUED as u64 + 10 {
            der(&ca, Some(&format!("{number}-i.localhost")), now + Duration::from_secs(number));
        }
        let issued = ca.issued.lock().unwrap();
        assert_eq!(issued.len(), MAX_ISSUED);
        assert!(!issued.contains_key("9-i.localhost") && issued.contains_key("10-i.localhost"));
    }
}
