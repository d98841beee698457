//! E2B's protocol over raw HTTP: what its clients rely on and is easy to get wrong.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use forkd_tests::engine::process::Failure;
use forkd_tests::engine::tiny::PATIENCE;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::client::{self, Answer};
use crate::world::World;

const KEY: &str = "x-api-key: e2b_0000000000000000000000000000000000000000\r\n";

fn control(world: &World, request: &str, body: Value) -> Result<Answer, Failure> {
    // As clients do: what only asks has no body.
    let body = Some(&body).filter(|_| !request.starts_with("GET") && !request.starts_with("DELETE"));
    client::send(&world.socket(), request, KEY, body)
}

fn create(world: &World, body: Value) -> Result<Value, Failure> {
    control(world, "POST /v2/sandboxes", body)?.parsed(201)
}

fn id_of(sandbox: &Value) -> String {
    sandbox["sandboxID"].as_str().unwrap_or_default().to_owned()
}

fn get(world: &World, id: &str) -> Result<Value, Failure> {
    control(world, &format!("GET /sandboxes/{id}"), json!({}))?.parsed(200)
}

/// Seconds from now until a sandbox ends.
fn left(world: &World, id: &str) -> Result<i64, Failure> {
    let end = world.sandbox(id)?.expires_at_unix.ok_or("no end")?;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs();
    Ok(i64::try_from(end)? - i64::try_from(now)?)
}

fn data(world: &World, request: &str, id: &str, port: u16, headers: &str) -> Result<Answer, Failure> {
    let headers = format!("e2b-sandbox-id: {id}\r\ne2b-sandbox-port: {port}\r\n{headers}");
    client::send(&world.socket(), request, &headers, None)
}

/// What opens the ports of a sandbox that was not made for everybody, as those are that E2B's clients did not make.
fn traffic(world: &World, id: &str) -> Result<String, Failure> {
    let connect = control(world, &format!("POST /v2/sandboxes/{id}/connect"), json!({}))?;
    let shown: Value = connect.parsed(200)?;
    let token = shown["trafficAccessToken"].as_str().ok_or("no token")?;
    Ok(format!("e2b-traffic-access-token: {token}\r\n"))
}

/// An error of the control plane's: its code is its status.
fn refused(answer: Answer, status: u16) -> Result<String, Failure> {
    let body: Value = answer.parsed(status)?;
    assert_eq!(body["code"], status, "{body}");
    Ok(body["message"].as_str().ok_or("no message")?.to_owned())
}

#[test]
fn a_sandbox_is_made_shown_and_ended() -> Result<(), Failure> {
    let (world, _agents) = World::with_agents(&[])?;
    let body = json!({
        "templateID": "base", "timeout": 120, "metadata": {"a": "b c", "d": "é"}, "envVars": {"X": "1"}
    });
    let made = create(&world, body)?;
    let id = id_of(&made);
    assert!(id.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()), "{id}");
    assert_eq!((&made["templateID"], &made["envdVersion"]), (&json!("base"), &json!("0.6.13")));
    assert!(made["clientID"].is_string() && made["envdAccessToken"].is_string(), "{made}");
    assert!(made["trafficAccessToken"].is_string(), "{made}");
    let shown = get(&world, &id)?;
    assert_eq!((&shown["state"], &shown["metadata"]["d"]), (&json!("running"), &json!("é")));
    assert_eq!(shown["envdAccessToken"], made["envdAccessToken"]);
    assert_eq!(shown["lifecycle"], json!({"autoResume": false, "onTimeout": "kill"}));
    for field in ["startedAt", "endAt", "cpuCount", "memoryMB", "diskSizeMB", "clientID"] {
        assert!(!shown[field].is_null(), "{field}: {shown}");
    }
    assert!((100..=120).contains(&left(&world, &id)?));
    control(&world, &format!("POST /sandboxes/{id}/timeout"), json!({"timeout": 30}))?;
    assert!((20..=30).contains(&left(&world, &id)?), "a timeout may take time away");
    assert_eq!(control(&world, &format!("DELETE /sandboxes/{id}"), json!({}))?.status, 204);
    refused(control(&world, &format!("DELETE /sandboxes/{id}"), json!({}))?, 404)?;
    refused(control(&world, &format!("GET /sandboxes/{id}"), json!({}))?, 404)?;
    let unknown = refused(control(&world, "POST /v2/sandboxes", json!({"templateID": "nothing"}))?, 404)?;
    assert!(unknown.contains("template 'nothing' not found"), "{unknown}");
    refused(control(&world, "POST /v2/sandboxes", json!({"templateID": "base", "timeout": "x"}))?, 400)?;
    refused(control(&world, "GET /sandboxes/i1/nothing", json!({}))?, 404)?;
    refused(control(&world, "PATCH /v2/sandboxes", json!({}))?, 405)?;
    // Without a time of its own, it has E2B's.
    let id = id_of(&create(&world, json!({"templateID": "base"}))?);
    assert!((280..=300).contains(&left(&world, &id)?));
    Ok(())
}

