//! Files of a guest, one at a time or as archives. Nothing is whole in memory but what is known about files.
//!
//! The agent says what is wrong by a status and a few words. What a caller would act on differently is told apart here; where
//! the status is not enough, the agent is asked what is at the path.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use forkd_envd::caller::authorization;
use forkd_envd::connect::UNARY_TYPE;
use forkd_envd::files::FileQuery;
use forkd_envd::filesystem::{
    EntryInfo, EntryResponse, FileType, LIST_DIR, ListDirRequest, ListDirResponse, Page, PathRequest, REMOVE,
    STAT,
};
use http_body::Body;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, RANGE};
use hyper::{Request, Response, StatusCode};
use serde::Serialize;
use serde_json::Value;

use crate::agent::{Agent, AgentError};
use crate::transfer::{Pack, Place, check, exchange, pack_body, place_body};

/// How long a guest may take to begin to answer. One that is emulated may be slow.
const ANSWER: Duration = Duration::from_secs(60);
/// What is read of an answer about one file, and about a directory.
const MAX_STAT: usize = 64 << 10;
const MAX_LIST: usize = 8 << 20;
/// Names and paths are not longer in any guest.
const MAX_TEXT: usize = 4096;

/// A path of a guest, and the user that it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct At<'a> {
    pub path: &'a str,
    /// Without one, the agent's default user.
    pub user: Option<&'a str>,
}

/// What is known of a file. A link is shown as what it leads to, and as a link if that is nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Info {
    pub name: String,
    pub path: String,
    pub kind: Kind,
    pub size: u64,
    pub mode: u32,
    pub owner: String,
    pub group: String,
    pub modified_unix: u64,
    pub symlink_target: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    File,
    Directory,
    Symlink,
    Other,
}

/// In the guest's words, where it has any.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error(transparent)]
    Agent(#[from] AgentError),
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    IsDirectory(String),
    #[error("{0}")]
    NotDirectory(String),
    #[error("{0}")]
    Denied(String),
    #[error("{0}")]
    NoSpace(String),
    #[error("{0}")]
    NoUser(String),
    #[error("{0}")]
    TooMany(String),
    #[error("{0}")]
    Refused(String),
    /// The file is shorter; the answer says how long it is.
    #[error("the file does not have this part")]
    Range(Option<HeaderValue>),
}

/// The contents of a file, or a part of it.
pub async fn read(
    agent: &Agent,
    at: At<'_>,
    range: Option<&HeaderValue>,
) -> Result<Response<Incoming>, FileError> {
    let path = query(at).target();
    let mut request = Request::get(&path).header(HOST, "guest").header(ACCEPT_ENCODING, "identity");
    if let Some(range) = range {
        request = request.header(RANGE, range);
    }
    let response = in_time(exchange(agent, request.body(Full::new(Bytes::new())))).await?;
    match response.status() {
        StatusCode::OK | StatusCode::PARTIAL_CONTENT => Ok(response),
        StatusCode::RANGE_NOT_SATISFIABLE => {
            Err(FileError::Range(response.headers().get(hyper::header::CONTENT_RANGE).cloned()))
        }
        _ => match refused(&path, response).await {
            FileError::Refused(text) => Err(closer(agent, at, text, FileError::NotFound).await),
            error => Err(error),
        },
    }
}

/// Writes a file. It is there, or replaced, when all of the body has come; if it breaks off, nothing has changed.
pub async fn write<B>(agent: &Agent, at: At<'_>, content: B) -> Result<(), FileError>
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let path = FileQuery { whole: true, ..query(at) }.target();
    let request = Request::post(&path)
        .header(HOST, "guest")
        .header(CONTENT_TYPE, "application/octet-stream")
        .body(content);
    let response = exchange(agent, request).await?;
    if response.status().is_success() {
        return Ok(());
    }
    match refused(&path, response).await {
        FileError::Refused(text) => Err(closer(agent, at, text, FileError::NotDirectory).await),
        error => Err(error),
    }
}

/// A file or a directory as an archive, whose names begin with its own.
pub async fn pack(agent: &Agent, at: At<'_>) -> Result<Incoming, FileError> {
    let found = stat(agent, at).await?;
    let destination = match found.name.as_str() {
        "/" => "/".to_owned(),
        name => format!("/{name}"),
    };
    let sources = [literal(&found.path)];
    let pack = Pack { sources: &sources, destination: &destination };
    in_time(pack_body(agent, &pack)).await.map_err(of_agent)
}

