//! Files in and out of a sandbox.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use forkd_api::error::{ErrorBody, ErrorCode};
use forkd_api::file::{FileInfo, FileKind, FileList};
use forkd_tests::engine::process::Failure;
use forkd_tests::engine::tiny::PATIENCE;

use crate::world::World;

/// An answer whose body may be anything.
struct Raw {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Raw {
    fn error(&self, code: ErrorCode) -> Result<(), Failure> {
        let body: ErrorBody = serde_json::from_slice(&self.body)?;
        if (self.status, body.code) != (code.status(), code) {
            return Err(format!("expected {code:?}: {} {body:?}", self.status).into());
        }
        Ok(())
    }
}

fn open(world: &World, request: &str, headers: &str) -> Result<UnixStream, Failure> {
    let mut stream = UnixStream::connect(world.socket())?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "{request} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n")?;
    Ok(stream)
}

fn answer(mut stream: UnixStream) -> Result<Raw, Failure> {
    let mut all = Vec::new();
    stream.read_to_end(&mut all)?;
    let end = all.windows(4).position(|four| four == b"\r\n\r\n").ok_or("no answer")?;
    let head = String::from_utf8(all[..end].to_vec())?.to_ascii_lowercase();
    let status = head.split(' ').nth(1).ok_or("no status")?.parse()?;
    let mut body = all[end + 4..].to_vec();
    if head.contains("transfer-encoding: chunked") {
        body = unchunked(&body)?;
    }
    Ok(Raw { status, head, body })
}

fn unchunked(mut rest: &[u8]) -> Result<Vec<u8>, Failure> {
    let mut whole = Vec::new();
    loop {
        let end = rest.windows(2).position(|two| two == b"\r\n").ok_or("broken off")?;
        let length = usize::from_str_radix(std::str::from_utf8(&rest[..end])?, 16)?;
        if length == 0 {
            return Ok(whole);
        }
        whole.extend_from_slice(rest.get(end + 2..end + 2 + length).ok_or("broken off")?);
        rest = &rest[end + 4 + length..];
    }
}

fn ask(world: &World, request: &str, headers: &str, body: &[u8]) -> Result<Raw, Failure> {
    let mut stream = open(world, request, &format!("content-length: {}\r\n{headers}", body.len()))?;
    // Whoever is refused early closes its side.
    let _ = stream.write_all(body);
    answer(stream)
}

fn at(id: &str, verb: &str, path: &Path) -> String {
    format!("{verb} /v1/sandboxes/{id}/files?path={}", path.display())
}

const TAR: &str = "content-type: application/x-tar\r\n";
const WANT_TAR: &str = "accept: application/x-tar\r\n";

#[test]
fn a_file_goes_in_and_comes_out_as_it_is() -> Result<(), Failure> {
    let mut world = World::new()?;
    let (id, _agent) = world.real()?;
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("new/file");
    let content: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
    assert_eq!(ask(&world, &at(&id, "PUT", &path), "", &content)?.status, 204);
    assert!(fs::read(&path)? == content);
    let read = ask(&world, &at(&id, "GET", &path), "", b"")?;
    assert_eq!((read.status, read.body == content), (200, true));
    for part in
        ["content-type: application/octet-stream", "nosniff", "content-length: 1200000", "last-modified"]
    {
        assert!(read.head.contains(part), "{}", read.head);
    }
    let part = ask(&world, &at(&id, "GET", &path), "range: bytes=4-11\r\n", b"")?;
    assert_eq!((part.status, &part.body[..]), (206, &content[4..12]));
    assert!(part.head.contains("content-range: bytes 4-11/1200000"), "{}", part.head);
    let beyond = ask(&world, &at(&id, "GET", &path), "range: bytes=9999999-\r\n", b"")?;
    beyond.error(ErrorCode::RangeNotSatisfiable)?;
    assert!(beyond.head.contains("content-range: bytes */1200000"), "{}", beyond.head);
    assert_eq!(ask(&world, &at(&id, "PUT", &path), "", b"")?.status, 204);
    assert_eq!(ask(&world, &at(&id, "GET", &path), "", b"")?.body, b"");

    fs::set_permissions(&path, PermissionsExt::from_mode(0o640))?;
    let about = |verb: &str, path: &Path| {
        ask(&world, &format!("GET /v1/sandboxes/{id}/files/{verb}?path={}", path.display()), "", b"")
    };
    let info: FileInfo = serde_json::from_slice(&about("info", &path)?.body)?;
    assert_eq!((info.name.as_str(), info.kind, info.size, info.mode), ("file", FileKind::File, 0, 0o640));
    assert_eq!(info.modified_unix, u64::try_from(fs::metadata(&path)?.mtime())?);
    symlink("nowhere", directory.path().join("link"))?;
    let list: FileList = serde_json::from_slice(&about("list", directory.path())?.body)?;
    let names: Vec<_> = list.files.iter().map(|file| (file.name.as_str(), file.kind)).collect();
    assert_eq!(
        (names, list.truncated),
        (vec![("link", FileKind::Symlink), ("new", FileKind::Directory)], false)
    );
    assert_eq!(list.files[0].symlink_target.as_deref(), Some("nowhere"));

    assert_eq!(ask(&world, &at(&id, "DELETE", &directory.path().join("new")), "", b"")?.status, 204);
    assert!(!path.exists());
    Ok(())
}