#[test]
fn connect_only_extends_and_pauses_are_told_apart() -> Result<(), Failure> {
    let (mut world, _agents) = World::with_agents(&[])?;
    let id = id_of(&create(&world, json!({"templateID": "base", "timeout": 200}))?);
    let connect = |world: &World, timeout: u64| {
        control(world, &format!("POST /v2/sandboxes/{id}/connect"), json!({"timeout": timeout}))
    };
    let pause = |world: &World| control(world, &format!("POST /sandboxes/{id}/pause"), json!({}));
    let same: Value = connect(&world, 10)?.parsed(200)?;
    assert_eq!(same["sandboxID"], json!(id));
    assert!(left(&world, &id)? > 150, "connecting takes no time away");
    connect(&world, 400)?.parsed::<Value>(200)?;
    assert!(left(&world, &id)? > 350);

    assert_eq!(pause(&world)?.status, 204);
    assert!(refused(pause(&world)?, 409)?.contains("already paused"));
    assert_eq!(get(&world, &id)?["state"], "paused");
    assert_eq!(world.sandbox(&id)?.expires_at_unix, None, "what stands still has no end");
    let gone = data(&world, "GET /health", &id, 49983, "")?;
    let gone: Value = gone.parsed(502)?;
    assert_eq!(gone, json!({"sandboxId": id, "message": "The sandbox was not found", "code": 502}));

    // Both are listed unless it is asked otherwise.
    let other = id_of(&create(&world, json!({"templateID": "base"}))?);
    let ids = |world: &World, query: &str| -> Result<Vec<String>, Failure> {
        let list: Vec<Value> =
            control(world, &format!("GET /v2/sandboxes{query}"), json!({}))?.parsed(200)?;
        Ok(list.iter().map(id_of).collect())
    };
    assert_eq!(ids(&world, "")?, [other.clone(), id.clone()], "the newest first");
    assert_eq!(ids(&world, "?order=asc")?, [id.clone(), other.clone()]);
    assert_eq!(ids(&world, "?state=paused")?, [&*id]);
    assert_eq!(ids(&world, "?state=running")?, [&*other]);
    assert_eq!(ids(&world, "?state=running%2Cpaused")?.len(), 2);

    // A daemon that is killed forgets nothing of it.
    world.end(Signal::KILL)?;
    world.start(&[])?;
    assert_eq!(get(&world, &id)?["state"], "paused");
    let again: Value = connect(&world, 60)?.parsed(201)?;
    assert_eq!((&again["sandboxID"], &again["envdAccessToken"]), (&json!(id), &same["envdAccessToken"]));
    assert_eq!(get(&world, &id)?["state"], "running");
    assert!((50..=60).contains(&left(&world, &id)?));
    refused(control(&world, &format!("POST /sandboxes/{id}/resume"), json!({}))?, 409)?;
    // Old clients ask on other paths.
    assert_eq!(pause(&world)?.status, 204);
    control(&world, &format!("POST /sandboxes/{id}/connect"), json!({"timeout": 60}))?
        .parsed::<Value>(201)?;
    assert_eq!(pause(&world)?.status, 204);
    control(&world, &format!("POST /sandboxes/{id}/resume"), json!({"timeout": 60}))?.parsed::<Value>(201)?;
    assert_eq!(
        control(&world, &format!("POST /sandboxes/{id}/refreshes"), json!({"duration": 500}))?.status,
        204
    );
    assert!(left(&world, &id)? > 450);
    refused(control(&world, "POST /v2/sandboxes/i0/connect", json!({}))?, 404)?;
    refused(control(&world, "POST /sandboxes/i0/pause", json!({}))?, 404)?;
    Ok(())
}

#[test]
fn of_many_pauses_at_once_one_succeeds() -> Result<(), Failure> {
    let (world, _agents) = World::with_agents(&[])?;
    let id = id_of(&create(&world, json!({"templateID": "base"}))?);
    let statuses: Vec<u16> = thread::scope(|scope| {
        let (world, id) = (&world, &id);
        let asking: Vec<_> = (0..8)
            .map(|_| scope.spawn(move || control(world, &format!("POST /sandboxes/{id}/pause"), json!({}))))
            .collect();
        asking.into_iter().filter_map(|asked| Some(asked.join().ok()?.ok()?.status)).collect()
    });
    assert_eq!(statuses.iter().filter(|status| **status == 204).count(), 1, "{statuses:?}");
    assert_eq!(statuses.iter().filter(|status| **status == 409).count(), 7, "{statuses:?}");
    Ok(())
}

#[test]
fn at_its_end_a_sandbox_is_killed_or_paused_and_traffic_wakes_it() -> Result<(), Failure> {
    let (world, _agents) = World::with_agents(&[])?;
    let short = json!({"templateID": "base", "timeout": 1});
    let killed = id_of(&create(&world, short)?);
    let pausing = json!({"templateID": "base", "timeout": 1, "autoPause": true});
    let paused = id_of(&create(&world, pausing)?);
    let waking =
        json!({"templateID": "base", "timeout": 1, "autoPause": true, "autoResume": {"enabled": true}});
    let woken = id_of(&create(&world, waking)?);
    world.until("two are paused", |world| {
        Ok(get(world, &paused)?["state"] == "paused" && get(world, &woken)?["state"] == "paused")
    })?;
    refused(control(&world, &format!("GET /sandboxes/{killed}"), json!({}))?, 404)?;
    assert_eq!(get(&world, &woken)?["lifecycle"], json!({"autoResume": true, "onTimeout": "pause"}));
    assert_eq!(data(&world, "GET /health", &paused, 49983, "")?.status, 502);
    assert_eq!(data(&world, "GET /health", &killed, 49983, "")?.status, 502);
    assert_eq!(data(&world, "GET /health", &woken, 49983, "")?.status, 200);
    assert_eq!(get(&world, &woken)?["state"], "running");
    assert_eq!(get(&world, &paused)?["state"], "paused");
    // It has its time again, and pauses again.
    world.until("it is paused again", |world| Ok(get(world, &woken)?["state"] == "paused"))?;
    Ok(())
}