/// Unpacks an archive into a directory, which is made if it is not there. Each file of it appears when it is whole. Without a
/// user, files belong to whom the archive says.
pub async fn place<B>(agent: &Agent, at: At<'_>, archive: B) -> Result<(), FileError>
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let place = Place { into: at.path, owner: at.user, mode: None };
    match place_body(agent, &place, archive).await.map_err(of_agent) {
        Ok(()) => Ok(()),
        Err(FileError::Refused(text)) => match stat(agent, At { user: None, ..at }).await {
            Ok(found) if found.kind != Kind::Directory => Err(FileError::NotDirectory(text)),
            _ => Err(FileError::Refused(text)),
        },
        Err(error) => Err(error),
    }
}

pub async fn stat(agent: &Agent, at: At<'_>) -> Result<Info, FileError> {
    let answer = match call(agent, STAT, at, MAX_STAT).await {
        // To E2B's clients what is below a file is not missing. Here it is.
        Err(FileError::Refused(text)) if is_below_a_file(&text) => {
            return Err(FileError::NotFound(text));
        }
        answer => answer?,
    };
    let answer: EntryResponse = serde_json::from_value(answer).map_err(AgentError::Json)?;
    Ok(info(answer.entry))
}

/// Whether the agent says that something on the way is not a directory. Agents in older snapshots say it as Rust does.
fn is_below_a_file(text: &str) -> bool {
    [": not a directory", ": Not a directory (os error 20)"].iter().any(|words| text.ends_with(words))
}

/// A part of what is in a directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    pub entries: Vec<Info>,
    /// Whether there is more after the last one.
    pub more: bool,
}

/// What is in a directory, in the order of names, a page at a time.
pub async fn list(agent: &Agent, at: At<'_>, page: &Page) -> Result<Listing, FileError> {
    let found = stat(agent, at).await?;
    if found.kind != Kind::Directory {
        return Err(FileError::NotDirectory(format!("{} is not a directory", found.path)));
    }
    let request =
        ListDirRequest { path: at.path.into(), page: Some(page.clone()), ..ListDirRequest::default() };
    let answer = call_with(agent, LIST_DIR, at, &request, MAX_LIST).await?;
    let answer: ListDirResponse = serde_json::from_value(answer).map_err(AgentError::Json)?;
    let limit = usize::try_from(page.limit).unwrap_or(usize::MAX);
    // An early agent answers with all of it.
    let mut rest = answer.entries.into_iter().filter(|entry| entry.name > page.after);
    let entries: Vec<Info> = rest.by_ref().take(limit).map(info).collect();
    Ok(Listing { entries, more: answer.more || rest.next().is_some() })
}

/// Removes a file, or a directory with everything in it.
pub async fn remove(agent: &Agent, at: At<'_>) -> Result<(), FileError> {
    let found = stat(agent, at).await?;
    if found.path == "/" {
        return Err(FileError::Refused("the root directory cannot be removed".into()));
    }
    call(agent, REMOVE, at, MAX_STAT).await.map(drop)
}

fn query(at: At<'_>) -> FileQuery {
    FileQuery { path: Some(at.path.into()), username: at.user.map(Into::into), ..FileQuery::default() }
}

/// A path whose special characters mean themselves where patterns are expected.
fn literal(path: &str) -> String {
    let escape = |character| match character {
        '*' | '?' | '[' | '\\' => format!("\\{character}"),
        other => other.to_string(),
    };
    path.chars().map(escape).collect()
}

async fn in_time<T>(asked: impl Future<Output = Result<T, AgentError>>) -> Result<T, AgentError> {
    tokio::time::timeout(ANSWER, asked).await.unwrap_or(Err(AgentError::Timeout(ANSWER)))
}

/// What a refusal means. The body has been read to its end.
async fn refused(path: &str, response: Response<Incoming>) -> FileError {
    let status = response.status();
    match in_time(check(path, response)).await {
        Ok(_) => AgentError::Status { path: path.into(), status, message: String::new() }.into(),
        Err(error) => of_agent(error),
    }
}

fn of_agent(error: AgentError) -> FileError {
    let AgentError::Status { status, message, .. } = &error else { return error.into() };
    let text = message.clone();
    match status.as_u16() {
        400 => FileError::Refused(text),
        401 => FileError::NoUser(text),
        403 => FileError::Denied(text),
        404 => FileError::NotFound(text),
        429 => FileError::TooMany(text),
        507 => FileError::NoSpace(text),
        _ => error.into(),
    }
}

/// What is wrong with a path where the agent only says that something is. `nothing` is for one that leads nowhere: something on
/// the way is no directory.
async fn closer(agent: &Agent, at: At<'_>, text: String, nothing: fn(String) -> FileError) -> FileError {
    match stat(agent, at).await {
        Ok(found) if found.kind == Kind::Directory => FileError::IsDirectory(text),
        Err(FileError::NotFound(_)) => nothing(text),
        _ => FileError::Refused(text),
    }
}

