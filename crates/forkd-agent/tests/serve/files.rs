//! Files and directories over the wire.

use serde_json::json;

use crate::Agent;

#[test]
fn up_and_down_as_they_are() {
    let agent = Agent::start();
    let directory = tempfile::tempdir().unwrap();
    let target = format!("/files?path={}/deep/file", directory.path().display());
    let written = agent.client.call("POST", &target, "application/octet-stream", b"0123456789");
    assert_eq!(written.status, 200);
    assert_eq!(written.json()[0]["name"], "file");
    assert_eq!(written.json()[0]["type"], "file");
    let read = agent.client.get(&target);
    assert_eq!((read.status, read.body.as_slice()), (200, b"0123456789".as_slice()));
    assert_eq!(read.header("content-length"), Some("10"));
    let part = agent.client.with("Range", "bytes=-3").get(&target);
    assert_eq!((part.status, part.body.as_slice()), (206, b"789".as_slice()));
    assert_eq!(part.header("content-range"), Some("bytes 7-9/10"));
    assert_eq!(agent.client.with("Range", "bytes=99-").get(&target).status, 416);
}

#[test]
fn forms_with_several_files() {
    let agent = Agent::start();
    let directory = tempfile::tempdir().unwrap();
    let part = |name: &str, text: &str| {
        let path = directory.path().join(name);
        let head = format!("Content-Disposition: form-data; name=\"file\"; filename=\"{}\"", path.display());
        format!("--b\r\n{head}\r\nContent-Type: text/plain\r\n\r\n{text}\r\n")
    };
    let body = part("a/one", "1") + &part("two", "2") + "--b--\r\n";
    let kind = "multipart/form-data; boundary=b";
    let written = agent.client.call("POST", "/files", kind, body.as_bytes());
    assert_eq!((written.status, written.json().as_array().map(Vec::len)), (200, Some(2)));
    assert_eq!(std::fs::read_to_string(directory.path().join("a/one")).unwrap(), "1");
    assert_eq!(agent.client.call("POST", "/files?path=/x", kind, body.as_bytes()).status, 400);
    assert_eq!(agent.client.call("POST", "/files", kind, b"--b--\r\n").status, 400);
    assert_eq!(agent.client.call("POST", "/files", "text/plain", b"x").status, 400);
}

#[test]
fn errors_have_their_status_in_the_body() {
    let agent = Agent::start();
    for (target, status) in [
        ("/files?path=/no/such", 404),
        ("/files?path=/tmp", 400),
        ("/files?path=x&username=nobody-at-all", 401),
    ] {
        let response = agent.client.get(target);
        assert_eq!(
            (response.status, response.json()["code"].as_u64()),
            (status, Some(status.into())),
            "{target}"
        );
    }
}

#[test]
fn parts_are_composed() {
    let agent = Agent::start();
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("1"), "one ").unwrap();
    std::fs::write(path("2"), "two").unwrap();
    let body = json!({"source_paths": [path("1"), path("2")], "destination": path("all")}).to_string();
    let made = agent.client.call("POST", "/files/compose", "application/json", body.as_bytes());
    assert_eq!((made.status, made.json()["path"].as_str()), (200, Some(path("all").as_str())));
    assert_eq!(std::fs::read_to_string(path("all")).unwrap(), "one two");
    assert!(!directory.path().join("1").exists());
    assert_eq!(agent.client.call("POST", "/files/compose", "application/json", body.as_bytes()).status, 404);
}

