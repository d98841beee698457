//! Projects: what one has is not there for another, whatever is asked. The list of what can be asked is the OpenAPI document and
//! E2B's routes as they are written; each has its place here, or the test fails.

use std::collections::BTreeSet;

use forkd_api::error::ErrorCode;
use forkd_api::library::ImageList;
use forkd_api::sandbox::{CreatedSandboxes, Sandbox, SandboxList};
use forkd_api::snapshot::{Snapshot, SnapshotHistory, SnapshotList};
use forkd_tests::check;
use forkd_tests::engine::process::Failure;
use forkd_tests::fake_agent::FakeAgents;
use forkd_tests::tiny_library::fill;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::client::{self, Answer};
use crate::world::World;

/// What an operation is about.
enum About {
    /// A sandbox that its path names. With this query, and this body.
    Sandbox(&'static str, &'static str),
    /// A snapshot, or an image, that its path names.
    Snapshot,
    Image,
    /// What its body or its path names: a sandbox, a snapshot, an image. Tried by itself.
    Body,
    /// A list, or a stream. Tried by itself.
    List,
    /// The host, and nobody's in particular.
    Host,
    /// What only the scope admin may, whatever it is about.
    Admin,
}

fn classified(operation: &str) -> Option<About> {
    use About::{Admin, Body, Host, Image, List, Sandbox, Snapshot};
    Some(match operation {
        "get_sandbox" | "remove_sandbox" | "sandbox_stats" | "sandbox_console" | "pause_sandbox"
        | "resume_sandbox" | "exec_interactive" | "connect_port" | "proxy" => Sandbox("", ""),
        "set_sandbox_bandwidth" | "branch_sandbox" => Sandbox("", "{}"),
        "set_sandbox_egress" => Sandbox("", r#"{"mode":"deny"}"#),
        "set_sandbox_ttl" => Sandbox("", r#"{"ttl_secs":5}"#),
        "rollback_sandbox" => Sandbox("", r#"{"tag":"own-branch"}"#),
        "eval" => Sandbox("", r#"{"language":"python","code":"1"}"#),
        "exec" | "start_process" => Sandbox("", r#"{"args":["true"]}"#),
        "list_contexts"
        | "restart_context"
        | "remove_context"
        | "list_processes"
        | "connect_process"
        | "write_process_stdin" => Sandbox("", ""),
        "create_context" | "interrupt_context" => Sandbox("", "{}"),
        "signal_process" => Sandbox("", r#"{"signal":"SIGTERM"}"#),
        "read_file" | "write_file" | "remove_file" | "file_info" | "list_files" => Sandbox("?path=/x", ""),
        "get_snapshot"
        | "remove_snapshot"
        | "snapshot_history"
        | "verify_snapshot"
        | "compact_snapshot"
        | "add_snapshot_name"
        | "remove_snapshot_name"
        | "save_snapshot" => Snapshot,
        "get_image" => Image,
        "create_sandboxes" | "create_snapshot" | "build_snapshot" | "resolve_name" | "prune_snapshots" => {
            Body
        }
        "list_sandboxes" | "list_snapshots" | "list_images" | "events" => List,
        "health" | "version" | "caller" | "ca" | "metrics" | "openapi" | "list_kernels" => Host,
        "problems"
        | "build_image"
        | "debian_image"
        | "import_image"
        | "prune_images"
        | "pull_image"
        | "remove_image"
        | "publish_image"
        | "publish_snapshot"
        | "add_kernel"
        | "choose_kernel"
        | "import_kernel"
        | "remove_kernel"
        | "load_snapshot"
        | "pull_snapshot"
        | "push_snapshot"
        | "list_repository"
        | "resolve_snapshot"
        | "add_snapshot_signature" => Admin,
        _ => return None,
    })
}

/// A daemon, and three projects with a token each: `default`, `one` and `two`.
struct Tenants {
    world: World,
    _agents: FakeAgents,
    address: String,
    tokens: [String; 3],
}

const DEFAULT: usize = 0;
const ONE: usize = 1;
const TWO: usize = 2;

impl Tenants {
    fn new() -> Result<Tenants, Failure> {
        let (mut world, agents) = World::with_agents(&[])?;
        fill(&world.library())?;
        let tokens = [
            world.token("d", "run")?,
            world.token_with("o", &["--scope", "run", "--project", "one"])?,
            world.token_with("t", &["--scope", "run", "--project", "two"])?,
        ];
        world.end(Signal::TERM)?;
        let audit = world.home().join("audit.log");
        let audit = audit.to_str().ok_or("a path")?.to_owned();
        world.start(&["--listen", "127.0.0.1:0", "--audit-log", &audit])?;
        let address = world.address()?;
        Ok(Tenants { world, _agents: agents, address, tokens })
    }

    /// What a project's token is answered.
    fn ask(&self, who: usize, request: &str, body: &str) -> Result<Answer, Failure> {
        let headers = format!(
            "authorization: Bearer {}\r\nx-api-key: {0}\r\ncontent-type: application/json\r\n",
            self.tokens[who]
        );
        client::send_tcp(&self.address, request, &headers, body)
    }

    fn fork(&self, who: usize, tag: &str) -> Result<Sandbox, Failure> {
        let body = json!({ "snapshot_tag": tag }).to_string();
        let made: CreatedSandboxes = self.ask(who, "POST /v1/sandboxes", &body)?.parsed(201)?;
        Ok(made.sandboxes.into_iter().next().ok_or("none")?)
    }

    fn branch(&self, who: usize, id: &str, tag: &str) -> Result<Snapshot, Failure> {
        let body = json!({ "tag": tag, "wait": true }).to_string();
        self.ask(who, &format!("POST /v1/sandboxes/{id}/branch"), &body)?.parsed(201)
    }

    /// The answer about what is another's is that about what does not exist, to the letter.
    fn hides(&self, request: &str, names: (&str, &str), body: &str, status: u16) -> Result<(), Failure> {
        let ask = |name: &str| -> Result<(u16, String), Failure> {
            let answer = self.ask(TWO, &request.replace("NAME", name), &body.replace("NAME", name))?;
            Ok((answer.status, answer.body.replace(name, "NAME")))
        };
        let (others, none) = (ask(names.0)?, ask(names.1)?);
        check!(others == none, "{request}: {others:?}, and of one that is not there {none:?}");
        check!(others.0 == status, "{request}: {others:?}");
        Ok(())
    }
}

fn operations(world: &World) -> Result<Vec<(String, String)>, Failure> {
    let document: Value = world.ask("GET /openapi.json")?.parsed(200)?;
    let mut all = Vec::new();
    for (path, item) in document["paths"].as_object().ok_or("no paths")? {
        for (method, operation) in item.as_object().ok_or("no methods")? {
            let id = operation["operationId"].as_str().ok_or("no operationId")?;
            all.push((id.to_owned(), format!("{} {path}", method.to_ascii_uppercase())));
        }
    }
    check!(all.len() > 40, "{} operations", all.len());
    Ok(all)
}

#[test]
fn nothing_of_another_project_is_there() -> Result<(), Failure> {
    let tenants = Tenants::new()?;
    let world = &tenants.world;
    // One is given something to begin with, and takes it back: what it has made of it stays.
    world.tell("PUT /v1/snapshots/base/public", json!({ "public": true }))?.parsed::<Snapshot>(200)?;
    let sandbox = tenants.fork(ONE, "base")?;
    let own = tenants.fork(TWO, "base")?;
    world.tell("PUT /v1/snapshots/base/public", json!({ "public": false }))?.parsed::<Snapshot>(200)?;
    check!(sandbox.project == "one" && own.project == "two", "{} {}", sandbox.project, own.project);
    let branch = tenants.branch(ONE, &sandbox.id, "theirs")?;
    check!(branch.project == "one" && !branch.public, "{branch:?}");
    tenants.branch(TWO, &own.id, "own-branch")?;
    let before = world.sandbox(&sandbox.id)?;

    let (ids, tags) = ((sandbox.id.as_str(), "i000000000000"), ("theirs", "nowhere"));
    for (operation, request) in operations(world)? {
        let about = classified(&operation).ok_or_else(|| format!("nobody has said whose {operation} is"))?;
        let request = request.replace("{port}", "80").replace("{path}", "x");
        match about {
            About::Sandbox(query, body) => {
                let request = format!("{}{query}", request.replace("{id}", "NAME").replace("{pid}", "7"));
                tenants.hides(&request, ids, body, 404)?;
                // To its own project it is there.
                if !request.starts_with("DELETE") {
                    let owners = tenants.ask(ONE, &request.replace("NAME", ids.0), "nonsense")?;
                    let hidden = owners.status == 404 && owners.body.contains("no sandbox");
                    check!(!hidden, "{request}: {owners:?}");
                }
            }
            About::Snapshot => {
                let request = request.replace("{tag}", "NAME").replace("{name}", "other");
                tenants.hides(&request, tags, "", 404)?;
            }
            About::Image => {
                tenants.hides(&request.replace("{image}", "NAME"), ("empty", "other"), "", 404)?
            }
            About::Admin => {
                let named = ["{tag}", "{image}", "{kernel}"];
                let request = named.iter().fold(request, |request, name| request.replace(name, "NAME"));
                tenants.hides(&request, tags, r#"{"public":true}"#, 403)?;
            }
            About::Body | About::List | About::Host => {}
        }
    }
    let prune = r#"{"named":true,"unused_seconds":1,"dry_run":true}"#;
    let pruned = tenants.ask(TWO, "POST /v1/snapshots/prune", prune)?.body;
    check!(!pruned.contains("theirs") && !pruned.contains("base"), "{pruned}");
    for (request, body, names) in [
        ("POST /v1/sandboxes", r#"{"snapshot_tag":"NAME"}"#, tags),
        ("POST /v1/sandboxes", r#"{"snapshot_tag":"NAME"}"#, ("base", "nowhere")),
        ("POST /v1/sandboxes", r#"{"from_sandbox":"NAME"}"#, ids),
        ("POST /v1/sandboxes", r#"{"source":"NAME"}"#, ids),
        ("POST /v1/sandboxes", r#"{"source":"NAME"}"#, tags),
        ("GET /v1/names/NAME", "", ids),
        ("GET /v1/names/NAME", "", tags),
        ("POST /v1/snapshots", r#"{"image":"NAME"}"#, ("empty", "other")),
        ("POST /v1/snapshots", r#"{"tag":"x","image":"NAME"}"#, ("empty", "other")),
        ("POST /v1/snapshots", r#"{"tag":"x","snapshot":"NAME"}"#, tags),
        (&format!("POST /v1/sandboxes/{}/rollback", own.id), r#"{"tag":"NAME"}"#, tags),
    ] {
        tenants.hides(request, names, body, 404)?;
    }

    // A name of another project's snapshot is in use, and nothing else is said of it.
    world.ask("PUT /v1/snapshots/theirs/names/nickname")?.parsed::<Snapshot>(200)?;
    tenants.ask(TWO, "GET /v1/snapshots/nickname", "")?.error(ErrorCode::NotFound)?;
    tenants.ask(TWO, "DELETE /v1/snapshots/nickname", "")?.error(ErrorCode::NotFound)?;
    let take = "PUT /v1/snapshots/own-branch/names/nickname?force=true";
    let taken = tenants.ask(TWO, take, "")?.error(ErrorCode::NameTaken)?;
    check!(!taken.error.contains("theirs"), "{taken:?}");
    // Nor of a snapshot that its own is based on.
    let history: SnapshotHistory =
        tenants.ask(TWO, "GET /v1/snapshots/own-branch/history", "")?.parsed(200)?;
    let [only] = &history.snapshots[..] else { return Err(format!("{history:?}").into()) };
    assert_eq!((only.tag.as_str(), &only.parent, only.depth), ("own-branch", &None, 1));

    for (who, ids, tags, images) in [
        (DEFAULT, vec![], vec!["base"], 1),
        (ONE, vec![sandbox.id.as_str()], vec!["theirs"], 0),
        (TWO, vec![own.id.as_str()], vec!["own-branch"], 0),
    ] {
        let sandboxes: SandboxList = tenants.ask(who, "GET /v1/sandboxes", "")?.parsed(200)?;
        assert_eq!(sandboxes.sandboxes.iter().map(|it| it.id.as_str()).collect::<Vec<_>>(), ids);
        let snapshots: SnapshotList = tenants.ask(who, "GET /v1/snapshots", "")?.parsed(200)?;
        assert_eq!(snapshots.snapshots.iter().map(|it| it.tag.as_str()).collect::<Vec<_>>(), tags);
        check!(snapshots.snapshots.iter().all(|it| it.children.is_empty()), "{snapshots:?}");
        let listed: ImageList = tenants.ask(who, "GET /v1/images", "")?.parsed(200)?;
        assert_eq!(listed.images.len(), images);
    }
    assert_eq!(world.sandboxes("")?.len(), 2, "the host's own caller sees all");
    let after = world.sandbox(&sandbox.id)?;
    check!(before.state == after.state && before.branches == after.branches, "{after:?}");
    world.snapshot("theirs")?;

    // The audit log says for whom it was.
    let log = std::fs::read_to_string(world.home().join("audit.log"))?;
    let of = |project: &str| log.contains(&format!(r#""who":"token:t","project":"{project}""#));
    check!(of("two") && !of("one") && !of("default"), "{log}");
    Ok(())
}

/// E2B's routes, as they are written in the daemon.
fn e2b_routes() -> Result<BTreeSet<(String, String)>, Failure> {
    let sources = [
        include_str!("../../crates/forkd-e2b/src/lib.rs"),
        include_str!("../../crates/forkd-e2b/src/builds/mod.rs"),
    ];
    let mut routes = BTreeSet::new();
    for line in sources.iter().flat_map(|source| source.lines()) {
        let Some((_, rest)) = line.split_once(".route(\"") else { continue };
        let (path, handlers) = rest.split_once('"').ok_or("a path ends")?;
        for method in ["get", "post", "put", "delete", "patch"] {
            let named = |before: char| handlers.contains(&format!("{before}{method}("));
            if named(' ') || named('.') {
                routes.insert((method.to_ascii_uppercase(), path.to_owned()));
            }
        }
    }
    check!(routes.len() > 25, "{routes:?}");
    Ok(routes)
}

#[test]
fn nothing_of_another_project_is_there_for_e2b_s_clients() -> Result<(), Failure> {
    let tenants = Tenants::new()?;
    let world = &tenants.world;
    world.tell("PUT /v1/snapshots/base/public", json!({ "public": true }))?.parsed::<Snapshot>(200)?;
    let create = |who| -> Result<String, Failure> {
        let made: Value = tenants.ask(who, "POST /v2/sandboxes", r#"{"templateID":"base"}"#)?.parsed(201)?;
        Ok(made["sandboxID"].as_str().ok_or("no id")?.to_owned())
    };
    let (theirs, own) = (create(ONE)?, create(TWO)?);
    world.tell("PUT /v1/snapshots/base/public", json!({ "public": false }))?.parsed::<Snapshot>(200)?;
    tenants.branch(ONE, &theirs, "theirs")?;
    for (method, path) in e2b_routes()? {
        let (sandbox, template) = (("NAME", "i000000000000"), ("theirs", "nowhere"));
        let (sandbox, request) =
            ((theirs.as_str(), sandbox.1), format!("{method} {}", path.replace("{id}", "NAME")));
        match path.as_str() {
            "/sandboxes" | "/v2/sandboxes" if method == "POST" => {
                tenants.hides(&request, template, r#"{"templateID":"NAME"}"#, 404)?;
                // What clients take if nothing else is said has a hint of its own.
                tenants.hides(&request, ("base", "code-interpreter-v1"), r#"{"templateID":"NAME"}"#, 404)?;
                tenants.hides(&request, ("empty", "other"), r#"{"templateID":"NAME"}"#, 404)?;
            }
            "/sandboxes" | "/v2/sandboxes" => {
                let listed: Vec<Value> = tenants.ask(TWO, &request, "")?.parsed(200)?;
                assert_eq!(
                    listed.iter().map(|it| it["sandboxID"].as_str()).collect::<Vec<_>>(),
                    [Some(own.as_str())]
                );
            }
            "/snapshots" | "/templates" | "/v2/templates" => {
                let listed: Vec<Value> = tenants.ask(TWO, &request, "")?.parsed(200)?;
                check!(listed.is_empty(), "{request}: {listed:?}");
            }
            "/templates/aliases/{alias}" => {
                tenants.hides(&request.replace("{alias}", "NAME"), template, "", 404)?
            }
            "/templates/{id}" | "/templates/{id}/tags" => tenants.hides(&request, template, "", 404)?,
            // Builds are an admin's, and the link to send files to is its own token.
            "/v3/templates"
            | "/v2/templates/{id}/builds/{build}"
            | "/templates/{id}/files/{hash}"
            | "/templates/tags" => {
                tenants.hides(&request, template, "{}", 403)?;
            }
            "/templates/{id}/builds/{build}/status" => {
                let headers = "content-type: application/json\r\n";
                let body = json!({ "name": "built" });
                let new: Value = world.tell_with(headers, "POST /v3/templates", body)?.parsed(202)?;
                let build = new["buildID"].as_str().ok_or("no build")?;
                let request = request.replace("NAME", "built").replace("{build}", "NAME");
                let admins = world.ask(&request.replace("NAME", build))?;
                check!(admins.status == 200, "{admins:?}");
                tenants.hides(&request, (build, "00000000-0000-0000-0000-000000000000"), "", 404)?;
            }
            "/templates/uploads/{hash}" => {
                check!(
                    tenants.ask(TWO, &request.replace("{hash}", &"0".repeat(64)), "")?.status == 403,
                    "{request}"
                );
            }
            path if path.contains("/sandboxes/{id}") => {
                let body = match path.rsplit('/').next() {
                    Some("timeout") => r#"{"timeout":5}"#,
                    _ => "{}",
                };
                tenants.hides(&request, sandbox, body, 404)?;
            }
            _ => return Err(format!("nobody has said whose {request} is").into()),
        }
    }
    assert_eq!(world.sandboxes("")?.len(), 2);
    // Ports are as reachable as the sandbox itself says.
    let keys = tenants.ask(ONE, &format!("GET /sandboxes/{theirs}"), "")?.parsed::<Value>(200)?;
    let token = keys["envdAccessToken"].as_str().ok_or("no token")?;
    let port = |headers: String| -> Result<u16, Failure> {
        let headers = format!("e2b-sandbox-id: {theirs}\r\ne2b-sandbox-port: 49983\r\n{headers}");
        Ok(client::send_tcp(&tenants.address, "GET /files?path=/nowhere", &headers, "")?.status)
    };
    assert_eq!(port(format!("x-api-key: {}\r\n", tenants.tokens[TWO]))?, 401);
    check!(port(format!("x-access-token: {token}\r\n"))? != 401, "its own token is right");
    Ok(())
}

#[test]
fn what_is_public_is_used_by_all_and_changed_by_its_own() -> Result<(), Failure> {
    let tenants = Tenants::new()?;
    let world = &tenants.world;
    let mut events = client::Lines::open_tcp(
        &tenants.address,
        "GET /v1/events",
        &format!("authorization: Bearer {}\r\n", tenants.tokens[TWO]),
    )?;
    let shown: Snapshot =
        world.tell("PUT /v1/snapshots/base/public", json!({ "public": true }))?.parsed(200)?;
    check!(shown.public && shown.project == "default", "{shown:?}");
    let one = tenants.fork(ONE, "base")?;
    tenants.branch(ONE, &one.id, "ones")?;
    let two = tenants.fork(TWO, "base")?;
    // Of what happens, each is told what is its own.
    loop {
        let event = events.next()?.ok_or("no events")?;
        check!(!event.to_string().contains(&one.id) && event["tag"] != "ones", "{event}");
        if event["id"] == json!(two.id) {
            break;
        }
    }
    let seen: Snapshot = tenants.ask(TWO, "GET /v1/snapshots/base", "")?.parsed(200)?;
    check!(seen.children.is_empty(), "another's branch is seen: {seen:?}");
    tenants.ask(TWO, "DELETE /v1/snapshots/base", "")?.error(ErrorCode::Forbidden)?;
    // What others have made of it keeps it, and is not named.
    for request in ["DELETE /v1/snapshots/base", "DELETE /v1/snapshots/base?cascade=true"] {
        let refused = tenants.ask(DEFAULT, request, "")?.error(ErrorCode::HasDependents)?;
        check!(refused.error.contains("other projects") && !refused.error.contains("ones"), "{refused:?}");
    }
    world.snapshot("ones")?;
    // What an admin makes of what is a project's stays the project's.
    let copy = world.create(json!({ "from_sandbox": one.id }))?.sandboxes.remove(0);
    let fork = world.create(json!({ "snapshot_tag": "ones" }))?.sandboxes.remove(0);
    check!(copy.project == "one" && fork.project == "one", "{copy:?} {fork:?}");
    // Images, too.
    let public = json!({ "public": true });
    world.tell("PUT /v1/images/empty/public", public)?.parsed::<Value>(200)?;
    let seen: ImageList = tenants.ask(TWO, "GET /v1/images", "")?.parsed(200)?;
    check!(seen.images.len() == 1 && seen.images[0].public && seen.images[0].projects.is_empty(), "{seen:?}");
    // Another one that has the name later is not public.
    world.ask("DELETE /v1/snapshots/base?cascade=true")?.parsed::<Value>(200)?;
    let own = tenants.fork(ONE, "ones");
    check!(own.is_err(), "it went with its parent");
    tenants.branch(ONE, &one.id, "base")?;
    tenants.ask(TWO, "GET /v1/snapshots/base", "")?.error(ErrorCode::NotFound)?;
    Ok(())
}

#[test]
fn a_project_s_tokens_share_what_it_may_have() -> Result<(), Failure> {
    let tenants = Tenants::new()?;
    let world = &tenants.world;
    world.tell("PUT /v1/snapshots/base/public", json!({ "public": true }))?.parsed::<Snapshot>(200)?;
    world.tell("PUT /v1/images/empty/public", json!({ "public": true }))?.parsed::<Value>(200)?;
    world.forkd(&[
        "project",
        "limit",
        "one",
        "--max-sandboxes",
        "2",
        "--max-snapshots",
        "1",
        "--max-vcpus",
        "3",
    ])?;
    let other = world.token_with("o2", &["--project", "one"])?;
    let as_other = |request: &str, body: &str| {
        let headers = format!("authorization: Bearer {other}\r\ncontent-type: application/json\r\n");
        client::send_tcp(&tenants.address, request, &headers, body)
    };
    let first = tenants.fork(ONE, "base")?;
    let fork = r#"{"snapshot_tag":"base"}"#;
    as_other("POST /v1/sandboxes", fork)?.parsed::<Value>(201)?;
    let refused = as_other("POST /v1/sandboxes", fork)?.error(ErrorCode::TooMany)?;
    check!(
        refused.error == "limit of the project exceeded for sandboxes: 2 in use, 1 requested, limit 2",
        "{refused:?}"
    );
    // Whoever makes snapshots has a guest meanwhile.
    let snapshot = r#"{"tag":"x","image":"empty"}"#;
    let refused = as_other("POST /v1/snapshots", snapshot)?.error(ErrorCode::TooMany)?;
    check!(refused.error.ends_with("limit 2"), "{refused:?}");
    tenants.ask(ONE, &format!("DELETE /v1/sandboxes/{}", first.id), "")?;
    let wide = r#"{"tag":"x","image":"empty","vcpus":3}"#;
    let refused = as_other("POST /v1/snapshots", wide)?.error(ErrorCode::TooMany)?;
    check!(
        refused.error == "limit of the project exceeded for vCPUs: 1 in use, 3 requested, limit 3",
        "{refused:?}"
    );
    // Branches are snapshots.
    let again = tenants.fork(ONE, "base")?;
    tenants.branch(ONE, &again.id, "first")?;
    let refused =
        as_other(&format!("POST /v1/sandboxes/{}/branch", again.id), "{}")?.error(ErrorCode::TooMany)?;
    check!(
        refused.error == "limit of the project exceeded for snapshots: 1 in use, 1 requested, limit 1",
        "{refused:?}"
    );
    let refused = as_other("POST /v1/snapshots", snapshot)?.error(ErrorCode::TooMany)?;
    check!(refused.error.contains("limit of the project"), "{refused:?}");
    // What they take on disk has a limit of its own.
    world.forkd(&["project", "limit", "one", "--max-snapshot-disk", "0"])?;
    let refused = as_other("POST /v1/snapshots", snapshot)?.error(ErrorCode::TooMany)?;
    let expected =
        "limit of the project exceeded for MiB of snapshots on disk: 1 in use, 1 requested, limit 0";
    check!(refused.error == expected, "{refused:?}");
    world.forkd(&["project", "limit", "one", "--max-snapshot-disk", "1M"])?;
    tenants.branch(ONE, &again.id, "second")?;
    // Others are not concerned.
    tenants.fork(TWO, "base")?;
    Ok(())
}