/// Calls the file service, for a user.
async fn call(agent: &Agent, path: &str, at: At<'_>, max: usize) -> Result<Value, FileError> {
    call_with(agent, path, at, &PathRequest { path: at.path.into() }, max).await
}

async fn call_with(
    agent: &Agent,
    path: &str,
    at: At<'_>,
    message: &impl Serialize,
    max: usize,
) -> Result<Value, FileError> {
    let mut request = Request::post(path).header(HOST, "guest").header(CONTENT_TYPE, UNARY_TYPE);
    if let Some(user) = at.user {
        request = request.header(AUTHORIZATION, authorization(user));
    }
    let body = serde_json::to_vec(message).map_err(AgentError::Request)?;
    let asked = async {
        let response = exchange(agent, request.body(Full::new(Bytes::from(body)))).await?;
        let body = check(path, response).await?;
        Ok(Limited::new(body, max).collect().await)
    };
    let body = match in_time(asked).await.map_err(of_agent)? {
        Ok(body) => body.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => {
            return Err(FileError::TooMany("the directory has more entries than fit into an answer".into()));
        }
        Err(error) => return Err(AgentError::Answer(error).into()),
    };
    Ok(serde_json::from_slice(&body).map_err(AgentError::Json)?)
}

/// What an agent says about a file. A guest is hostile, so what is passed on of it is bounded.
fn info(entry: EntryInfo) -> Info {
    let kind = match entry.kind {
        FileType::File => Kind::File,
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Symlink,
        FileType::Other => Kind::Other,
    };
    let since = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).ok();
    let modified = humantime::parse_rfc3339(&entry.modified_time).ok().and_then(since);
    let short = |text: String| text.chars().take(MAX_TEXT).collect();
    Info {
        name: short(entry.name),
        path: short(entry.path),
        kind,
        size: entry.size.parse().unwrap_or(0),
        mode: entry.mode & 0o7777,
        owner: short(entry.owner),
        group: short(entry.group),
        modified_unix: modified.map_or(0, |since| since.as_secs()),
        symlink_target: entry.symlink_target.map(short),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::answering;

    const AT: At<'_> = At { path: "/a b", user: Some("me") };

    #[tokio::test]
    async fn what_an_agent_knows_of_a_file_is_read() {
        let entry = r#"{"entry":{"name":"a b","type":"FILE_TYPE_FILE","path":"/a b","size":"5","mode":420,
            "permissions":"-rw-r--r--","owner":"me","group":"us","modifiedTime":"1970-01-01T00:01:00.5Z","future":1}}"#;
        let (_directory, agent, request) = answering("200 OK", entry.into());
        let info = stat(&agent, AT).await.unwrap();
        assert_eq!((info.kind, info.size, info.mode, info.modified_unix), (Kind::File, 5, 0o644, 60));
        let request = request.await.unwrap();
        assert!(
            request.contains("authorization: Basic bWU6") && request.contains(r#"{"path":"/a b"}"#),
            "{request}"
        );
    }

    #[tokio::test]
    async fn refusals_have_names() {
        for (status, is) in [
            ("404 Not Found", "NotFound"),
            ("403 Forbidden", "Denied"),
            ("401 Unauthorized", "NoUser"),
            ("507 Insufficient Storage", "NoSpace"),
            ("429 Too Many Requests", "TooMany"),
            ("400 Bad Request", "Refused"),
            ("500 Internal Server Error", "Agent"),
        ] {
            let (_directory, agent, _request) = answering(status, br#"{"message":"why"}"#.to_vec());
            let error = stat(&agent, AT).await.unwrap_err();
            assert!(format!("{error:?}").starts_with(is) && error.to_string().contains("why"), "{error:?}");
        }
    }

    #[tokio::test]
    async fn nonsense_and_endless_answers_are_refused() {
        for nonsense in [&b"{}"[..], b"[]", b"{\"entry\":{\"size\":5}}", b""] {
            let (_directory, agent, _request) = answering("200 OK", nonsense.to_vec());
            assert!(matches!(stat(&agent, AT).await, Err(FileError::Agent(AgentError::Json(_)))));
        }
        let (_directory, agent, _request) = answering("200 OK", vec![b' '; MAX_STAT + 1]);
        assert!(matches!(stat(&agent, AT).await, Err(FileError::TooMany(_))));
    }

    #[test]
    fn paths_mean_themselves() {
        assert_eq!(literal(r"/a*[b]?\c"), r"/a\*\[b]\?\\c");
    }
}