#[test]
fn trees_go_as_archives() -> Result<(), Failure> {
    let mut world = World::new()?;
    let (id, _agent) = world.real()?;
    let directory = tempfile::tempdir()?;
    let odd = directory.path().join("a[*]b");
    fs::create_dir_all(odd.join("sub"))?;
    fs::write(odd.join("sub/file"), "text")?;
    fs::write(odd.join("run"), "#!/bin/sh")?;
    fs::set_permissions(odd.join("run"), PermissionsExt::from_mode(0o755))?;
    // Something that a pattern would mean.
    fs::create_dir(directory.path().join("aXb"))?;
    let encoded = odd.display().to_string().replace('[', "%5B").replace('*', "%2A").replace(']', "%5D");
    let packed = ask(&world, &at(&id, "GET", Path::new(&encoded)), WANT_TAR, b"")?;
    assert!(
        packed.status == 200 && packed.head.contains("content-type: application/x-tar"),
        "{}",
        packed.head
    );
    let to = directory.path().join("made/there");
    let placed = ask(&world, &at(&id, "PUT", &to), TAR, &packed.body)?;
    assert_eq!(placed.status, 204, "{}", String::from_utf8_lossy(&placed.body));
    assert_eq!(fs::read_to_string(to.join("a[*]b/sub/file"))?, "text");
    assert_eq!(fs::metadata(to.join("a[*]b/run"))?.mode() & 0o777, 0o755);
    assert_eq!(fs::read_dir(&to)?.count(), 1);
    let one = ask(&world, &at(&id, "GET", &to.join("a%5B%2A%5Db/sub/file")), WANT_TAR, b"")?;
    let mut archive = tar::Archive::new(&one.body[..]);
    let names: Result<Vec<_>, _> =
        archive.entries()?.map(|entry| Ok::<_, Failure>(entry?.path()?.into_owned())).collect();
    assert_eq!(names?, [Path::new("file")]);
    Ok(())
}

#[test]
fn what_is_wrong_has_a_name() -> Result<(), Failure> {
    let mut world = World::new()?;
    let (id, _agent) = world.real()?;
    let directory = tempfile::tempdir()?;
    let (file, none) = (directory.path().join("file"), directory.path().join("none"));
    fs::write(&file, "x")?;
    let below = file.join("below");
    let about =
        |verb: &str, path: &Path| format!("GET /v1/sandboxes/{id}/files/{verb}?path={}", path.display());
    for (request, headers, code) in [
        (at(&id, "GET", &none), "", ErrorCode::FileNotFound),
        (at(&id, "GET", &none), WANT_TAR, ErrorCode::FileNotFound),
        (at(&id, "GET", &below), "", ErrorCode::FileNotFound),
        (at(&id, "GET", directory.path()), "", ErrorCode::IsDirectory),
        (at(&id, "PUT", directory.path()), "", ErrorCode::IsDirectory),
        (at(&id, "PUT", &below), "", ErrorCode::NotDirectory),
        (at(&id, "PUT", &file), TAR, ErrorCode::NotDirectory),
        (at(&id, "PUT", Path::new("relative")), TAR, ErrorCode::Malformed),
        (at(&id, "PUT", Path::new("/proc/no/such")), "", ErrorCode::FileNotFound),
        (at(&id, "GET", &none) + "&user=nobody-of-this-name", "", ErrorCode::Malformed),
        (at(&id, "GET", &none) + "&what=1", "", ErrorCode::Malformed),
        (at(&id, "GET", Path::new("")), "", ErrorCode::Malformed),
        (at(&id, "GET", Path::new("/dev/null")), "", ErrorCode::Malformed),
        (at(&id, "DELETE", &none), "", ErrorCode::FileNotFound),
        (at(&id, "DELETE", Path::new("/")), "", ErrorCode::Malformed),
        (about("info", &none), "", ErrorCode::FileNotFound),
        (about("info", &below), "", ErrorCode::FileNotFound),
        (about("list", &none), "", ErrorCode::FileNotFound),
        (about("list", &file), "", ErrorCode::NotDirectory),
        ("GET /v1/sandboxes/none/files?path=/".into(), "", ErrorCode::NotFound),
    ] {
        // An archive with something in it, so that a place is needed for it.
        let mut archive = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(1);
        header.set_mode(0o644);
        archive.append_data(&mut header, "entry", &b"x"[..])?;
        let body = archive.into_inner()?;
        ask(&world, &request, headers, if request.starts_with("PUT") { &body } else { b"" })?
            .error(code)
            .map_err(|error| format!("{request}: {error}"))?;
    }
    ask(&world, &at(&id, "PUT", &directory.path().join("tree")), TAR, b"this is no archive")?
        .error(ErrorCode::Malformed)?;
    world.ask(&format!("POST /v1/sandboxes/{id}/pause"))?;
    ask(&world, &at(&id, "GET", &file), "", b"")?.error(ErrorCode::WrongState)?;
    Ok(())
}

