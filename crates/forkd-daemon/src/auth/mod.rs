//! Who a request is from, and what they may do.
//!
//! ```text
//! Unix socket                      admin: the socket's file permissions have decided already
//! TCP, with a token                what the token's scope says
//! TCP, without                     401; but where the daemon listens on the loopback only and there has never been a
//!                                  token: admin, unless a web page may be behind it
//! ```
//!
//! A token is sent as `Authorization: Bearer e2b_…` or as `X-API-Key: e2b_…`; if both are there, the first counts.

mod file;
mod secret;
mod tokens;

use std::net::SocketAddr;

use axum::extract::Request;
use axum::http::{HeaderMap, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use forkd_api::error::ErrorCode;
use forkd_api::hint::HintCode;
use forkd_api::token::{Scope, TokenLimits};
pub use forkd_engine::project::Project;

use crate::error::ApiError;

pub use file::{Damage, TokenError, TokenFile};
pub use secret::{NoRandomness, Secret};
pub use secret::{random, redact};
pub use tokens::{Holder, Tokens};

const API_KEY: &str = "x-api-key";

/// The other end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peer {
    Unix {
        /// The user, as the kernel says.
        uid: Option<u32>,
    },
    Tcp {
        address: SocketAddr,
        /// Whether the daemon listens there on the loopback only.
        loopback: bool,
        /// Whether the connection is encrypted.
        tls: bool,
    },
}

impl Peer {
    pub fn speaks_tls(&self) -> bool {
        matches!(self, Peer::Tcp { tls: true, .. })
    }
}

/// Who a request is from. Handlers get it as an extension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// `token:NAME`, `unix:UID`, or `local` for a caller on the loopback without a token.
    pub name: String,
    pub scope: Scope,
    /// What it makes belongs to it.
    pub project: Project,
    /// What it makes may be so much together.
    pub limits: TokenLimits,
}

impl Caller {
    /// A user of this host, who may do everything.
    fn unlimited(name: String) -> Caller {
        Caller { name, scope: Scope::Admin, project: Project::default(), limits: TokenLimits::default() }
    }

    /// A caller who may only look at what everyone may.
    pub fn nobody() -> Caller {
        let (project, limits) = (Project::default(), TokenLimits::default());
        Caller { name: "-".into(), scope: Scope::Read, project, limits }
    }

    /// Whether every project is this caller's business.
    pub fn sees_all(&self) -> bool {
        self.scope >= Scope::Admin
    }

    /// Whether what a project has is this caller's.
    pub fn owns(&self, project: &Project) -> bool {
        self.sees_all() || self.project == *project
    }

    /// Refuses what is beyond the caller's scope.
    pub fn require(&self, scope: Scope) -> Result<(), ApiError> {
        if self.scope >= scope {
            return Ok(());
        }
        let text = format!("this needs the scope {}, and the token has {}", scope.name(), self.scope.name());
        Err(ApiError::new(ErrorCode::Forbidden, text).hint_in_words(
            HintCode::NeedsScope,
            format!("make one on the daemon's host: forkd token create NAME --scope {}", scope.name()),
        ))
    }
}

/// Finds out who it is.
pub fn authenticate(tokens: &Tokens, peer: &Peer, headers: &HeaderMap) -> Result<Caller, ApiError> {
    let loopback = match peer {
        Peer::Unix { uid } => {
            let uid = uid.map_or_else(|| "unknown".to_owned(), |uid| uid.to_string());
            return Ok(Caller::unlimited(format!("unix:{uid}")));
        }
        Peer::Tcp { loopback, .. } => *loopback,
    };
    if !tcp_needs_token(tokens, loopback) {
        refuse_web_pages(headers)?;
        return Ok(Caller::unlimited("local".into()));
    }
    let holder = match presented(headers) {
        Presented::Nothing => return Err(unauthorized("a token is needed")),
        Presented::Unusable => return Err(unauthorized("malformed token")),
        Presented::Secret(secret) => tokens.holder(&secret),
    };
    // An unknown token and a removed one are the same to the caller.
    let holder = holder.ok_or_else(|| unauthorized("unknown token"))?;
    let Holder { name, scope, project, limits } = holder;
    Ok(Caller { name: format!("token:{name}"), scope, project, limits })
}