#[test]
fn lists_have_pages_and_metadata_is_searched() -> Result<(), Failure> {
    let (world, _agents) = World::with_agents(&[])?;
    let mut ids = Vec::new();
    for number in 0..5 {
        let metadata = json!({"number": number.to_string(), "user name": "x&y=+ é"});
        ids.push(id_of(&create(&world, json!({"templateID": "base", "metadata": metadata}))?));
    }
    ids.reverse();
    let (mut seen, mut query) = (Vec::new(), "?limit=2".to_owned());
    loop {
        let answer = control(&world, &format!("GET /v2/sandboxes{query}"), json!({}))?;
        let next =
            answer.head.lines().find_map(|line| line.strip_prefix("x-next-token: ")).map(str::to_owned);
        let page: Vec<Value> = answer.parsed(200)?;
        assert!(page.len() <= 2 && answer.head.contains("x-total-running: 5"), "{}", answer.head);
        seen.extend(page.iter().map(id_of));
        match next {
            Some(next) => query = format!("?limit=2&nextToken={}", next.trim()),
            None => break,
        }
    }
    assert_eq!(seen, ids);
    // Encoded by the client twice, and as a query once more.
    let found = |query: &str| -> Result<usize, Failure> {
        let request = format!("GET /v2/sandboxes?metadata={query}");
        Ok(control(&world, &request, json!({}))?.parsed::<Vec<Value>>(200)?.len())
    };
    assert_eq!(found("number%3D3")?, 1);
    assert_eq!(found("user%252520name%3Dx%252526y%25253D%25252B%252520%2525C3%2525A9")?, 5);
    assert_eq!(found("number%3D3%26other%3Dx")?, 0);
    let after = |time: &str| control(&world, &format!("GET /v2/sandboxes?startedAfter={time}"), json!({}));
    assert_eq!(after("2020-01-01T00:00:00%2B00:00")?.parsed::<Vec<Value>>(200)?.len(), 5);
    assert_eq!(after("2999-01-01T00:00:00Z")?.parsed::<Vec<Value>>(200)?.len(), 0);
    for wrong in ["limit=0", "limit=101", "state=gone", "order=up", "nextToken=x", "startedAfter=x"] {
        refused(control(&world, &format!("GET /v2/sandboxes?{wrong}"), json!({}))?, 400)?;
    }
    Ok(())
}

#[test]
fn a_fork_whose_client_vanishes_leaves_no_branch() -> Result<(), Failure> {
    let (world, _agents) = World::with_agents(&[])?;
    let id = id_of(&create(&world, json!({"templateID": "base"}))?);
    let moments = [0, 2, 5, 10, 20, 40];
    for milliseconds in moments {
        let (request, body) = (format!("POST /sandboxes/{id}/fork"), json!({"count": 2}));
        client::abandon(&world.socket(), &request, KEY, &body, Duration::from_millis(milliseconds))?;
    }
    // Some may have gone away before the daemon had read what they want.
    world.until("what was begun has come to its end", |world| {
        let (count, snapshots) = (world.sandboxes("?limit=1000")?.len(), world.snapshots()?.len());
        Ok(count % 2 == 1 && count > 1 && snapshots == 1)
    })?;
    std::thread::sleep(Duration::from_secs(1));
    let left: Vec<String> = world.snapshots()?.into_iter().map(|snapshot| snapshot.tag).collect();
    assert_eq!(left, ["base"]);
    assert!(world.sandboxes("?limit=1000")?.len() <= 1 + 2 * moments.len());
    Ok(())
}

#[test]
fn a_fork_goes_on_beside_its_source_and_snapshots_are_templates() -> Result<(), Failure> {
    let (world, _agents) = World::with_agents(&[])?;
    let body = json!({"templateID": "base", "metadata": {"kind": "source"}});
    let id = id_of(&create(&world, body)?);
    let fork = |body: Value| control(&world, &format!("POST /sandboxes/{id}/fork"), body);
    let forks: Vec<Value> = fork(json!({"count": 25, "timeout": 60}))?.parsed(201)?;
    assert_eq!(forks.len(), 25);
    let first = &forks[0]["sandbox"];
    assert!(first["envdAccessToken"].is_string() && id_of(first) != id, "{first}");
    let child = get(&world, &id_of(first))?;
    assert_eq!((&child["templateID"], &child["metadata"]["kind"]), (&json!("base"), &json!("source")));
    assert!((50..=60).contains(&left(&world, &id_of(first))?));
    assert_eq!(world.snapshots()?.len(), 1, "a fork leaves no snapshot");
    refused(fork(json!({"count": 0}))?, 400)?;
    refused(control(&world, "POST /sandboxes/i0/fork", json!({}))?, 404)?;

    let named = control(&world, &format!("POST /sandboxes/{id}/snapshots"), json!({"name": "mine:v1"}))?;
    let named: Value = named.parsed(201)?;
    assert_eq!(named, json!({"snapshotID": "mine.v1", "names": ["mine.v1"]}));
    let nameless = control(&world, &format!("POST /sandboxes/{}/snapshots", id_of(first)), json!({}))?;
    let nameless: Value = nameless.parsed(201)?;
    assert_eq!(nameless["names"], json!([]));
    refused(control(&world, &format!("POST /sandboxes/{id}/snapshots"), json!({"name": "base"}))?, 409)?;
    let listed = |query: &str| -> Result<Vec<Value>, Failure> {
        control(&world, &format!("GET /snapshots{query}"), json!({}))?.parsed(200)
    };
    assert_eq!(listed("")?.len(), 2, "images' own are none");
    assert_eq!(listed(&format!("?sandboxID={id}"))?, std::slice::from_ref(&named));
    let page = control(&world, "GET /snapshots?limit=1", json!({}))?;
    assert!(page.head.contains("x-next-token: "), "{}", page.head);
    // A second one of the same name gets the name, and the first stays without it.
    let second = control(&world, &format!("POST /sandboxes/{id}/snapshots"), json!({"name": "mine:v1"}))?;
    assert_eq!(second.parsed::<Value>(201)?, named);
    let both = listed(&format!("?sandboxID={id}"))?;
    assert_eq!((both.len(), listed("?name=mine:v1")?), (2, vec![named.clone()]));
    let first = both.iter().find(|one| **one != named).ok_or("the first is gone")?;
    assert_eq!(first["names"], json!([]));
    create(&world, json!({"templateID": first["snapshotID"]}))?;
    for template in ["mine:v1", "mine.v1"] {
        let again = create(&world, json!({"templateID": template}))?;
        assert_eq!(again["templateID"], json!(template));
    }
    let removed = control(&world, "DELETE /templates/mine%3Av1", json!({}))?;
    assert_eq!(removed.status, 204, "{}", removed.body);
    refused(control(&world, "DELETE /templates/mine%3Av1", json!({}))?, 404)?;

    // A source that stands still can be forked, too.
    assert_eq!(control(&world, &format!("POST /sandboxes/{id}/pause"), json!({}))?.status, 204);
    let forks: Vec<Value> = fork(json!({}))?.parsed(201)?;
    assert_eq!(get(&world, &id_of(&forks[0]["sandbox"]))?["state"], "running");
    assert_eq!(get(&world, &id)?["state"], "paused");
    Ok(())
}