#[test]
fn a_body_that_breaks_off_changes_nothing() -> Result<(), Failure> {
    let mut world = World::new()?;
    let (id, _agent) = world.real()?;
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("file");
    for old in [None, Some("old")] {
        if let Some(old) = old {
            fs::write(&path, old)?;
        }
        for headers in ["content-length: 9000000\r\n", "transfer-encoding: chunked\r\n"] {
            let mut half = open(&world, &at(&id, "PUT", &path), headers)?;
            if headers.contains("chunked") {
                half.write_all(b"100000\r\n")?;
            }
            half.write_all(&vec![7; 500_000])?;
            std::thread::sleep(Duration::from_millis(300));
            drop(half);
            let begun = Instant::now();
            let left = |count: usize| -> Result<bool, Failure> {
                Ok(fs::read_dir(directory.path())?.count() == count)
            };
            while !left(usize::from(old.is_some()))? {
                if begun.elapsed() > PATIENCE {
                    return Err("something is left of half a file".into());
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            assert_eq!(fs::read_to_string(&path).ok().as_deref(), old);
        }
    }
    Ok(())
}

#[test]
fn much_goes_in_and_out_and_little_is_kept() -> Result<(), Failure> {
    const SIZE: usize = 200 << 20;
    let mut world = World::new()?;
    let (id, _agent) = world.real()?;
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("large");
    let before = world.peak_kib()?;
    let mut stream = open(&world, &at(&id, "PUT", &path), &format!("content-length: {SIZE}\r\n"))?;
    let piece: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
    for _ in 0..SIZE / piece.len() {
        stream.write_all(&piece)?;
    }
    assert_eq!(answer(stream)?.status, 204);
    assert_eq!(fs::metadata(&path)?.len(), u64::try_from(SIZE)?);
    for headers in ["", WANT_TAR] {
        let mut stream = open(&world, &at(&id, "GET", &path), headers)?;
        // Who is late makes the guest wait.
        std::thread::sleep(Duration::from_secs(1));
        let (mut read, mut buffer) = (0, vec![0; 1 << 20]);
        loop {
            match stream.read(&mut buffer)? {
                0 => break,
                length => read += length,
            }
        }
        assert!(read > SIZE, "{read}");
    }
    let grown = world.peak_kib()? - before;
    assert!(grown < 32 << 10, "the daemon has grown by {grown} KiB");
    Ok(())
}

#[test]
fn guests_that_answer_garbage_or_stop_are_not_believed() -> Result<(), Failure> {
    let cases: [(&[u8], Option<ErrorCode>); 6] = [
        (b"garbage\r\n\r\n", Some(ErrorCode::GuestFailed)),
        (b"", Some(ErrorCode::GuestFailed)),
        (b"HTTP/1.1 500 No\r\ncontent-length: 3\r\n\r\nwhy", Some(ErrorCode::GuestFailed)),
        (b"HTTP/1.1 204 No Content\r\n\r\n", Some(ErrorCode::GuestFailed)),
        (
            b"HTTP/1.1 302 Found\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0\r\n\r\n",
            Some(ErrorCode::GuestFailed),
        ),
        // Less than it has said: so has the daemon, and then ends it.
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf", None),
    ];
    for (answered, code) in cases {
        let mut world = World::new()?;
        let id = world.played(move |_, mut client| {
            let mut head = [0; 4096];
            let _ = client.read(&mut head);
            let _ = client.write_all(answered);
        })?;
        let raw = ask(&world, &format!("GET /v1/sandboxes/{id}/files?path=/x"), "", b"")?;
        let shown = String::from_utf8_lossy(answered);
        match code {
            Some(code) => raw.error(code).map_err(|error| format!("{shown}: {error}"))?,
            None => assert!(raw.head.contains("content-length: 100") && raw.body == b"half", "{}", raw.head),
        }
    }
    Ok(())
}
