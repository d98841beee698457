//! Where a request belongs: forkd's own API, E2B's, or a sandbox.
//!
//! ```text
//!   1. a path of the control plane and X-API-Key       control plane   (old clients send 2 along with it)
//!   2. E2b-Sandbox-Id and E2b-Sandbox-Port             the sandbox
//!   3. Host: <port>-<id>.<domain>                      the sandbox     (before 1: no client calls the API by such a name)
//!   4. X-Access-Token                                  the sandbox whose it is; the port by the path
//!   5. /files with a signature                         the sandbox whose token has signed it
//!   6. a path of the control plane                     control plane
//! ```
//!
//! All other requests are forkd's own.

use axum::http::{HeaderMap, Method, Uri, header};
use forkd_envd::caller::ACCESS_TOKEN;
use forkd_envd::files::{FILES, FileQuery};
use forkd_envd::interpreter::{EXECUTE, is_contexts};
use forkd_envd::port::{ENVD, INTERPRETER};
use forkd_envd::signature::Operation;

use forkd_daemon::protocol::{Aim, Plane};

use super::host::{self, Named, is_id};
use super::keys::{Keys, Purpose};

pub(crate) const SANDBOX_ID: &str = "e2b-sandbox-id";
pub(crate) const SANDBOX_PORT: &str = "e2b-sandbox-port";
const API_KEY: &str = "x-api-key";

/// What paths of the control plane begin with.
const CONTROL: [&str; 9] = [
    "/sandboxes",
    "/v2/sandboxes",
    "/templates",
    "/v2/templates",
    "/v3/templates",
    "/snapshots",
    "/volumes",
    "/secrets",
    "/nodes",
];

/// What is looked at of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub method: &'a Method,
    pub uri: &'a Uri,
    pub headers: &'a HeaderMap,
}

/// Finds out. `ids` are those of the sandboxes that a signature may be of.
pub(crate) fn plane(asked: Asked<'_>, keys: &Keys, ids: impl FnOnce() -> Vec<String>) -> Plane {
    forkd_proto::passes!();
    let Asked { method, uri, headers } = asked;
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let authority = headers.get(header::HOST).and_then(|value| value.to_str().ok());
    let authority =
        authority.or_else(|| uri.authority().map(|authority| authority.as_str())).unwrap_or_default();
    match host::parse(authority) {
        Named::Port(port, id) => return Plane::Data(Aim::Port { id: id.to_owned(), port, by_name: true }),
        Named::NoPort => return Plane::Data(Aim::Wrong("Invalid sandbox port")),
        Named::Other => {}
    }
    let control = is_control(uri.path());
    if control && headers.contains_key(API_KEY) {
        return Plane::Control;
    }
    if let (Some(id), Some(port)) = (text(SANDBOX_ID), text(SANDBOX_PORT)) {
        return Plane::Data(by_headers(id, port));
    }
    if control {
        return Plane::Control;
    }
    if let Some(id) = text(ACCESS_TOKEN).and_then(|token| keys.holder(Purpose::Access, token)) {
        let port = if is_interpreter(uri.path()) { INTERPRETER } else { ENVD };
        return Plane::Data(Aim::Port { id: id.to_owned(), port, by_name: false });
    }
    if uri.path() == FILES && uri.query().is_some_and(|query| query.contains("signature=")) {
        let (query, operation) = (file_query(uri), operation(method));
        let signer = |id: &String| query.is_signed_by(&keys.token(Purpose::Access, id), operation);
        return Plane::Data(match ids().into_iter().find(signer) {
            Some(id) => Aim::Port { id, port: ENVD, by_name: false },
            None => Aim::Wrong("Invalid signature"),
        });
    }
    Plane::Own
}

fn by_headers(id: &str, port: &str) -> Aim {
    if !is_id(id) {
        return Aim::Wrong("Invalid sandbox ID");
    }
    match port.parse() {
        Ok(0) | Err(_) => Aim::Wrong("Invalid sandbox port"),
        Ok(port) => Aim::Port { id: id.to_owned(), port, by_name: false },
    }
}