#[test]
fn directories_and_entries() {
    let agent = Agent::start();
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let call =
        |method: &str, message| agent.client.unary(&format!("filesystem.Filesystem/{method}"), &message);
    let made = call("MakeDir", json!({"path": path("a/b")}));
    assert_eq!((made.0, &made.1["entry"]["type"]), (200, &json!("FILE_TYPE_DIRECTORY")));
    let again = call("MakeDir", json!({"path": path("a/b")})).1;
    let text = format!("directory already exists: {}", path("a/b"));
    assert_eq!((&again["code"], &again["message"]), (&json!("already_exists"), &json!(text)));
    std::fs::write(path("a/file"), "12345").unwrap();
    let stat = call("Stat", json!({"path": path("a/file")})).1["entry"].clone();
    assert_eq!(
        (&stat["size"], &stat["type"], &stat["name"]),
        (&json!("5"), &json!("FILE_TYPE_FILE"), &json!("file"))
    );
    let below = call("Stat", json!({"path": path("a/file/child")})).1;
    assert_eq!(below["code"], "invalid_argument");
    assert!(below["message"].as_str().unwrap().contains("not a directory"), "{below}");
    let over = call("MakeDir", json!({"path": path("a/file")})).1;
    assert!(over["message"].as_str().unwrap().contains("already exists"), "{over}");
    let listed = call("ListDir", json!({"path": path("a"), "depth": 2})).1;
    assert_eq!(listed["entries"].as_array().map(Vec::len), Some(2));
    let moved = call("Move", json!({"source": path("a"), "destination": path("x/y")}));
    assert_eq!(moved.1["entry"]["path"], path("x/y"));
    assert_eq!(call("Remove", json!({"path": path("x")})), (200, json!({})));
    assert_eq!(call("Remove", json!({"path": path("x")})), (200, json!({})));
    assert_eq!(call("Stat", json!({"path": path("x")})).1["code"], "not_found");
    assert_eq!(call("Stat", json!({"path": "~root/x"})).1["code"], "invalid_argument");
    assert_eq!(call("Stat", json!({"path": "a\u{0}b"})).1["code"], "invalid_argument");
}

#[test]
fn failures_have_the_words_of_e2b_s_agent() {
    let agent = Agent::start();
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("file"), "x").unwrap();
    let (file, none) = (path("file"), path("none"));
    let gone = "no such file or directory";
    for (method, message, code, text) in [
        ("Stat", json!({"path": none}), "not_found", format!("file not found: {none}: {gone}")),
        ("ListDir", json!({"path": none}), "not_found", format!("path not found: {none}: {gone}")),
        ("ListDir", json!({"path": file}), "invalid_argument", format!("path is not a directory: {file}")),
        (
            "MakeDir",
            json!({"path": file}),
            "invalid_argument",
            format!("path already exists but it is not a directory: {file}"),
        ),
        (
            "Move",
            json!({"source": none, "destination": path("other")}),
            "not_found",
            format!("source file not found: {none} to {}: {gone}", path("other")),
        ),
        ("CreateWatcher", json!({"path": none}), "not_found", format!("path {none} not found: stat: {gone}")),
        ("CreateWatcher", json!({"path": file}), "invalid_argument", format!("path {file} not a directory")),
        (
            "RemoveWatcher",
            json!({"watcherId": "none"}),
            "not_found",
            "watcher with id none not found".to_owned(),
        ),
    ] {
        let refused = agent.client.unary(&format!("filesystem.Filesystem/{method}"), &message).1;
        assert_eq!((&refused["code"], &refused["message"]), (&json!(code), &json!(text)), "{method}");
    }
    let nobody = agent.client.with("Authorization", "Basic bm9ib2R5LWF0LWFsbDo=");
    let refused = nobody.unary("filesystem.Filesystem/Stat", &json!({"path": file})).1;
    assert_eq!(refused["message"], "invalid username: 'nobody-at-all'");
    for (query, status, text) in [
        (format!("path={none}"), 404, format!("path '{none}' does not exist")),
        (
            format!("path={}", directory.path().display()),
            400,
            format!("path '{}' is a directory", directory.path().display()),
        ),
        (
            format!("path={file}&username=nobody-at-all"),
            401,
            "error looking up user 'nobody-at-all': user: unknown user nobody-at-all".to_owned(),
        ),
    ] {
        let refused = agent.client.call("GET", &format!("/files?{query}"), "", b"");
        assert_eq!((refused.status, &refused.json()["message"]), (status, &json!(text)), "{query}");
    }
}

#[test]
fn watching_as_a_stream() {
    let agent = Agent::start();
    let directory = tempfile::tempdir().unwrap();
    let message = json!({"path": directory.path(), "recursive": true});
    let mut stream = agent.client.stream("filesystem.Filesystem/WatchDir", &message);
    assert_eq!(stream.next(), Some((false, json!({"start": {}}))));
    std::fs::write(directory.path().join("file"), "x").unwrap();
    let expected = json!({"filesystem": {"name": "file", "type": "EVENT_TYPE_CREATE"}});
    assert_eq!(stream.next(), Some((false, expected)));
    let missing = agent.client.stream("filesystem.Filesystem/WatchDir", &json!({"path": "/no/such"}));
    assert_eq!(missing.status, 404);
}
