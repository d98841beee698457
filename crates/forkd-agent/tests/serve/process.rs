//! The process service over its wire.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::Agent;
use crate::client::stdout;

fn shell(script: &str) -> Value {
    json!({"process": {"cmd": "sh", "args": ["-c", script]}, "stdin": false})
}

#[test]
fn events_come_in_order() {
    let agent = Agent::start();
    let mut stream = agent.client.stream("process.Process/Start", &shell("echo hi; exit 3"));
    let pid = stream.pid();
    assert!(pid > 1);
    let (events, end) = stream.all();
    let expected = [
        json!({"data": {"stdout": "aGkK"}}),
        json!({"end": {"exitCode": 3, "exited": true, "status": "exit status 3", "error": "exit status 3"}}),
    ];
    assert_eq!((events.as_slice(), end), (expected.as_slice(), json!({})));
}

#[test]
fn tags_select_and_signals_end() {
    let agent = Agent::start();
    let mut start = shell("sleep 100; true");
    start["tag"] = "mine".into();
    let mut stream = agent.client.stream("process.Process/Start", &start);
    let pid = stream.pid();
    let (_, list) = agent.client.unary("process.Process/List", &json!({}));
    assert_eq!(list["processes"][0]["pid"], pid);
    assert_eq!(list["processes"][0]["tag"], "mine");
    let by_tag = json!({"process": {"tag": "mine"}, "signal": "SIGNAL_SIGTERM"});
    assert_eq!(agent.client.unary("process.Process/SendSignal", &by_tag), (200, json!({})));
    let (events, _) = stream.all();
    assert_eq!(events[0]["end"]["status"], "signal: terminated");
    assert_eq!(events[0]["end"]["exited"], false);
    let again = agent.client.unary("process.Process/SendSignal", &by_tag);
    assert_eq!((again.0, &again.1["code"]), (404, &json!("not_found")));
    let odd = json!({"process": {"tag": "mine"}, "signal": "SIGNAL_SIGSEGV"});
    assert_eq!(agent.client.unary("process.Process/SendSignal", &odd).0, 400);
}

/// As PID 1 of a guest, whose process group has no number.
#[test]
fn signals_arrive_where_the_agent_s_group_is_not_of_its_namespace() {
    let namespace = r#"user=; [ "$(id -u)" = 0 ] || user='--user --map-root-user'
        exec unshare $user --pid --fork --kill-child --mount-proc sh -c '"$@"; true' sh "$@""#;
    let agent = Agent::start_from(namespace);
    let mut stream = agent.client.stream("process.Process/Start", &shell("sleep 100; true"));
    let end = json!({"process": {"pid": stream.pid()}, "signal": "SIGNAL_SIGKILL"});
    assert_eq!(agent.client.unary("process.Process/SendSignal", &end), (200, json!({})));
    assert_eq!(stream.all().0[0]["end"]["status"], "signal: killed");
}

#[test]
fn what_the_agent_ignores_its_children_do_not() {
    let agent = Agent::start_from("trap '' HUP INT QUIT TERM; exec \"$@\"");
    let (events, _) =
        agent.client.stream("process.Process/Start", &shell("grep SigIgn /proc/self/status")).all();
    let output = stdout(&events);
    let ignored = u64::from_str_radix(output.trim().trim_start_matches("SigIgn:\t"), 16).expect("a mask");
    // Signals 32 and 33 belong to the C library, which does not allow changing them.
    assert_eq!(ignored & 0x7fff_ffff, 0, "{output}");
}

#[test]
fn silence_is_filled_with_keepalives() {
    let agent = Agent::start();
    let client = agent.client.with("keepalive-ping-interval", "1");
    let (events, _) = client.stream("process.Process/Start", &shell("sleep 2.5")).all();
    let keepalives = events.iter().filter(|event| event["keepalive"] == json!({})).count();
    assert_eq!(keepalives, 2, "{events:?}");
}