#[test]
fn a_key_makes_one_sandbox() -> Result<(), Failure> {
    let (world, _agents) = World::with_agents(&[])?;
    let headers = format!("{KEY}idempotency-key: once-1\r\n");
    let body = json!({"templateID": "base"});
    let ask = || client::send(&world.socket(), "POST /v2/sandboxes", &headers, Some(&body));
    let (one, two): (Value, Value) = (ask()?.parsed(201)?, ask()?.parsed(201)?);
    assert_eq!(one, two);
    assert_eq!(world.sandboxes("")?.len(), 1);
    Ok(())
}

#[test]
fn keys_are_tokens_and_scopes_hold() -> Result<(), Failure> {
    let (mut world, _agents) = World::with_agents(&[])?;
    let (read, run) = (world.token("looks", "read")?, world.token("runs", "run")?);
    assert!(run.starts_with("e2b_") && run.len() == 44, "{run}");
    world.end(Signal::TERM)?;
    world.start(&["--listen", "127.0.0.1:0"])?;
    let address = world.address()?;
    let ask = |request: &str, headers: &str, body: &str| client::send_tcp(&address, request, headers, body);
    let new = r#"{"templateID": "base"}"#;
    for nobody in [String::new(), KEY.to_owned(), "x-api-key: nonsense\r\n".into()] {
        refused(ask("POST /v2/sandboxes", &nobody, new)?, 401)?;
    }
    refused(ask("POST /v2/sandboxes", &format!("x-api-key: {read}\r\n"), new)?, 403)?;
    let made: Value = ask("POST /v2/sandboxes", &format!("x-api-key: {run}\r\n"), new)?.parsed(201)?;
    let port = address.rsplit(':').next().unwrap_or_default();
    assert_eq!(made["domain"], json!(format!("localhost:{port}")));
    let id = id_of(&made);
    assert_eq!(world.sandbox(&id)?.owner.as_deref(), Some("token:runs"));
    let bearer: Value =
        ask(&format!("GET /sandboxes/{id}"), &format!("authorization: Bearer {run}\r\n"), "")?.parsed(200)?;
    assert!(bearer["envdAccessToken"].is_string());
    let looked: Value =
        ask(&format!("GET /sandboxes/{id}"), &format!("x-api-key: {read}\r\n"), "")?.parsed(200)?;
    assert!(looked["envdAccessToken"].is_null(), "who may look may not run");
    // The data plane asks for the sandbox's own token, not for a key.
    let routed = format!("e2b-sandbox-id: {id}\r\ne2b-sandbox-port: 49983\r\n");
    assert_eq!(ask("GET /health", &routed, "")?.status, 200);
    assert_eq!(ask("GET /envs", &format!("{routed}x-api-key: {run}\r\n"), "")?.status, 401);
    let token = made["envdAccessToken"].as_str().ok_or("no token")?;
    assert_eq!(ask("GET /envs", &format!("{routed}x-access-token: {token}\r\n"), "")?.status, 200);
    Ok(())
}

/// A server on a port of this host, which plays the guest's.
pub(crate) fn server(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Result<u16, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    let serve = std::sync::Arc::new(serve);
    thread::spawn(move || {
        for client in listener.incoming() {
            let (Ok(client), serve) = (client, serve.clone()) else { return };
            thread::spawn(move || serve(client));
        }
    });
    Ok(port)
}

/// Answers with the head of the request.
pub(crate) fn echo(mut client: TcpStream) {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") && client.read(&mut byte).is_ok_and(|read| read > 0) {
        head.extend(byte);
    }
    let _ = write!(client, "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", head.len());
    let _ = client.write_all(&head);
}

fn raw(world: &World, request: &str, headers: &str) -> Result<Answer, Failure> {
    let mut stream = UnixStream::connect(world.socket())?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "{request} HTTP/1.1\r\nconnection: close\r\n{headers}\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(|| format!("no answer: {text:?}"))?;
    let status = head.split(' ').nth(1).ok_or("no status")?.parse()?;
    Ok(Answer { status, head: head.to_ascii_lowercase(), body: body.to_owned() })
}

