//! `read`, `write` and `list_files`.

use std::time::Instant;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use forkd_api::file::{FileInfo, FileKind};
use rmcp::model::{ContentBlock, Resource};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::run::sandbox_for;
use crate::answer::{Answer, MAX_PICTURES, MAX_SHOWN, fitting_table};
use crate::call::{Call, wrong};
use crate::failure::Failure;
use crate::outputs::{Content, GONE, MAX_OUTPUT, PREFIX};

/// How many files a listing has.
const MAX_FILES: u32 = 200;
/// What addresses of files begin with.
pub(crate) const FILE_PREFIX: &str = "forkd://sandbox/";
/// Between a sandbox's id and a file's path.
const FILE_INFIX: &str = "/file";

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Read {
    /// The sandbox's id. Not needed for an output.
    sandbox: Option<String>,
    /// The file, absolute or from the user's directory; or an output, forkd://output/...
    path: String,
    /// The byte to begin at.
    #[serde(default)]
    offset: u64,
}

pub(super) async fn read(call: &Call<'_>, wanted: Read) -> Result<Answer, Failure> {
    let Read { sandbox, path, offset } = wanted;
    if path.starts_with(PREFIX) {
        return read_output(call, &path, offset);
    }
    let id =
        sandbox.ok_or_else(|| wrong("read", "expected `sandbox`, the id of the one that has the file"))?;
    let what = format!("Cannot read {path} of sandbox {id}");
    call.open(&what, &id).await?;
    let info = call.client.file_info(&id, &path).await.map_err(|error| call.failed(&what, &error))?;
    if info.kind == FileKind::Directory {
        return Err(Failure::new(what, "it is a directory").next("call `list_files` to see what is in it"));
    }
    let most = if offset == 0 { MAX_PICTURES / 4 * 3 } else { MAX_SHOWN };
    let bytes = download(call, &what, &id, &path, offset, most).await?;
    if let Some(mime_type) = picture_type(&bytes).filter(|_| offset == 0) {
        // The whole of it, or nothing: half a picture is none.
        if u64::try_from(bytes.len()).is_ok_and(|length| length >= info.size) {
            return Ok(Answer {
                content: vec![ContentBlock::image(STANDARD.encode(&bytes), mime_type)],
                structured: None,
            });
        }
    }
    Ok(shown(&id, &path, &info, offset, &bytes))
}

/// A piece of a file, as text, or what it is if it is none.
fn shown(id: &str, path: &str, info: &FileInfo, offset: u64, bytes: &[u8]) -> Answer {
    let piece = &bytes[..bytes.len().min(MAX_SHOWN)];
    let link = || {
        let resource = Resource::new(file_uri(id, &info.path), info.name.clone()).with_size(info.size);
        ContentBlock::resource_link(resource)
    };
    let Some(text) = text_of(piece) else {
        let text = format!("{path} has {} bytes, which are not text.", info.size);
        return Answer { content: vec![ContentBlock::text(text), link()], structured: None };
    };
    let end = offset.saturating_add(u64::try_from(text.len()).unwrap_or(u64::MAX));
    let mut content = vec![ContentBlock::text(text)];
    if end < info.size || offset > 0 {
        let rest = match end < info.size {
            true => format!("; read on with offset {end}"),
            false => String::new(),
        };
        content.push(ContentBlock::text(format!("[bytes {offset} to {end} of {}{rest}]", info.size)));
    }
    if end < info.size {
        content.push(link());
    }
    Answer { content, structured: None }
}

/// Text of a piece that may begin and end in the middle of a character; nothing if it is no text.
fn text_of(piece: &[u8]) -> Option<&str> {
    match str::from_utf8(piece) {
        Ok(text) => (!text.contains('\0')).then_some(text),
        // Cut in a character at its end.
        Err(error) if error.error_len().is_none() && error.valid_up_to() + 4 > piece.len() => {
            let text = str::from_utf8(&piece[..error.valid_up_to()]).ok()?;
            (!text.is_empty() && !text.contains('\0')).then_some(text)
        }
        Err(_) => None,
    }
}