#[test]
fn a_time_limit_ends_the_stream_of_connect_and_kills_only_for_start() {
    let agent = Agent::start();
    let mut first = agent.client.stream("process.Process/Start", &shell("sleep 100; true"));
    let pid = first.pid();
    let limited = agent.client.with("connect-timeout-ms", "300");
    let connect = json!({"process": {"pid": pid}});
    let (_, end) = limited.stream("process.Process/Connect", &connect).all();
    assert_eq!(end["error"]["code"], "deadline_exceeded");
    let (_, list) = agent.client.unary("process.Process/List", &json!({}));
    assert_eq!(list["processes"][0]["pid"], pid);
    let (events, end) = limited.stream("process.Process/Start", &shell("sleep 50; true")).all();
    assert_eq!((events.len(), &end["error"]["code"]), (1, &json!("deadline_exceeded")));
    let gone = Instant::now();
    while agent.client.unary("process.Process/List", &json!({})).1["processes"].as_array().unwrap().len() > 1
    {
        assert!(gone.elapsed() < Duration::from_secs(10), "the process of the limited call lives on");
    }
}

#[test]
fn what_cannot_be_started_says_why() {
    let agent = Agent::start();
    let refused = |message: &Value| {
        let stream = agent.client.stream("process.Process/Start", message);
        assert_ne!(stream.status, 200);
        stream.status
    };
    assert_eq!(refused(&json!({"process": {"cmd": "/no/such/program"}})), 404);
    assert_eq!(refused(&json!({"process": {"cmd": ""}})), 400);
    assert_eq!(refused(&json!({"process": {"cmd": "sh", "cwd": "/no/such"}})), 400);
    assert_eq!(refused(&json!({"process": {"cmd": "/etc/passwd"}})), 403);
    assert_eq!(refused(&json!("nonsense")), 400);
    let unknown = agent.client.with("Authorization", "Basic bm9ib2R5LWF0LWFsbDo=");
    assert_eq!(unknown.stream("process.Process/Start", &shell("true")).status, 401);
    let not_a_stream = agent.client.unary("process.Process/Start", &shell("true"));
    assert_eq!(not_a_stream.0, 501);
}

#[test]
fn input_goes_to_who_takes_it() {
    let agent = Agent::start();
    let mut start = shell("read line; echo $line; exec cat");
    start["stdin"] = true.into();
    let mut stream = agent.client.stream("process.Process/Start", &start);
    let process = json!({"pid": stream.pid()});
    let send = |input: Value| {
        agent.client.unary("process.Process/SendInput", &json!({"process": process, "input": input}))
    };
    assert_eq!(send(json!({"stdin": "aGkK"})).0, 200);
    assert_eq!(send(json!({"pty": "aGkK"})).1["code"], "failed_precondition");
    assert_eq!(send(json!({})).0, 400);
    assert_eq!(send(json!({"stdin": "###"})).0, 400);
    assert_eq!(agent.client.unary("process.Process/CloseStdin", &json!({"process": process})).0, 200);
    let (events, _) = stream.all();
    assert_eq!(events[0]["data"]["stdout"], "aGkK");
    assert_eq!(send(json!({"stdin": "aGkK"})).0, 404);
}

#[test]
fn a_process_that_does_not_read_holds_the_sender_and_not_the_agent() {
    let agent = Agent::start();
    let mut start = shell("sleep 100");
    start["stdin"] = true.into();
    let mut stream = agent.client.stream("process.Process/Start", &start);
    let data = "A".repeat(1 << 20);
    let message = json!({"process": {"pid": stream.pid()}, "input": {"stdin": data}});
    let limited = agent.client.with("connect-timeout-ms", "500");
    assert_eq!(limited.unary("process.Process/SendInput", &message).1["code"], "deadline_exceeded");
    assert_eq!(agent.client.get("/health").status, 204);
}
