//! As much of a registry as transfers use, in this process, with faults that can be switched on.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use forkd_source::digest::Digest;

const MAX_BODY: usize = 128 << 20;

/// What goes wrong. Lists are used up from their end, one entry for each request that they fit.
#[derive(Debug, Clone, Default)]
pub(crate) struct Faults {
    /// Downloads of blobs that break off after so many bytes.
    pub break_downloads: Vec<usize>,
    /// They do not break off: the connection stays, and nothing comes any more.
    pub stall: bool,
    /// Bytes that downloads of blobs have less, also by what is said of their length, or more.
    pub shorter: usize,
    pub longer: usize,
    /// Uploads whose connection is closed before the answer.
    pub break_uploads: usize,
    /// Uploads that are taken before all others are broken.
    pub uploads_left: Option<usize>,
    /// Does not read the bodies of uploads. Their connections stay open.
    pub stall_uploads: bool,
    /// Answers instead of the real ones: a status, and `Retry-After`.
    pub answers: Vec<(u16, Option<&'static str>)>,
    pub ignore_ranges: bool,
    pub refuse_mounts: bool,
    /// The status that answers mounts.
    pub mount_status: Option<u16>,
    /// A blob in which one byte is wrong.
    pub lie: Option<Digest>,
    /// Sends no answer.
    pub hang: bool,
    /// The base64 of `user:password` that is wanted.
    pub password: Option<&'static str>,
    /// Wants tokens, which it issues for this many requests each.
    pub token_uses: Option<usize>,
    /// Where it says that its tokens are issued, instead of by itself.
    pub token_realm: Option<String>,
    /// Statuses that answer requests for tokens.
    pub token_answers: Vec<u16>,
    /// Bytes that tokens have more.
    pub token_size: usize,
    /// Downloads of blobs are redirected to this address.
    pub storage: Option<String>,
    /// Tags in one page of a list.
    pub page: Option<usize>,
    /// Replaces these faults when the last entry of `break_downloads` is used, or an upload is broken because of `uploads_left`.
    pub then: Option<Box<Faults>>,
}

impl Faults {
    fn advance(&mut self) {
        if let Some(next) = self.then.take() {
            *self = *next;
        }
    }
}

/// Media type and bytes.
type StoredManifest = (String, Vec<u8>);

#[derive(Default)]
struct State {
    blobs: Mutex<BTreeMap<(String, Digest), Vec<u8>>>,
    manifests: Mutex<BTreeMap<(String, String), StoredManifest>>,
    faults: Mutex<Faults>,
    log: Mutex<Vec<String>>,
    /// Requests that each token may still be used for.
    tokens: Mutex<BTreeMap<String, usize>>,
    is_over: AtomicBool,
}

pub(crate) struct TestRegistry {
    pub address: String,
    state: Arc<State>,
}

struct Call {
    method: String,
    path: String,
    query: BTreeMap<String, String>,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

struct Answer {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

impl TestRegistry {
    pub fn start() -> TestRegistry {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming() {
                if shared.is_over.load(Ordering::Relaxed) {
                    return;
                }
                let (Ok(stream), shared) = (stream, Arc::clone(&shared)) else { continue };
                thread::spawn(move || shared.serve(stream));
            }
        });
        TestRegistry { address, state }
    }

    pub fn set(&self, faults: Faults) {
        *self.state.faults.lock().unwrap() = faults;
    }

    /// The requests since the last time: method, path, and range if there is one.
    pub fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut *self.state.log.lock().unwrap())
    }

    pub fn manifest(&self, repository: &str, name: &str) -> Option<Vec<u8>> {
        let manifests = self.state.manifests.lock().unwrap();
        manifests.get(&(repository.into(), name.into())).map(|(_, bytes)| bytes.clone())
    }

    pub fn put_manifest(&self, repository: &str, name: &str, media_type: &str, bytes: &[u8]) {
        let entry = (media_type.to_owned(), bytes.to_vec());
        self.state.manifests.lock().unwrap().insert((repository.into(), name.into()), entry);
    }

    pub fn blob(&self, repository: &str, digest: Digest) -> Option<Vec<u8>> {
        self.state.blobs.lock().unwrap().get(&(repository.into(), digest)).cloned()
    }

    pub fn put_blob(&self, repository: &str, bytes: &[u8]) -> Digest {
        self.put_blob_as(repository, Digest::of(bytes), bytes);
        Digest::of(bytes)
    }

    pub fn put_blob_as(&self, repository: &str, digest: Digest, bytes: &[u8]) {
        self.state.blobs.lock().unwrap().insert((repository.into(), digest), bytes.to_vec());
    }

    /// Bytes of all blobs of a repository.
    pub fn stored_bytes(&self, repository: &str) -> u64 {
        let blobs = self.state.blobs.lock().unwrap();
        blobs.iter().filter(|((of, _), _)| of == repository).map(|(_, bytes)| bytes.len() as u64).sum()
    }

    pub fn remove_blob(&self, repository: &str, digest: Digest) {
        self.state.blobs.lock().unwrap().remove(&(repository.into(), digest));
    }
}