pub(crate) fn is_control(path: &str) -> bool {
    CONTROL
        .iter()
        .any(|begin| path.strip_prefix(begin).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

/// Whether a path is the code interpreter's, where nothing else says for whom it is.
fn is_interpreter(path: &str) -> bool {
    path == EXECUTE || is_contexts(path)
}

/// What the query of a link to a file says; nothing if it cannot be read.
pub(crate) fn file_query(uri: &Uri) -> FileQuery {
    axum::extract::Query::try_from_uri(uri).map(|axum::extract::Query(query)| query).unwrap_or_default()
}

/// What a request to `/files` does.
pub(crate) fn operation(method: &Method) -> Operation {
    if method.is_safe() { Operation::Read } else { Operation::Write }
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};
    use proptest::prelude::*;

    use super::*;

    fn keys() -> (tempfile::TempDir, Keys) {
        let home = tempfile::tempdir().unwrap();
        let keys = Keys::open(home.path()).unwrap();
        (home, keys)
    }

    fn headers(list: &[(&str, &str)]) -> HeaderMap {
        let one = |(name, value): &(&str, &str)| {
            (HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap())
        };
        list.iter().map(one).collect()
    }

    fn to(id: &str, port: u16, by_name: bool) -> Plane {
        Plane::Data(Aim::Port { id: id.into(), port, by_name })
    }

    #[test]
    fn the_order_holds() {
        let (_home, keys) = keys();
        let token = keys.token(Purpose::Access, "i2");
        let find = |uri: &str, list: &[(&str, &str)]| {
            let (uri, headers) = (uri.parse().unwrap(), headers(list));
            plane(Asked { method: &Method::GET, uri: &uri, headers: &headers }, &keys, || {
                vec!["i1".into(), "i2".into()]
            })
        };
        let key = ("x-api-key", "k");
        let routed = [("e2b-sandbox-id", "i1"), ("e2b-sandbox-port", "8000")];
        assert_eq!(find("/v1/sandboxes", &[key]), Plane::Own);
        assert_eq!(
            find("/sandboxes/i1", &[key, routed[0], routed[1]]),
            Plane::Control,
            "old clients send both"
        );
        assert_eq!(find("/sandboxes/i1", &routed), to("i1", 8000, false), "a guest's own path");
        assert_eq!(find("/v1/chat/completions", &routed), to("i1", 8000, false));
        assert_eq!(find("/sandboxes", &[]), Plane::Control, "answered with what is missing");
        assert_eq!(find("/sandboxes", &[("x-access-token", &token)]), Plane::Control);
        let name = ("host", "3000-i1.localhost:8889");
        assert_eq!(find("/", &[name]), to("i1", 3000, true));
        assert_eq!(find("/templates", &[name, key]), to("i1", 3000, true), "the guest's own, too");
        let token = ("x-access-token", &*token);
        assert_eq!(find("/health", &[token]), to("i2", ENVD, false));
        assert_eq!(find("/process.Process/List", &[token, key]), to("i2", ENVD, false));
        for path in ["/execute", "/contexts", "/contexts/x/restart"] {
            assert_eq!(find(path, &[token]), to("i2", INTERPRETER, false));
        }
        assert_eq!(find("/health", &[("x-access-token", "ea_i2_00")]), Plane::Own);
        assert_eq!(find("/files?signature=v1_x", &[]), Plane::Data(Aim::Wrong("Invalid signature")));
        assert_eq!(find("/files", &[]), Plane::Own);
        assert_eq!(find("/sandboxesx", &[key]), Plane::Own);
        for (id, port) in
            [("I1", "80"), ("i-1", "80"), ("../x", "80"), ("i1", "0"), ("i1", "65536"), ("i1", "x")]
        {
            let wrong = find("/", &[("e2b-sandbox-id", id), ("e2b-sandbox-port", port)]);
            assert!(matches!(wrong, Plane::Data(Aim::Wrong(_))), "{id} {port}");
        }
    }

    #[test]
    fn a_signature_finds_its_sandbox() {
        let (_home, keys) = keys();
        let token = keys.token(Purpose::Access, "i2");
        let mut query = FileQuery { path: Some("/a b".into()), ..FileQuery::default() };
        query.signature = Some(query.signature_by(&token, Operation::Write));
        let uri: Uri = query.target().parse().unwrap();
        assert_eq!(file_query(&uri), query);
        let find = |method| {
            let headers = HeaderMap::new();
            let ids = || vec!["i1".into(), "i2".into()];
            plane(Asked { method, uri: &uri, headers: &headers }, &keys, ids)
        };
        assert_eq!(find(&Method::POST), to("i2", ENVD, false));
        assert_eq!(find(&Method::GET), Plane::Data(Aim::Wrong("Invalid signature")));
    }

    proptest! {
        #[test]
        fn any_query_is_read_or_nothing(query in "\\PC{0,80}") {
            if let Ok(uri) = Uri::builder().path_and_query(format!("/?{query}")).build() {
                prop_assert!(file_query(&uri).check_signature("secret", Operation::Read, 0).is_err());
            }
        }

        #[test]
        fn any_request_belongs_somewhere(
            path in "/[a-z0-9/._%-]{0,24}(\\?[a-z=&%]{0,16})?",
            values in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..24), 5),
        ) {
            let (_home, keys) = keys();
            let names = ["e2b-sandbox-id", "e2b-sandbox-port", "x-access-token", "host", "x-api-key"];
            let mut headers = HeaderMap::new();
            for (name, value) in names.into_iter().zip(values) {
                if let Ok(value) = HeaderValue::from_bytes(&value) {
                    headers.insert(name, value);
                }
            }
            if let Ok(uri) = path.parse() {
                let _ = plane(Asked { method: &Method::GET, uri: &uri, headers: &headers }, &keys, Vec::new);
            }
        }
    }
}