/// Whether requests over TCP need a token.
pub(crate) fn tcp_needs_token(tokens: &Tokens, loopback: bool) -> bool {
    !loopback || tokens.needed()
}

fn unauthorized(text: &str) -> ApiError {
    ApiError::new(ErrorCode::Unauthorized, text).hint(HintCode::NeedsToken)
}

/// For what a caller sees, but may not change.
pub fn not_yours(what: &str) -> ApiError {
    ApiError::new(ErrorCode::Forbidden, format!("{what} belongs to another project"))
        .hint(HintCode::NeedsProject)
}

/// The least scope that a method needs. Routes that need more say so with [`require`].
pub fn least(method: &Method) -> Scope {
    if method.is_safe() { Scope::Read } else { Scope::Run }
}

/// For a route that needs more than its method says:
/// `.route_layer(axum::middleware::from_fn(auth::require(Scope::Admin)))`.
pub fn require(
    scope: Scope,
) -> impl Fn(Request, Next) -> std::pin::Pin<Box<dyn Future<Output = Response> + Send>> + Clone {
    move |request: Request, next: Next| {
        Box::pin(async move {
            let allowed = match request.extensions().get::<Caller>() {
                Some(caller) => caller.require(scope),
                None => Err(unauthorized("a token is needed")),
            };
            match allowed {
                Ok(()) => next.run(request).await,
                Err(error) => error.into_response(),
            }
        })
    }
}

/// Takes forkd's own tokens out of a request that is forwarded. The rest of these headers is for the receiver.
pub fn keep_tokens(headers: &mut HeaderMap) {
    let is_token = |text: &str| Secret::parse(text.rsplit(' ').next().unwrap_or(text)).is_some();
    for name in [header::AUTHORIZATION.as_str(), API_KEY] {
        let values = headers.get_all(name).iter();
        if values.map(|value| value.to_str().unwrap_or_default().trim()).any(is_token) {
            headers.remove(name);
        }
    }
}

/// The token that a request shows, as it is written.
pub(crate) fn shown_token(headers: &HeaderMap) -> Option<Secret> {
    match presented(headers) {
        Presented::Secret(secret) => Some(secret),
        Presented::Nothing | Presented::Unusable => None,
    }
}

/// What stands in the headers where a token belongs.
enum Presented {
    Nothing,
    Unusable,
    Secret(Secret),
}

fn presented(headers: &HeaderMap) -> Presented {
    let text = match (headers.get(header::AUTHORIZATION), headers.get(API_KEY)) {
        (None, None) => return Presented::Nothing,
        (Some(authorization), _) => authorization.to_str().ok().and_then(|text| {
            let (scheme, rest) = text.trim().split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| rest.trim())
        }),
        (None, Some(key)) => key.to_str().ok().map(str::trim),
    };
    text.and_then(Secret::parse).map_or(Presented::Unusable, Presented::Secret)
}

/// Without a token, a page in a browser of this host could send requests too: by its own name for this address (DNS
/// rebinding, seen in `Host`), or blindly across origins (seen in `Origin`).
fn refuse_web_pages(headers: &HeaderMap) -> Result<(), ApiError> {
    let host = headers.get(header::HOST).map(|value| value.to_str().unwrap_or("?"));
    match host.is_none_or(is_local) {
        true => refuse_other_origins(headers),
        false => Err(of_web_page()),
    }
}

/// Refuses requests of web pages that are not this host's own, whatever token they have.
pub(crate) fn refuse_other_origins(headers: &HeaderMap) -> Result<(), ApiError> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let host = text(header::HOST);
    let same = text(header::ORIGIN)
        .is_none_or(|origin| origin.split_once("://").is_some_and(|(_, authority)| Some(authority) == host));
    if same { Ok(()) } else { Err(of_web_page()) }
}

fn of_web_page() -> ApiError {
    ApiError::new(ErrorCode::Forbidden, "refused: the request may come from a web page")
        .hint(HintCode::NotFromWebPage)
}