impl Drop for TestRegistry {
    fn drop(&mut self) {
        self.state.is_over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(&self.address);
    }
}

impl State {
    fn serve(&self, stream: TcpStream) {
        let _ = stream.set_read_timeout(Some(Duration::from_secs(30)));
        let Ok(mut writer) = stream.try_clone() else { return };
        let mut reader = BufReader::new(stream);
        while let Ok(Some(mut call)) = read_head(&mut reader) {
            let range = call.headers.get("range").map(|range| format!(" {range}")).unwrap_or_default();
            self.log.lock().unwrap().push(format!("{} {}{range}", call.method, call.path));
            if call.method == "PUT" && call.path.contains("/blobs/uploads/") {
                self.wait_while(|faults| faults.stall_uploads);
            }
            if reader.read_exact(&mut call.body).is_err() {
                return;
            }
            let Some((answer, cut)) = self.answer(&call) else { return };
            if write_answer(&mut writer, &call, &answer, cut).is_err() || cut.is_some() {
                self.wait_while(|faults| faults.stall);
                return;
            }
        }
    }

    fn wait_while(&self, stalls: impl Fn(&Faults) -> bool) {
        while stalls(&self.faults.lock().unwrap()) && !self.is_over.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The number of bytes after which the next download breaks.
    fn next_cut(&self) -> Option<usize> {
        let mut faults = self.faults.lock().unwrap();
        let cut = faults.break_downloads.pop();
        if cut.is_some() && faults.break_downloads.is_empty() {
            faults.advance();
        }
        cut
    }

    /// Whether the next upload is stored.
    fn takes_upload(&self) -> bool {
        let mut faults = self.faults.lock().unwrap();
        if faults.break_uploads > 0 {
            faults.break_uploads -= 1;
            return false;
        }
        let left = faults.uploads_left;
        match left {
            None => true,
            Some(0) => {
                faults.advance();
                false
            }
            Some(left) => {
                faults.uploads_left = Some(left - 1);
                true
            }
        }
    }

    /// The answer, and after how many bytes of its body the connection breaks. None closes it at once.
    fn answer(&self, call: &Call) -> Option<(Answer, Option<usize>)> {
        let faults = self.faults.lock().unwrap().clone();
        if faults.hang {
            thread::sleep(Duration::from_secs(20));
            return None;
        }
        if let Some(password) = faults.password
            && call.headers.get("authorization") != Some(&format!("Basic {password}"))
        {
            let challenge = ("WWW-Authenticate", "Basic realm=\"test\"".to_owned());
            return Some((Answer { status: 401, headers: vec![challenge], body: Vec::new() }, None));
        }
        if let Some(uses) = faults.token_uses
            && let Some(refused) = self.check_token(call, uses, &faults)
        {
            return Some((refused, None));
        }
        let instead = self.faults.lock().unwrap().answers.pop();
        if let Some((status, retry_after)) = instead {
            let headers = retry_after.map(|value| ("Retry-After", value.to_owned())).into_iter().collect();
            let body = br#"{"errors":[{"code":"TOOMANYREQUESTS","message":"slow down"}]}"#.to_vec();
            return Some((Answer { status, headers, body }, None));
        }
        let rest = call.path.strip_prefix("/v2/")?;
        if rest.is_empty() {
            return Some((Answer::new(200), None));
        }
        if let Some(repository) = rest.strip_suffix("/blobs/uploads/") {
            return Some((self.begin_upload(call, repository, &faults), None));
        }
        if let Some((repository, _)) = rest.split_once("/blobs/uploads/") {
            if call.method == "PUT" && !self.takes_upload() {
                return None;
            }
            return Some((self.end_upload(call, repository), None));
        }
        if let Some(storage) =
            faults.storage.as_ref().filter(|_| rest.contains("/blobs/") && call.method == "GET")
        {
            return Some((Answer::new(307).header("Location", format!("{storage}{}", call.path)), None));
        }
        if let Some((repository, digest)) = rest.split_once("/blobs/") {
            let answer = self.blob(call, repository, digest, &faults);
            let is_get = call.method == "GET" && answer.status < 300;
            let cut = if is_get { self.next_cut() } else { None };
            return Some((answer, cut));
        }
        if let Some((repository, name)) = rest.split_once("/manifests/") {
            return Some((self.manifest(call, repository, name), None));
        }
        match rest.strip_suffix("/tags/list") {
            Some(repository) => Some((self.tags(call, repository, faults.page), None)),
            None => Some((Answer::new(404), None)),
        }
    }

    /// Issues tokens, and refuses requests without one for their repository and operation.
    fn check_token(&self, call: &Call, uses: usize, faults: &Faults) -> Option<Answer> {
        let mut tokens = self.tokens.lock().unwrap();
        if call.path == "/token" {
            if let Some(status) = self.faults.lock().unwrap().token_answers.pop() {
                return Some(Answer::new(status));
            }
            // "me:secret", for those who want to push.
            let is_known =
                call.headers.get("authorization").map(String::as_str) == Some("Basic bWU6c2VjcmV0");
            let scope = &call.query["scope"];
            if scope.contains("push") && !is_known {
                return Some(Answer::new(401));
            }
            let token = format!("{scope}#{}", tokens.len()).replace(':', "_").replace(',', "+");
            let token = token.replace(' ', "~") + &"_".repeat(faults.token_size);
            tokens.insert(token.clone(), uses);
            return Some(Answer {
                body: format!("{{\"token\":{token:?}}}").into_bytes(),
                ..Answer::new(200)
            });
        }
        let host = &call.headers["host"];
        let realm = faults.token_realm.clone().unwrap_or_else(|| format!("http://{host}/token"));
        let challenge = format!("Bearer realm=\"{realm}\",service=\"test\"");
        let token = call.headers.get("authorization").and_then(|value| value.strip_prefix("Bearer "));
        let wanted = match call.method.as_str() {
            "GET" | "HEAD" => "pull",
            _ => "push",
        };
        let is_for = |token: &&str| {
            let scopes = token.split('#').next().unwrap_or_default();
            // A mount reads the repository that it takes the blob from.
            grants(scopes, wanted, |repository| call.path.starts_with(&format!("/v2/{repository}/")))
                && call
                    .query
                    .get("from")
                    .is_none_or(|from| grants(scopes, "pull", |repository| repository == from))
        };
        let left = token.filter(is_for).and_then(|token| tokens.get_mut(token)).filter(|left| **left > 0);
        match left {
            Some(left) => {
                *left -= 1;
                None
            }
            None => Some(Answer::new(401).header("WWW-Authenticate", challenge)),
        }
    }

    fn begin_upload(&self, call: &Call, repository: &str, faults: &Faults) -> Answer {
        if let Some(status) = faults.mount_status.filter(|_| call.query.contains_key("mount")) {
            return Answer::new(status);
        }
        if let (Some(digest), Some(from)) = (call.query.get("mount"), call.query.get("from"))
            && !faults.refuse_mounts
        {
            let digest: Digest = digest.parse().unwrap();
            let mut blobs = self.blobs.lock().unwrap();
            if let Some(bytes) = blobs.get(&(from.clone(), digest)).cloned() {
                blobs.insert((repository.into(), digest), bytes);
                return Answer::new(201).header("Location", format!("/v2/{repository}/blobs/{digest}"));
            }
        }
        Answer::new(202).header("Location", format!("/v2/{repository}/blobs/uploads/one?state=x"))
    }

    fn end_upload(&self, call: &Call, repository: &str) -> Answer {
        if call.method == "DELETE" {
            return Answer::new(204);
        }
        let digest: Digest = call.query["digest"].parse().unwrap();
        if call.query.get("state").map(String::as_str) != Some("x") || Digest::of(&call.body) != digest {
            return Answer::new(400);
        }
        self.blobs.lock().unwrap().insert((repository.into(), digest), call.body.clone());
        Answer::new(201).header("Location", format!("/v2/{repository}/blobs/{digest}"))
    }

    fn blob(&self, call: &Call, repository: &str, digest: &str, faults: &Faults) -> Answer {
        let Ok(digest) = digest.parse::<Digest>() else { return Answer::new(400) };
        let Some(mut bytes) = self.blobs.lock().unwrap().get(&(repository.into(), digest)).cloned() else {
            return Answer::new(404);
        };
        if faults.lie == Some(digest) {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
        }
        let range = call.headers.get("range").filter(|_| !faults.ignore_ranges);
        let Some((first, last)) = range.and_then(|range| range.strip_prefix("bytes=")?.split_once('-'))
        else {
            return Answer { body: sized(bytes, faults), ..Answer::new(200) };
        };
        let (first, last): (usize, usize) = (first.parse().unwrap(), last.parse().unwrap());
        let header = format!("bytes {first}-{last}/{}", bytes.len());
        let body = sized(bytes[first..=last].to_vec(), faults);
        Answer { body, ..Answer::new(206).header("Content-Range", header) }
    }

    fn manifest(&self, call: &Call, repository: &str, name: &str) -> Answer {
        let key = (repository.to_owned(), name.to_owned());
        if call.method == "PUT" {
            // As real registries do: what a manifest names must be there.
            let json: serde_json::Value = serde_json::from_slice(&call.body).unwrap();
            let layers = json["layers"].as_array().cloned().unwrap_or_default();
            for part in layers.iter().chain(json.get("config")) {
                let digest = part["digest"].as_str().unwrap().parse().unwrap();
                if !self.blobs.lock().unwrap().contains_key(&(repository.into(), digest)) {
                    return Answer::new(400);
                }
            }
            let digest = Digest::of(&call.body).to_string();
            let entry = (call.headers["content-type"].clone(), call.body.clone());
            let mut manifests = self.manifests.lock().unwrap();
            manifests.insert((repository.into(), digest), entry.clone());
            manifests.insert(key, entry);
            return Answer::new(201).header("Location", call.path.clone());
        }
        match self.manifests.lock().unwrap().get(&key) {
            Some((media_type, bytes)) => {
                Answer { body: bytes.clone(), ..Answer::new(200).header("Content-Type", media_type.clone()) }
            }
            None => Answer::new(404),
        }
    }

    fn tags(&self, call: &Call, repository: &str, page: Option<usize>) -> Answer {
        let manifests = self.manifests.lock().unwrap();
        let names = manifests.keys().filter(|(of, name)| of == repository && !name.contains(':'));
        let names: BTreeSet<&String> = names.map(|(_, name)| name).collect();
        let after = call.query.get("last");
        let mut names: Vec<_> =
            names.into_iter().filter(|name| after.is_none_or(|last| *name > last)).collect();
        let answer = match page.filter(|page| names.len() > *page) {
            Some(page) => {
                names.truncate(page);
                Answer::new(200).header("Link", "</v2/next>; rel=\"next\"")
            }
            None => Answer::new(200),
        };
        let body = serde_json::json!({ "name": repository, "tags": names });
        Answer { body: body.to_string().into_bytes(), ..answer }
    }
}

/// Whether a token's scopes allow an operation on a repository.
fn grants(scopes: &str, operation: &str, is_repository: impl Fn(&str) -> bool) -> bool {
    scopes.split('~').any(|scope| {
        let mut parts = scope.split('_').skip(1);
        is_repository(parts.next().unwrap_or_default())
            && parts.next().unwrap_or_default().contains(operation)
    })
}

/// As long as the faults want it.
fn sized(mut bytes: Vec<u8>, faults: &Faults) -> Vec<u8> {
    let length = (bytes.len() + faults.longer).saturating_sub(faults.shorter);
    bytes.resize(length, 0);
    bytes
}

impl Answer {
    fn new(status: u16) -> Answer {
        Answer { status, headers: Vec::new(), body: Vec::new() }
    }