#[test]
fn ports_are_reached_by_headers_and_by_name() -> Result<(), Failure> {
    let mut world = World::new()?;
    let (id, _agent) = world.real()?;
    let port = server(echo)?;
    let refused = raw(&world, "GET /", &format!("host: {port}-{id}.localhost:8889\r\n"))?;
    assert_eq!(refused.status, 403, "{}", refused.body);
    let traffic = traffic(&world, &id)?;
    let by_name = format!("host: {port}-{id}.localhost:8889\r\n{traffic}");
    let answer = raw(&world, "GET /v1/sandboxes?x=%20", &by_name)?;
    assert!(answer.body.starts_with("GET /v1/sandboxes?x=%20 HTTP/1.1"), "{}", answer.body);
    assert!(answer.body.contains(&format!("{port}-{id}.localhost:8889")), "its own name: {}", answer.body);
    let by_headers =
        format!("host: x\r\ne2b-sandbox-id: {id}\r\ne2b-sandbox-port: {port}\r\nx-mine: 1\r\n{traffic}");
    let answer = raw(&world, "DELETE /sandboxes/x", &by_headers)?;
    assert!(answer.body.starts_with("DELETE /sandboxes/x HTTP/1.1"), "{}", answer.body);
    assert!(answer.body.contains("x-mine: 1") && !answer.body.contains("e2b-"), "{}", answer.body);
    // Old clients send the headers of a sandbox to the control plane, too.
    let both = raw(&world, &format!("GET /sandboxes/{id}"), &format!("{by_headers}{KEY}"))?;
    assert_eq!(both.parsed::<Value>(200)?["sandboxID"], json!(id));

    let free = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let closed: Value = data(&world, "GET /", &id, free, &traffic)?.parsed(502)?;
    let expected = json!({
        "sandboxId": id, "message": "The sandbox is running but port is not open", "port": free, "code": 502
    });
    assert_eq!(closed, expected);
    let browser = format!("accept: text/html\r\nsec-fetch-mode: navigate\r\n{traffic}");
    let page = raw(&world, "GET /", &format!("host: {free}-{id}.localhost\r\n{browser}"))?;
    assert_eq!(page.status, 502);
    assert!(
        page.head.contains("content-type: text/html") && page.body.contains("port is not open"),
        "{}",
        page.body
    );
    let gone: Value = data(&world, "GET /", "i0", 80, "")?.parsed(502)?;
    assert_eq!(gone["message"], "The sandbox was not found");
    assert_eq!(data(&world, "GET /", "not-an-id", 80, "")?.status, 400);
    assert_eq!(raw(&world, "GET /", &format!("host: 99999-{id}.localhost\r\n"))?.status, 400);
    Ok(())
}

#[test]
fn the_agent_is_for_those_with_the_token() -> Result<(), Failure> {
    let mut world = World::new()?;
    let (id, _agent) = world.real()?;
    let token = get(&world, &id)?["envdAccessToken"].as_str().ok_or("no token")?.to_owned();
    let with = format!("x-access-token: {token}\r\n");
    let traffic = traffic(&world, &id)?;
    assert_eq!(data(&world, "GET /health", &id, 49983, "")?.status, 204, "health is for everybody");
    for wrong in ["", "x-access-token: ea_x\r\n"] {
        let envs = data(&world, "GET /envs", &id, 49983, wrong)?;
        assert_eq!(refused(envs, 401)?, "the access token is missing or wrong");
        let list = data(&world, "POST /process.Process/List", &id, 49983, wrong)?;
        assert_eq!(list.parsed::<Value>(401)?["code"], "unauthenticated");
        assert_eq!(data(&world, "POST /execute", &id, 49999, &format!("{traffic}{wrong}"))?.status, 401);
    }
    assert_eq!(data(&world, "GET /envs", &id, 49983, &with)?.status, 200);
    assert_eq!(
        data(&world, "GET /contexts", &id, 49999, &traffic)?.status,
        200,
        "clients show no token here"
    );
    for own in ["/init", "/forkd/ready", "/%69nit", "//init", "/freeze", "/fsthaw"] {
        assert_eq!(data(&world, &format!("POST {own}"), &id, 49983, &with)?.status, 403, "{own}");
    }
    // Without headers, the token says whose it is.
    assert_eq!(raw(&world, "GET /envs", &format!("host: x\r\n{with}"))?.status, 200);
    assert_eq!(raw(&world, "GET /contexts", &format!("host: x\r\n{with}{traffic}"))?.status, 200);
    Ok(())
}

/// The signature of a link to a file, made with other means than forkd's, as it stands in a query behind `v1_`.
fn signed(
    path: &str,
    operation: &str,
    user: &str,
    token: &str,
    expiration: Option<u64>,
) -> Result<String, Failure> {
    use base64::Engine;
    let end = expiration.map(|end| format!(":{end}")).unwrap_or_default();
    let text = format!("{path}:{operation}:{user}:{token}{end}");
    let mut sha = std::process::Command::new("sha256sum")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()?;
    sha.stdin.take().ok_or("no pipe")?.write_all(text.as_bytes())?;
    let output = String::from_utf8(sha.wait_with_output()?.stdout)?;
    let bytes: Result<Vec<u8>, _> =
        (0..32).map(|at| u8::from_str_radix(&output[2 * at..2 * at + 2], 16)).collect();
    let signature = base64::engine::general_purpose::STANDARD_NO_PAD.encode(bytes?);
    Ok(signature.replace('+', "%2B").replace('/', "%2F"))
}