/// Whether an authority (`host`, `host:port`) is a name of the loopback that no name server can give to others.
fn is_local(authority: &str) -> bool {
    if let Ok(address) = authority.parse::<SocketAddr>() {
        return address.ip().is_loopback();
    }
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !host.contains(':') => host,
        _ => authority,
    };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost")
        || bare.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};
    use proptest::prelude::*;

    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&str, &str)| {
            (HeaderName::try_from(*name).unwrap(), HeaderValue::try_from(*value).unwrap())
        };
        pairs.iter().map(pair).collect()
    }

    fn secret_of(headers: &HeaderMap) -> Option<String> {
        match presented(headers) {
            Presented::Secret(secret) => Some(secret.expose().to_owned()),
            _ => None,
        }
    }

    #[test]
    fn tokens_are_found_in_both_headers() {
        let one = "e2b_0123456789012345678901234567890123456789";
        let two = "e2b_ffffffffffffffffffffffffffffffffffffffff";
        for good in ["Bearer ", "bearer ", "BEARER   "] {
            let value = format!("{good}{one}");
            assert_eq!(secret_of(&headers(&[("authorization", &value)])).as_deref(), Some(one));
        }
        assert_eq!(secret_of(&headers(&[("x-api-key", two)])).as_deref(), Some(two));
        let both = headers(&[("x-api-key", two), ("authorization", &format!("Bearer {one}"))]);
        assert_eq!(secret_of(&both).as_deref(), Some(one));
        for bad in [one, "Bearer", "Bearer ", "Basic eDp5", "Bearer e2b_0", &format!("Bearer {one}0")] {
            assert!(matches!(presented(&headers(&[("authorization", bad)])), Presented::Unusable), "{bad}");
        }
        assert!(matches!(presented(&HeaderMap::new()), Presented::Nothing));
    }

    #[test]
    fn a_scope_has_those_before_it() {
        for (index, has) in [Scope::Read, Scope::Run, Scope::Admin].into_iter().enumerate() {
            let caller = Caller { scope: has, ..Caller::nobody() };
            for (needed, scope) in [Scope::Read, Scope::Run, Scope::Admin].into_iter().enumerate() {
                assert_eq!(caller.require(scope).is_ok(), needed <= index);
            }
        }
        let other: Project = "other".parse().unwrap();
        let own = |scope| Caller { scope, ..Caller::nobody() }.owns(&other);
        assert!(!own(Scope::Read) && !own(Scope::Run) && own(Scope::Admin));
        assert!(Caller::nobody().owns(&Project::default()));
        assert_eq!((least(&Method::GET), least(&Method::POST)), (Scope::Read, Scope::Run));
        assert_eq!((least(&Method::HEAD), least(&Method::DELETE)), (Scope::Read, Scope::Run));
    }

    #[test]
    fn web_pages_are_refused_where_no_token_protects() {
        let allowed = |pairs: &[(&str, &str)]| refuse_web_pages(&headers(pairs)).is_ok();
        for host in ["localhost", "LOCALHOST:8889", "127.0.0.1:8889", "127.9.9.9", "[::1]:8889", "[::1]"] {
            assert!(allowed(&[("host", host)]), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example:8889", "10.0.0.1", "", "::1:80:x", "[::2]"] {
            assert!(!allowed(&[("host", host)]), "{host}");
        }
        assert!(allowed(&[("host", "localhost:1"), ("origin", "http://localhost:1")]));
        for origin in ["null", "http://evil.example", "http://localhost:2", "localhost:1"] {
            assert!(!allowed(&[("host", "localhost:1"), ("origin", origin)]), "{origin}");
        }
    }

    proptest! {
        #[test]
        fn any_header_is_read_or_refused(name in 0..4usize, bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let name = ["authorization", API_KEY, "host", "origin"][name];
            if let Ok(value) = HeaderValue::from_bytes(&bytes) {
                let mut headers = HeaderMap::new();
                headers.insert(name, value);
                let _ = refuse_web_pages(&headers);
                if let Presented::Secret(secret) = presented(&headers) {
                    prop_assert!(Secret::parse(secret.expose()).is_some());
                }
            }
        }
    }
}