/// The type of a picture that models are shown, by its first bytes.
fn picture_type(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x89, b'P', b'N', b'G', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

fn read_output(call: &Call<'_>, uri: &str, offset: u64) -> Result<Answer, Failure> {
    let what = format!("Cannot read {uri}");
    let found = call.common.outputs.get(&call.caller.name, uri, Instant::now());
    let text = match found {
        Some(Content::Text(text)) => text,
        Some(Content::Blob { .. }) => {
            return Err(Failure::new(what, "it is not text").next("read it with `resources/read`"));
        }
        None => {
            return Err(Failure::new(what, format!("there is no such output: {GONE}"))
                .next("run the command again, and write its output to a file of the sandbox"));
        }
    };
    let offset = usize::try_from(offset).unwrap_or(usize::MAX).min(text.len());
    let begin = (offset..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    let mut end = text.len().min(begin.saturating_add(MAX_SHOWN));
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let rest = if end < text.len() { format!("; read on with offset {end}") } else { String::new() };
    let mut answer = Answer::text(&text[begin..end]);
    answer.content.push(ContentBlock::text(format!("[bytes {begin} to {end} of {}{rest}]", text.len())));
    Ok(answer)
}

/// Bytes of a file, at most this many.
async fn download(
    call: &Call<'_>,
    what: &str,
    id: &str,
    path: &str,
    offset: u64,
    most: usize,
) -> Result<Vec<u8>, Failure> {
    let failed = |error| call.failed(what, &error);
    let mut download = call.client.read_file(id, path).await.map_err(failed)?;
    let (mut skip, mut bytes) = (offset, Vec::new());
    while bytes.len() < most {
        let Some(mut piece) = download.next().await.map_err(failed)? else { break };
        let skipped = usize::try_from(skip).unwrap_or(usize::MAX).min(piece.len());
        skip -= u64::try_from(skipped).unwrap_or(skip);
        piece = piece.slice(skipped..);
        bytes.extend_from_slice(&piece[..piece.len().min(most - bytes.len())]);
    }
    Ok(bytes)
}

fn file_uri(id: &str, path: &str) -> String {
    format!("{FILE_PREFIX}{id}{FILE_INFIX}{path}")
}

/// The content of a file by its address; nothing if that is not one of a file.
pub(crate) async fn resource(call: &Call<'_>, uri: &str) -> Option<Result<Content, Failure>> {
    let (id, path) = uri.strip_prefix(FILE_PREFIX)?.split_once(FILE_INFIX)?;
    if !path.starts_with('/') {
        return None;
    }
    let what = format!("Cannot read {path} of sandbox {id}");
    let bytes = match download(call, &what, id, path, 0, MAX_OUTPUT + 1).await {
        Ok(bytes) if bytes.len() > MAX_OUTPUT => {
            let why = format!("it has more than {MAX_OUTPUT} bytes");
            return Some(Err(Failure::new(what, why).next("read it in pieces with the tool `read`")));
        }
        Ok(bytes) => bytes,
        Err(failure) => return Some(Err(failure)),
    };
    let mime_type = picture_type(&bytes).unwrap_or("application/octet-stream").to_owned();
    Some(Ok(match String::from_utf8(bytes) {
        Ok(text) => Content::Text(text.into()),
        Err(error) => Content::Blob { data: STANDARD.encode(error.as_bytes()).into(), mime_type },
    }))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Write {
    /// The sandbox's id. Without it, a new one is made.
    sandbox: Option<String>,
    /// The snapshot that a new sandbox is made of. Without it, the default one.
    snapshot: Option<String>,
    /// The file, absolute or from the user's directory.
    path: String,
    /// Its new content, as text. Either this or `content_base64`.
    content: Option<String>,
    /// Its new content, as bytes in base64.
    content_base64: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Written {
    sandbox: String,
    path: String,
    bytes: usize,
}

pub(super) async fn write(call: &Call<'_>, wanted: Write) -> Result<Answer, Failure> {
    let Write { sandbox, snapshot, path, content, content_base64 } = wanted;
    let content: Bytes = match (content, content_base64) {
        (Some(text), None) => text.into(),
        (None, Some(encoded)) => {
            let decoded = STANDARD.decode(encoded.trim());
            decoded.map_err(|error| wrong("write", format!("content_base64 is not base64: {error}")))?.into()
        }
        _ => return Err(wrong("write", "expected exactly one of `content` and `content_base64`")),
    };
    let (id, made) = sandbox_for(call, "write", sandbox, snapshot).await?;
    let what = format!("Cannot write {path} of sandbox {id}");
    call.open(&what, &id).await?;
    let (sender, upload) = mpsc::channel(1);
    let bytes = content.len();
    // There is room for one.
    let _ = sender.try_send(Ok(content));
    drop(sender);
    let written = call.client.write_file(&id, &path, upload).await;
    written.map_err(|error| call.failed(&what, &error))?;
    let text = format!("Wrote {bytes} bytes to {path} of sandbox {id}{}.", made.unwrap_or_default());
    Ok(Answer::with_data(text, &Written { sandbox: id, path, bytes }))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListFiles {
    /// The sandbox's id.
    sandbox: String,
    /// The directory, absolute or from the user's directory.
    #[serde(default = "here")]
    path: String,
}

fn here() -> String {
    ".".into()
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Listing {
    /// In the order of names, at most 200, and as many as fit into an answer.
    files: Vec<File>,
    /// Whether there are more.
    truncated: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
struct File {
    name: String,
    path: String,
    /// file, directory, symlink or other.
    kind: &'static str,
    size: u64,
    modified_unix: u64,
}

impl From<FileInfo> for File {
    fn from(info: FileInfo) -> File {
        let kind = match info.kind {
            FileKind::File => "file",
            FileKind::Directory => "directory",
            FileKind::Symlink => "symlink",
            FileKind::Other => "other",
        };
        File { name: info.name, path: info.path, kind, size: info.size, modified_unix: info.modified_unix }
    }
}

pub(super) async fn list_files(call: &Call<'_>, wanted: ListFiles) -> Result<Answer, Failure> {
    let ListFiles { sandbox, path } = wanted;
    let what = format!("Cannot list {path} of sandbox {sandbox}");
    call.open(&what, &sandbox).await?;
    let page =
        forkd_api::file::ListFiles { path: path.clone(), limit: Some(MAX_FILES), ..Default::default() };
    let list = call.client.list_files(&sandbox, &page).await.map_err(|error| call.failed(&what, &error))?;
    Ok(listing(&path, list.files, list.truncated))
}

/// Of the first files of a directory, which may have more.
fn listing(path: &str, found: Vec<FileInfo>, more: bool) -> Answer {
    let total = found.len();
    let mut files: Vec<File> = found.into_iter().map(Into::into).collect();
    let table = fitting_table(["name", "kind", "bytes"], &mut files, |file| {
        [file.name.clone(), file.kind.to_owned(), file.size.to_string()]
    });
    let mut text = match total {
        0 => format!("{path} is empty."),
        _ => table,
    };
    let left_out = total - files.len();
    let truncated = more || left_out > 0;
    if truncated {
        let how_many = match (more, left_out) {
            (true, 0) => "more".to_owned(),
            (true, count) => format!("more than {count} more"),
            (false, count) => format!("{count} more"),
        };
        text += &format!(
            "These are the first {}. There are {how_many}; a command such as `ls` or `find` shows all of them.\n",
            files.len()
        );
    }
    Answer::with_data(text, &Listing { files, truncated })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(size: u64) -> FileInfo {
        FileInfo {
            name: "a".into(),
            path: "/tmp/a".into(),
            kind: FileKind::File,
            size,
            mode: 0o644,
            owner: "root".into(),
            group: "root".into(),
            modified_unix: 0,
            symlink_target: None,
        }
    }

    fn texts(answer: &Answer) -> Vec<&str> {
        answer.content.iter().filter_map(|block| Some(block.as_text()?.text.as_str())).collect()
    }

    #[test]
    fn pieces_of_files_say_where_to_read_on() {
        let whole = shown("sb-1", "/tmp/a", &info(2), 0, b"hi");
        assert_eq!(texts(&whole), ["hi"]);
        let long = "é".repeat(MAX_SHOWN);
        let first = shown("sb-1", "/tmp/a", &info(2 * 16384), 1, &long.as_bytes()[1..]);
        // It begins in the middle of a character, and is taken for bytes.
        assert!(texts(&first)[0].contains("not text"));
        let first = shown("sb-1", "/tmp/a", &info(2 * 16384), 0, long.as_bytes());
        assert_eq!(texts(&first)[1], "[bytes 0 to 16384 of 32768; read on with offset 16384]");
        let link = first.content[2].as_resource_link().unwrap();
        assert_eq!(link.uri, "forkd://sandbox/sb-1/file/tmp/a");
        let last = shown("sb-1", "/tmp/a", &info(20), 10, b"0123456789");
        assert_eq!(texts(&last)[1], "[bytes 10 to 20 of 20]");
    }

    #[test]
    fn long_listings_are_cut_and_say_how_many_are_left_out() {
        let told = |name: &str, count: usize, more: bool| {
            let file = FileInfo { name: name.into(), path: format!("/tmp/{name}"), ..info(1) };
            let answer = listing("/tmp", vec![file; count], more);
            let data = answer.structured.clone().unwrap();
            assert!(texts(&answer)[0].len() <= MAX_SHOWN && data.to_string().len() <= MAX_SHOWN);
            let text = texts(&answer)[0].lines().last().unwrap_or_default().to_owned();
            (data["files"].as_array().unwrap().len(), data["truncated"] == true, text)
        };
        let (shown, truncated, text) = told("short", 20, false);
        assert_eq!((shown, truncated, text.as_str()), (20, false, "| short | file | 1 |"));
        let (shown, truncated, text) = told(&"x".repeat(200), 200, false);
        assert!(shown > 20 && shown < 50 && truncated);
        let left_out = 200 - shown;
        assert!(
            text.starts_with(&format!("These are the first {shown}. There are {left_out} more;")),
            "{text}"
        );
        let (_, _, text) = told(&"x".repeat(200), 200, true);
        assert!(text.contains(&format!("There are more than {left_out} more;")), "{text}");
        assert!(told("short", 20, true).2.contains("These are the first 20. There are more;"));
        assert_eq!(told("", 0, false), (0, false, "/tmp is empty.".to_owned()));
    }

    #[test]
    fn outputs_are_read_in_pieces_and_one_that_is_gone_says_why() {
        let common = crate::call::Common::default();
        let call = crate::call::tests::call(&common);
        let keep = || {
            let content = Content::Text("x".repeat(MAX_OUTPUT).into());
            common.outputs.keep(&call.caller.name, "x", content, Instant::now()).unwrap().uri
        };
        let first = keep();
        let answer = read_output(&call, &first, 10).unwrap();
        assert_eq!(texts(&answer)[1], "[bytes 10 to 16394 of 8388608; read on with offset 16394]");
        (0..2).for_each(|_| drop(keep()));
        let gone = read_output(&call, &first, 10).unwrap_err().to_string();
        assert!(
            gone.contains("there is no such output: outputs are kept for up to an hour, and only the newest")
        );
        assert!(gone.contains("Next: run the command again"), "{gone}");
    }

    #[test]
    fn text_pictures_and_bytes_are_told_apart() {
        assert_eq!(text_of("aé".as_bytes()), Some("aé"));
        assert_eq!(text_of(&"aé".as_bytes()[..2]), Some("a"));
        assert_eq!(text_of(b"a\0b"), None);
        assert_eq!(text_of(b"\xff\xfe"), None);
        assert_eq!(text_of(b""), Some(""));
        assert_eq!(picture_type(b"\x89PNG\r\n"), Some("image/png"));
        assert_eq!(picture_type(b"RIFF0000WEBPVP8"), Some("image/webp"));
        assert_eq!(picture_type(b"PK\x03\x04"), None);
    }
}