#[test]
fn links_to_files_are_signed() -> Result<(), Failure> {
    let mut world = World::new()?;
    let (id, _agent) = world.real()?;
    let token = get(&world, &id)?["envdAccessToken"].as_str().ok_or("no token")?.to_owned();
    let path = world.socket().with_file_name("signed ü.txt");
    let path = path.to_str().ok_or("no path")?;
    let user = "root";
    let sign = |operation: &str, expiration: Option<u64>| -> Result<String, Failure> {
        let signature = signed(path, operation, user, &token, expiration)?;
        let expiration = expiration.map(|end| format!("&signature_expiration={end}")).unwrap_or_default();
        let path = path.replace(' ', "%20").replace('ü', "%C3%BC");
        Ok(format!("/files?path={path}&username={user}&signature=v1_{signature}{expiration}"))
    };
    let host = "host: x\r\n";
    let upload = client::upload(
        &world.socket(),
        &format!("POST {}", sign("write", None)?),
        "content-type: application/octet-stream\r\n",
        "größe".as_bytes(),
    )?;
    assert_eq!(upload.status, 200, "{}", upload.body);
    let read = raw(&world, &format!("GET {}", sign("read", None)?), host)?;
    assert_eq!((read.status, read.body.as_str()), (200, "größe"));
    let later = raw(&world, &format!("GET {}", sign("read", Some(9_999_999_999))?), host)?;
    assert_eq!(later.status, 200);
    let expired = raw(&world, &format!("GET {}", sign("read", Some(1))?), host)?;
    assert_eq!(refused(expired, 401)?, "the signature has expired");
    assert_eq!(raw(&world, &format!("GET {}", sign("write", None)?), host)?.status, 400, "nobody's");
    let wrong = data(&world, &format!("GET {}", sign("write", None)?), &id, 49983, "")?;
    assert_eq!(refused(wrong, 401)?, "the signature is wrong");
    Ok(())
}