    fn header(mut self, name: &'static str, value: impl Into<String>) -> Answer {
        self.headers.push((name, value.into()));
        self
    }
}

/// Reads a request without its body, but allocates the body.
fn read_head(reader: &mut impl BufRead) -> io::Result<Option<Call>> {
    let mut line = String::new();
    if reader.take(8192).read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace();
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let base: reqwest::Url = "http://registry.example".parse().unwrap();
    let url = base.join(target).map_err(io::Error::other)?;
    let mut headers = BTreeMap::new();
    loop {
        let mut header = String::new();
        reader.take(8192).read_line(&mut header)?;
        match header.trim_end().split_once(": ") {
            Some((name, value)) => headers.insert(name.to_ascii_lowercase(), value.to_owned()),
            None => break,
        };
    }
    let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
    assert!(length <= MAX_BODY);
    let mut query = BTreeMap::<String, String>::new();
    for (key, value) in url.query_pairs() {
        // A key that is there twice has both values, with a space between them.
        let values = query.entry(key.into_owned()).or_default();
        values.push_str(if values.is_empty() { "" } else { " " });
        values.push_str(&value);
    }
    Ok(Some(Call { method: method.into(), path: url.path().into(), query, headers, body: vec![0; length] }))
}

fn write_answer(to: &mut TcpStream, call: &Call, answer: &Answer, cut: Option<usize>) -> io::Result<()> {
    let mut head = format!("HTTP/1.1 {} x\r\nContent-Length: {}\r\n", answer.status, answer.body.len());
    for (name, value) in &answer.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    to.write_all(format!("{head}\r\n").as_bytes())?;
    if call.method != "HEAD" {
        let end = cut.unwrap_or(usize::MAX).min(answer.body.len());
        to.write_all(&answer.body[..end])?;
    }
    to.flush()
}