#[test]
fn bodies_come_in_pieces_and_streams_are_not_cut() -> Result<(), Failure> {
    let mut world = World::new()?;
    let (id, _agent) = world.real()?;
    let token = get(&world, &id)?["envdAccessToken"].as_str().ok_or("no token")?.to_owned();
    let routed =
        format!("host: x\r\ne2b-sandbox-id: {id}\r\ne2b-sandbox-port: 49983\r\nx-access-token: {token}\r\n");
    let start =
        json!({"process": {"cmd": "/bin/sh", "args": ["-c", "printf 'grün 日本'; sleep 0.2; echo ende"]}});
    let payload = start.to_string();
    let envelope = [&[0][..], &u32::try_from(payload.len())?.to_be_bytes(), payload.as_bytes()].concat();
    let mut stream = UnixStream::connect(world.socket())?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(
        stream,
        "POST /process.Process/Start HTTP/1.1\r\n{routed}connection: close\r\ncontent-type: application/connect+json\r\n\
         connect-protocol-version: 1\r\ntransfer-encoding: chunked\r\n\r\n"
    )?;
    for piece in envelope.chunks(7) {
        write!(stream, "{:x}\r\n", piece.len())?;
        stream.write_all(piece)?;
        stream.write_all(b"\r\n")?;
    }
    stream.write_all(b"0\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    // Base64 of the words, in one piece or several.
    assert!(answer.contains("Z3LDvG4g5pel5pys") && answer.contains("ZW5kZQo="), "{answer}");
    assert!(answer.contains("\"exitCode\":0") || answer.contains("exit status 0"), "{answer}");
    Ok(())
}

#[test]
fn a_hundred_commands_at_once_and_a_client_that_vanishes() -> Result<(), Failure> {
    let mut world = World::new()?;
    let (id, _agent) = world.real()?;
    let token = get(&world, &id)?["envdAccessToken"].as_str().ok_or("no token")?.to_owned();
    let start = |script: &str| -> Result<UnixStream, Failure> {
        let payload =
            json!({"process": {"cmd": "/bin/sh", "args": ["-c", script]}, "stdin": false}).to_string();
        let mut stream = UnixStream::connect(world.socket())?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(
            stream,
            "POST /process.Process/Start HTTP/1.1\r\nhost: x\r\ne2b-sandbox-id: {id}\r\ne2b-sandbox-port: 49983\r\n\
             x-access-token: {token}\r\nconnection: close\r\ncontent-type: application/connect+json\r\n\
             content-length: {}\r\n\r\n",
            payload.len() + 5
        )?;
        stream.write_all(
            &[&[0][..], &u32::try_from(payload.len())?.to_be_bytes(), payload.as_bytes()].concat(),
        )?;
        Ok(stream)
    };
    let mark = world.socket().with_file_name("went-on");
    let begun = Instant::now();
    let mut vanishing = start(&format!("echo begun; sleep 1; touch {}", mark.display()))?;
    let mut first = [0; 64];
    vanishing.read_exact(&mut first)?;
    drop(vanishing);
    let streams: Vec<UnixStream> =
        (0..100).map(|number| start(&format!("sleep 0.5; echo n{number}"))).collect::<Result<_, _>>()?;
    for mut stream in streams {
        let mut text = Vec::new();
        stream.read_to_end(&mut text)?;
        let text = String::from_utf8_lossy(&text);
        assert!(text.contains("exit status 0"), "{text}");
    }
    assert!(begun.elapsed() < Duration::from_secs(30), "they run at the same time");
    world.until("the command goes on without its client", |_| Ok(mark.exists()))?;
    Ok(())
}

#[test]
fn a_sandbox_with_private_traffic_wants_its_token() -> Result<(), Failure> {
    let (world, _agents) = World::with_agents(&[])?;
    let body = json!({"templateID": "base", "network": {"allowPublicTraffic": false}});
    let made = create(&world, body)?;
    let (id, traffic) = (id_of(&made), made["trafficAccessToken"].as_str().ok_or("no token")?.to_owned());
    for wrong in ["", "e2b-traffic-access-token: x\r\n"] {
        refused(data(&world, "GET /", &id, 8000, wrong)?, 403)?;
        refused(data(&world, "GET /contexts", &id, 49999, wrong)?, 403)?;
    }
    let right = format!("e2b-traffic-access-token: {traffic}\r\n");
    assert_eq!(data(&world, "GET /contexts", &id, 49999, &right)?.status, 200);
    assert_eq!(data(&world, "GET /health", &id, 49983, "")?.status, 200, "the agent has a token of its own");
    Ok(())
}

/// Ports are open to everybody, unless something else was asked for; the interpreter's contexts are not.
#[test]
fn contexts_are_for_those_with_a_token() -> Result<(), Failure> {
    let (world, _agents) = World::with_agents(&[])?;
    let made = create(&world, json!({"templateID": "base"}))?;
    let id = id_of(&made);
    let header = |name: &str, field: &str| -> Result<String, Failure> {
        Ok(format!("{name}: {}\r\n", made[field].as_str().ok_or("no token")?))
    };
    let (traffic, access) = (
        header("e2b-traffic-access-token", "trafficAccessToken")?,
        header("x-access-token", "envdAccessToken")?,
    );
    for wrong in ["", "e2b-traffic-access-token: x\r\n", "x-access-token: x\r\n"] {
        for request in ["GET /contexts", "POST /contexts", "DELETE /contexts/x", "POST /contexts/x/restart"] {
            assert_eq!(data(&world, request, &id, 49999, wrong)?.status, 401, "{request} {wrong}");
        }
    }
    for right in [&traffic, &access] {
        assert_eq!(data(&world, "GET /contexts", &id, 49999, right)?.status, 200, "{right}");
    }
    for path in ["/execute", "/%63ontexts", "/contexts-of-mine"] {
        assert_eq!(data(&world, &format!("POST {path}"), &id, 49999, &traffic)?.status, 401, "{path}");
    }
    Ok(())
}

/// A sandbox's tokens, as headers.
fn credentials(sandbox: &Value) -> Result<[String; 2], Failure> {
    let header = |name: &str, field: &str| -> Result<String, Failure> {
        Ok(format!("{name}: {}\r\n", sandbox[field].as_str().ok_or("no token")?))
    };
    Ok([
        header("x-access-token", "envdAccessToken")?,
        header("e2b-traffic-access-token", "trafficAccessToken")?,
    ])
}

/// What opened a sandbox opens nothing of its branch's children, wherever they are, and nothing of the daemon that they are with.
#[test]
fn a_branch_that_travels_does_not_take_credentials_along() -> Result<(), Failure> {
    let registry = forkd_tests::docker_registry::DockerRegistry::start()?;
    let (from, _agents) = World::with_agents(&[])?;
    let (to, _others) = World::with_agents(&[])?;
    let private = |tag: &str| json!({ "templateID": tag, "network": {"allowPublicTraffic": false} });
    let source = create(&from, private("base"))?;
    let source_id = id_of(&source);
    let branch = json!({ "tag": "one", "wait": true });
    from.tell(&format!("POST /v1/sandboxes/{source_id}/branch"), branch)?.parsed::<Value>(201)?;
    let reference = format!("{}/team/app:one", registry.address);
    from.forkd(&["snapshot", "push", "one", &reference, "--yes"])?;
    to.forkd(&["snapshot", "pull", &reference])?;

    let [access, traffic] = credentials(&source)?;
    let children = [(&from, create(&from, private("one"))?), (&to, create(&to, private("one"))?)];
    for (world, child) in &children {
        let id = id_of(child);
        let [own_access, own_traffic] = credentials(child)?;
        let (both, own) = (format!("{access}{traffic}"), format!("{own_access}{own_traffic}"));
        assert_ne!((&access, &traffic), (&own_access, &own_traffic));
        for (request, port) in [("GET /envs", 49983), ("GET /contexts", 49999), ("GET /x", 8000)] {
            let refused = data(world, request, &id, port, &both)?.status;
            assert!(matches!(refused, 401 | 403), "{request}: {refused}");
            let mixed = data(world, "POST /execute", &id, 49999, &format!("{access}{own_traffic}"))?;
            assert_eq!(mixed.status, 401, "{}", mixed.body);
        }
        assert_eq!(data(world, "GET /envs", &id, 49983, &own_access)?.status, 200);
        assert_eq!(data(world, "GET /contexts", &id, 49999, &own)?.status, 200);
        // A link that was signed for the source.
        let link = "GET /files?path=/x&username=root&signature=v1_";
        let token = access.trim().rsplit(' ').next().ok_or("no token")?;
        let signature = signed("/x", "read", "root", token, None)?;
        assert_eq!(data(world, &format!("{link}{signature}"), &id, 49983, "")?.status, 401);
    }
    // The other daemon knows neither the sandbox nor its tokens, and the first one only its own.
    let asked = |world: &World, headers: &str| raw(world, "GET /envs", &format!("host: x\r\n{headers}"));
    assert_ne!(asked(&to, &access)?.status, 200);
    assert_eq!(data(&to, "GET /envs", &source_id, 49983, &access)?.status, 502);
    let [theirs, _] = credentials(&children[1].1)?;
    assert_ne!(asked(&from, &theirs)?.status, 200);
    assert_eq!(asked(&from, &access)?.status, 200, "the source still runs");
    Ok(())
}

#[test]
fn what_cannot_be_kept_is_refused() -> Result<(), Failure> {
    let (world, _agents) = World::with_agents(&[])?;
    let new = |more: Value| {
        let mut body = json!({"templateID": "base"});
        if let (Some(body), Value::Object(more)) = (body.as_object_mut(), more) {
            body.extend(more);
        }
        control(&world, "POST /v2/sandboxes", body)
    };
    for wrong in [
        json!({"mcp": {"server": {}}}),
        json!({"volumeMounts": [{"name": "v", "path": "/v"}]}),
        json!({"network": {"rules": {"a.example": [{}]}}}),
        json!({"network": {"denyOut": ["evil.example"]}}),
        // The tiny guest has no network to keep it in.
        json!({"network": {"denyOut": ["8.8.8.8"]}}),
    ] {
        refused(new(wrong)?, 400)?;
    }
    // The tiny guest has no network, which is as isolated as can be.
    let id = id_of(&new(json!({"allow_internet_access": false}))?.parsed::<Value>(201)?);
    let network = |body: Value| control(&world, &format!("PUT /sandboxes/{id}/network"), body);
    assert_eq!(network(json!({"denyOut": ["0.0.0.0/0"]}))?.status, 204);
    refused(network(json!({"egressProxy": {"address": "x"}}))?, 400)?;
    // Old clients say whether the agent wants a token; without a word it does not.
    let open = control(&world, "POST /sandboxes", json!({"templateID": "base"}))?.parsed::<Value>(201)?;
    assert!(open["envdAccessToken"].is_null(), "{open}");
    assert_eq!(data(&world, "GET /envs", &id_of(&open), 49983, "")?.status, 200);
    let secure = json!({"templateID": "base", "secure": true});
    let secure = control(&world, "POST /sandboxes", secure)?.parsed::<Value>(201)?;
    assert!(secure["envdAccessToken"].is_string(), "{secure}");
    Ok(())
}

/// Every five seconds, and now.
#[test]
fn metrics_are_a_series() -> Result<(), Failure> {
    let (mut world, _agents) = World::with_agents(&[])?;
    let id = id_of(&create(&world, json!({ "templateID": "base" }))?);
    let metrics = |world: &World, query: &str| -> Result<Vec<u64>, Failure> {
        let path = format!("GET /sandboxes/{id}/metrics{query}");
        let points: Vec<Value> = control(world, &path, json!({}))?.parsed(200)?;
        let whole = |point: &Value| {
            point["cpuUsedPct"].as_f64().is_some_and(|used| (0.0..=100.0).contains(&used))
                && point["timestamp"].is_string()
        };
        assert!(points.iter().all(whole), "{points:?}");
        Ok(points.iter().filter_map(|point| point["timestampUnix"].as_u64()).collect())
    };
    assert_eq!(metrics(&world, "")?.len(), 1, "nothing was measured yet but what is now");
    world.until("some were measured", |world| Ok(metrics(world, "")?.len() >= 4))?;
    let all = metrics(&world, "")?;
    assert!(all.is_sorted() && all[1] - all[0] >= 4, "{all:?}");
    let [first, second] = [all[0], all[1]];
    assert_eq!(metrics(&world, &format!("?end={first}"))?, [first]);
    assert_eq!(metrics(&world, &format!("?start={second}&end={second}"))?, [second]);
    // A paused guest is not asked, and what was measured stays.
    assert_eq!(control(&world, &format!("POST /sandboxes/{id}/pause"), json!({}))?.status, 204);
    assert_eq!(metrics(&world, "")?[..2], [first, second]);
    // A daemon that starts begins anew.
    world.end(Signal::TERM)?;
    world.start(&[])?;
    assert!(metrics(&world, "")?.is_empty());
    Ok(())
}

/// A daemon that dies in the middle of a pause, or of what ends one: the sandbox stands still without an end, or runs with one.
#[cfg(debug_assertions)]
#[test]
fn a_pause_and_the_end_of_a_sandbox_change_together() -> Result<(), Failure> {
    let (mut world, _agents) = World::with_agents(&[])?;
    for (place, request) in [
        ("change.written", "pause"),
        ("change.changed", "pause"),
        ("change.written", "connect"),
        ("change.changed", "connect"),
    ] {
        let id = id_of(&create(&world, json!({ "templateID": "base", "timeout": 1000 }))?);
        if request == "connect" {
            assert_eq!(control(&world, &format!("POST /sandboxes/{id}/pause"), json!({}))?.status, 204);
        }
        world.end(Signal::KILL)?;
        world.launch(&[], &[("FORKD_FAULT", place)])?;
        world.until("the daemon answers", |world| Ok(world.ask("GET /healthz").is_ok()))?;
        let dying = control(&world, &format!("POST /sandboxes/{id}/{request}"), json!({ "timeout": 1000 }));
        assert!(dying.map_or(true, |answer| answer.is_cut()), "{place} {request}: the daemon lives");
        world.ended_itself()?;
        world.start(&[])?;
        let shown = world.sandbox(&id)?;
        let is_paused = shown.state == forkd_api::sandbox::SandboxState::Paused;
        assert_eq!(shown.expires_at_unix.is_none(), is_paused, "{place} {request}: {shown:?}");
        // What was begun is done, or nothing is.
        let is_done = place == "change.changed";
        assert_eq!(is_paused, (request == "pause") == is_done, "{place} {request}: {shown:?}");
    }
    Ok(())
}
