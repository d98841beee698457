//! The code interpreter over its wire: what the official client does not reach.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::Agent;
use crate::client::Lines;

/// A debug build rests at about 6 MiB.
const MUCH: u64 = 24 << 10;

fn run(agent: &Agent, request: &Value) -> Vec<Value> {
    agent.interpreter.lines("/execute", request).collect()
}

fn python(agent: &Agent, code: &str) -> Vec<Value> {
    run(agent, &json!({ "code": code }))
}

fn of_type<'a>(lines: &'a [Value], kind: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["type"] == kind).collect()
}

fn text(lines: &[Value], kind: &str) -> String {
    of_type(lines, kind).iter().filter_map(|line| line["text"].as_str()).collect()
}

fn begin(agent: &Agent, code: &str) -> Lines {
    agent.interpreter.lines("/execute", &json!({ "code": code }))
}

#[test]
fn lines_come_in_the_order_of_the_protocol() {
    let agent = Agent::start();
    let lines = python(&agent, "print('before')\n'grüße'");
    let kinds: Vec<_> = lines.iter().map(|line| line["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["number_of_executions", "stdout", "result", "end_of_execution"]);
    assert_eq!(lines[0]["execution_count"], 1);
    assert!(lines[1]["timestamp"].as_str().unwrap().ends_with('Z'), "{}", lines[1]);
    assert_eq!(lines[2], json!({ "type": "result", "text": "grüße", "is_main_result": true }));
    assert_eq!(python(&agent, "1")[0]["execution_count"], 2);
}

#[test]
fn default_contexts_are_there_before_they_run() {
    let agent = Agent::start();
    let made: Vec<Value> = (0..3)
        .map(|_| agent.interpreter.call("POST", "/contexts", "application/json", b"{}").json()["id"].clone())
        .collect();
    let lines = run(&agent, &json!({ "code": "echo $((6 * 7))", "context_id": "bash" }));
    assert_eq!(text(&lines, "stdout"), "42\n");
    // The newest is the last one, as on E2B.
    let expected = [&[json!("default"), json!("javascript")][..], &made, &[json!("bash")]].concat();
    assert_eq!(listed(&agent, "id"), expected);
    let languages = ["python", "javascript", "python", "python", "python", "bash"];
    assert_eq!(listed(&agent, "language"), languages.map(Value::from));
    assert_eq!(agent.interpreter.call("DELETE", "/contexts/javascript", "text/plain", b"").status, 204);
    assert_eq!(listed(&agent, "id"), expected);
}

#[test]
fn a_language_that_is_not_there_is_not_listed() {
    let agent = Agent::start_from("PATH=/nowhere exec \"$@\"");
    assert_eq!(listed(&agent, "id"), [json!("default")]);
}

fn listed(agent: &Agent, field: &str) -> Vec<Value> {
    let contexts = agent.interpreter.get("/contexts").json();
    contexts.as_array().into_iter().flatten().map(|context| context[field].clone()).collect()
}

#[test]
fn every_line_is_one_chunk_of_ascii() {
    let agent = Agent::start();
    let code = json!({ "code": "print('grüße 😀')" }).to_string();
    let mut stream = agent.interpreter.send("POST", "/execute", "application/json", code.as_bytes());
    crate::client::head(&mut stream);
    while let Some(chunk) = crate::client::chunk(&mut stream) {
        assert!(chunk.is_ascii() && chunk.ends_with(b"\n"), "{}", String::from_utf8_lossy(&chunk));
        assert_eq!(chunk.iter().filter(|byte| **byte == b'\n').count(), 1);
    }
}

#[test]
fn wrong_requests_are_refused_in_words() {
    let agent = Agent::start();
    let refuse = |body: Value| {
        let response =
            agent.interpreter.call("POST", "/execute", "application/json", body.to_string().as_bytes());
        (response.status, String::from_utf8(response.body).unwrap())
    };
    assert_eq!(refuse(json!({ "code": "1", "context_id": "a", "language": "python" })).0, 400);
    let (status, message) = refuse(json!({ "code": "1", "context_id": "nobody" }));
    assert_eq!((status, message.as_str()), (404, "Context nobody not found"));
    let (status, message) = refuse(json!({ "code": "1", "language": "cobol" }));
    assert!(status == 400 && message.contains("cobol"), "{status} {message}");
    assert_eq!(refuse(json!({})).0, 400);
    assert_eq!(refuse(json!("nonsense")).0, 400);
    let cwd = json!({ "cwd": "/no/such/directory" }).to_string();
    assert_eq!(agent.interpreter.call("POST", "/contexts", "application/json", cwd.as_bytes()).status, 400);
    assert_eq!(agent.interpreter.get("/health").status, 200);
}

#[test]
fn executions_of_one_context_wait_for_each_other() {
    let agent = Agent::start();
    python(&agent, "import time\nevents = []");
    let mut first = begin(&agent, "events.append('a'); time.sleep(0.5); events.append('b')");
    assert_eq!(first.next().unwrap()["type"], "number_of_executions");
    let second = python(&agent, "events.append('c'); events");
    assert_eq!(text(&second, "result"), "['a', 'b', 'c']");
    assert_eq!(first.last().unwrap()["type"], "end_of_execution");
}

#[test]
fn a_client_that_leaves_the_queue_takes_its_code_along() {
    let agent = Agent::start();
    python(&agent, "ran = []\nimport time");
    let mut first = begin(&agent, "time.sleep(1)");
    first.next();
    drop(begin(&agent, "ran.append(1)"));
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(text(&python(&agent, "ran"), "result"), "[]");
}

#[test]
fn an_endless_printer_with_a_slow_client_waits() {
    let agent = Agent::start();
    let mut lines = begin(&agent, "while True: print('x' * 1000)");
    lines.next();
    lines.next();
    std::thread::sleep(Duration::from_secs(1));
    assert!(agent.resident() < MUCH, "{} KiB", agent.resident());
    assert_eq!(agent.interpreter.get("/health").status, 200);
    drop(lines);
    let begun = Instant::now();
    assert_eq!(text(&python(&agent, "40 + 2"), "result"), "42");
    assert!(begun.elapsed() < Duration::from_secs(10), "the printer was not interrupted");
}

#[test]
fn much_output_arrives_whole() {
    let agent = Agent::start();
    let code = "import sys\nfor i in range(200000): print(i)\nsys.stderr.write('e' * 3000000)\nNone";
    let lines = python(&agent, code);
    let expected: String = (0..200_000).map(|number| format!("{number}\n")).collect();
    assert!(text(&lines, "stdout") == expected, "not a line is lost");
    assert_eq!(text(&lines, "stderr").len(), 3_000_000);
    assert!(agent.resident() < MUCH, "{} KiB", agent.resident());
}

#[test]
fn silence_is_filled() {
    let agent = Agent::start();
    let lines = python(&agent, "import time\ntime.sleep(6)");
    assert_eq!(of_type(&lines, "keepalive").len(), 1);
}

#[test]
fn a_killed_interpreter_says_so_and_comes_back() {
    let agent = Agent::start();
    let pid = text(&python(&agent, "import os\nstate = 1\nos.getpid()"), "result");
    let kill = |pid: &str| {
        assert!(std::process::Command::new("kill").args(["-9", pid]).status().unwrap().success());
    };
    let mut running = begin(&agent, "print('here')\nimport time\ntime.sleep(100)");
    assert_eq!(running.find(|line| line["type"] == "stdout").unwrap()["text"], "here\n");
    kill(&pid);
    let rest: Vec<Value> = running.collect();
    assert_eq!(rest[0]["name"], "InterpreterEnded");
    assert!(rest[0]["value"].as_str().unwrap().contains("signal: killed"), "{}", rest[0]);
    assert_eq!(rest.last().unwrap()["type"], "end_of_execution");
    let pid = text(&python(&agent, "import os\nos.getpid()"), "result");
    kill(&pid);
    std::thread::sleep(Duration::from_millis(200));
    let lines = python(&agent, "state");
    assert!(text(&lines, "stderr").contains("had ended (signal: killed)"), "{lines:?}");
    assert_eq!(of_type(&lines, "error")[0]["name"], "NameError");
}

#[test]
fn a_shell_that_is_killed_while_others_print_is_noticed() {
    let agent = Agent::start();
    let code = "while true; do echo noise; done & sleep 0.2; kill -9 $$; sleep 100";
    let begun = Instant::now();
    let lines = run(&agent, &json!({ "code": code, "language": "bash" }));
    assert_eq!(of_type(&lines, "error")[0]["name"], "InterpreterEnded");
    assert!(begun.elapsed() < Duration::from_secs(20));
}

#[test]
fn typescript_runs_or_says_what_it_needs() {
    let agent = Agent::start();
    let lines = run(&agent, &json!({ "code": "const n: number = 42; n", "language": "ts" }));
    match of_type(&lines, "error").first() {
        Some(error) => assert!(error["value"].as_str().unwrap().contains("needs Node.js"), "{error}"),
        None => assert_eq!(text(&lines, "result"), "42"),
    }
}

#[test]
fn a_restart_does_not_wait_for_what_runs() {
    let agent = Agent::start();
    let mut running = begin(
        &agent,
        "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('on')\ntime.sleep(100)",
    );
    running.find(|line| line["type"] == "stdout").unwrap();
    let restarted = agent.interpreter.call("POST", "/contexts/default/restart", "application/json", b"");
    assert_eq!(restarted.status, 200);
    let rest: Vec<Value> = running.collect();
    assert_eq!(rest[0]["name"], "ContextEnded");
    assert_eq!(python(&agent, "1")[0]["execution_count"], 1);
    assert_eq!(agent.interpreter.call("DELETE", "/contexts/default", "text/plain", b"").status, 204);
    assert_eq!(agent.interpreter.call("DELETE", "/contexts/default", "text/plain", b"").status, 404);
}

#[test]
fn code_that_forks_or_writes_nonsense_does_not_confuse_the_agent() {
    let agent = Agent::start();
    let lines = python(&agent, "import os\nif os.fork() == 0: pass\nelse: os.wait()\n7");
    assert_eq!(text(&lines, "result"), "7");
    let garbage =
        "import os\nfor fd in range(3, 20):\n    try: os.write(fd, b'garbage\\n')\n    except OSError: pass";
    let lines = python(&agent, garbage);
    assert_eq!(of_type(&lines, "error")[0]["name"], "InterpreterEnded", "{lines:?}");
    assert_eq!(text(&python(&agent, "6 * 7"), "result"), "42");
}

#[test]
fn an_interpreter_that_is_not_there_is_told() {
    let agent = Agent::start_from("PATH=/nowhere exec \"$@\"");
    let lines = python(&agent, "1");
    let error = of_type(&lines, "error")[0];
    assert_eq!(error["name"], "InterpreterUnavailable");
    assert!(error["value"].as_str().unwrap().contains("python3"), "{error}");
    assert_eq!(agent.interpreter.call("POST", "/contexts", "application/json", b"{}").status, 501);
}

/// R is started by a shell, which is there without it.
#[test]
fn an_image_without_r_or_java_is_told_as_any_other() {
    let programs = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/bin/sh", programs.path().join("sh")).unwrap();
    let agent = Agent::start_from(&format!("PATH={} exec \"$@\"", programs.path().display()));
    for (language, program) in [("r", "R"), ("java", "java")] {
        let lines = run(&agent, &json!({ "code": "1", "language": language }));
        let error = of_type(&lines, "error")[0];
        assert_eq!(error["name"], "InterpreterUnavailable");
        assert_eq!(error["value"], format!("there is no program '{program}'"));
        let body = json!({ "language": language }).to_string();
        let refused = agent.interpreter.call("POST", "/contexts", "application/json", body.as_bytes());
        assert_eq!(refused.status, 501);
    }
}

#[test]
fn bash_keeps_its_state_through_an_interrupt() {
    let agent = Agent::start();
    let bash = |code: &str| run(&agent, &json!({ "code": code, "language": "bash" }));
    bash("word=kept; cd /tmp");
    let mut endless = agent
        .interpreter
        .lines("/execute", &json!({ "code": "echo on; while true; do :; done", "language": "bash" }));
    endless.find(|line| line["type"] == "stdout").unwrap();
    drop(endless);
    assert_eq!(text(&bash("echo $word $PWD"), "stdout"), "kept /tmp\n");
    let lines = bash("echo 'it'\\''s'; read answer || echo no input; exit 5");
    assert_eq!(text(&lines, "stdout"), "it's\nno input\n");
    assert!(of_type(&lines, "error")[0]["value"].as_str().unwrap().contains("exit status 5"));
    assert_eq!(text(&bash("echo ${word-gone}"), "stdout"), "gone\n");
}

#[test]
fn an_interrupt_ends_code_and_then_its_interpreter() {
    let agent = Agent::start();
    let interrupt = |context: &str, grace_ms: u64| {
        let body = json!({ "grace_ms": grace_ms }).to_string();
        let path = format!("/contexts/{context}/interrupt");
        agent.interpreter.call("POST", &path, "application/json", body.as_bytes())
    };
    let busy =
        || agent.interpreter.call("GET", "/contexts", "application/json", b"").json()[0]["busy"].clone();
    assert_eq!(interrupt("none", 1000).status, 404);
    python(&agent, "state = 1");
    assert_eq!((interrupt("default", 1000).json(), busy()), (json!({ "restarted": false }), json!(false)));

    let mut running = begin(&agent, "print('here')\nimport time\ntime.sleep(100)");
    running.find(|line| line["type"] == "stdout").unwrap();
    assert_eq!(busy(), true);
    assert_eq!(interrupt("default", 20_000).json(), json!({ "restarted": false }));
    assert_eq!(running.find(|line| line["type"] == "error").unwrap()["name"], "KeyboardInterrupt");
    assert_eq!((text(&python(&agent, "state"), "result"), busy()), ("1".into(), json!(false)));

    // Code that ignores it goes with its interpreter, and what waited behind it runs in the next one.
    let deaf =
        "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('deaf')\ntime.sleep(100)";
    let mut running = begin(&agent, deaf);
    running.find(|line| line["type"] == "stdout").unwrap();
    assert_eq!(interrupt("default", 100).json(), json!({ "restarted": true }));
    assert_eq!(running.find(|line| line["type"] == "error").unwrap()["name"], "ContextEnded");
    assert_eq!(of_type(&python(&agent, "state"), "error")[0]["name"], "NameError");
}

#[test]
fn a_fork_gives_warm_interpreters_an_identity_of_their_own() {
    let agent = Agent::start();
    let warm = "import random, forkd_guest\nseen = []\nforkd_guest.on_fork(lambda: seen.append(forkd_guest.identity['index']))\nrandom.seed(1)";
    let request = json!({ "context": "warm", "language": "python", "code": warm });
    let lines: Vec<Value> = agent.interpreter.lines("/forkd/warm", &request).collect();
    assert!(of_type(&lines, "error").is_empty(), "{lines:?}");
    run(&agent, &json!({ "code": "RANDOM=1", "language": "bash" }));
    let control = |path: &str, body: &Value| {
        agent.client.call("POST", path, "application/json", body.to_string().as_bytes())
    };
    // The host's processes are not frozen: only those of a guest are the agent's.
    let closed = control("/forkd/close", &json!({}));
    assert_eq!((closed.status, &closed.json()["frozen"]), (200, &json!(false)));
    let early = std::thread::spawn({
        let interpreter = agent.interpreter.clone();
        move || {
            interpreter.lines("/execute", &json!({ "code": "seen, random.random(), __import__('os').environ['COLOUR']", "context_id": "warm" })).collect::<Vec<Value>>()
        }
    });
    std::thread::sleep(Duration::from_millis(300));
    assert!(!early.is_finished(), "the gate is open");
    let identity = json!({ "version": 1, "generation": 1, "id": "i1", "index": 4, "env": { "COLOUR": "red" },
        "hostname": "never-on-a-host", "unix_time_ns": 1, "access_token": "secret" });
    let response = control("/forkd/identity", &identity);
    assert_eq!((response.status, &response.json()["ok"]), (200, &json!(true)), "{}", response.json());
    let skipped: Vec<_> = response.json()["steps"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|step| step["skipped"] == true)
        .map(|step| step["step"].clone())
        .collect();
    assert_eq!(skipped, ["clock", "hostname"]);
    // It came before the token and is checked after it.
    assert_eq!(early.join().unwrap(), Vec::<Value>::new());
    let interpreter = agent.interpreter.with("X-Access-Token", "secret");
    let execute = |request: &Value| interpreter.lines("/execute", request).collect::<Vec<Value>>();
    let told = text(
        &execute(
            &json!({ "code": "seen, random.random() != 0.13436424411240122, __import__('os').environ['COLOUR']", "context_id": "warm" }),
        ),
        "result",
    );
    assert_eq!(told, "([4], True, 'red')");
    let random = text(&execute(&json!({ "code": "echo $RANDOM $COLOUR", "language": "bash" })), "stdout");
    assert!(random.ends_with(" red\n") && random != "16807 red\n", "{random}");
    assert_eq!(
        agent.interpreter.call("POST", "/execute", "application/json", b"{\"code\":\"1\"}").status,
        401
    );
}

/// An interpreter that rests learns of forks with its next code; one that has a thread learns of them at once, and so does Node.js
/// whose timers run.
#[test]
fn a_fork_is_told_before_any_code_sees_it() {
    let agent = Agent::start();
    let directory = tempfile::tempdir().unwrap();
    let seen = |name: &str| {
        let path = directory.path().join(name);
        let give_up = Instant::now() + Duration::from_secs(30);
        while !std::fs::read_to_string(&path).is_ok_and(|text| text == "2 blue") {
            assert!(Instant::now() < give_up, "{name} was not told");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let thread = format!(
        "import threading, time, forkd_guest, os\n\
         def look():\n    while True:\n        time.sleep(0.01)\n        \
         new = '%s %s' % (forkd_guest.identity.get('index'), os.environ.get('COLOUR'))\n        \
         open('{path}.new', 'w').write(new)\n        os.rename('{path}.new', '{path}')\n\
         threading.Thread(target=look, daemon=True).start()",
        path = directory.path().join("python").display()
    );
    let timer = format!(
        "setInterval(() => {{ fs.writeFileSync('{path}.new', `${{globalThis.forkd_identity?.index}} ${{process.env.COLOUR}}`); \
         fs.renameSync('{path}.new', '{path}') }}, 10)",
        path = directory.path().join("node").display()
    );
    let warm = |context: &str, language: &str, code: &str| {
        let request = json!({ "context": context, "language": language, "code": code });
        let lines: Vec<Value> = agent.interpreter.lines("/forkd/warm", &request).collect();
        assert!(of_type(&lines, "error").is_empty(), "{lines:?}");
    };
    warm("rests", "python", "import random\nrandom.seed(1)");
    warm("thread", "python", &thread);
    warm("timer", "javascript", &timer);
    for (generation, env) in
        [(1, json!({ "COLOUR": "red", "SHAPE": "round" })), (2, json!({ "COLOUR": "blue" }))]
    {
        let identity =
            json!({ "version": 1, "generation": generation, "id": "i1", "index": generation, "env": env });
        let response =
            agent.client.call("POST", "/forkd/identity", "application/json", identity.to_string().as_bytes());
        assert_eq!(response.json()["ok"], true, "{}", response.json());
    }
    for name in ["python", "node"] {
        seen(name);
    }
    let code = "import os, forkd_guest\n\
                forkd_guest.identity['index'], os.environ['COLOUR'], os.environ['SHAPE'], random.random() != 0.13436424411240122";
    let told = text(&run(&agent, &json!({ "code": code, "context_id": "rests" })), "result");
    assert_eq!(told, "(2, 'blue', 'round', True)");
}

/// Gives the agent an identity while code runs in one context.
fn fork_while_busy(agent: &Agent, context: &str, env: &Value) {
    let identity = json!({ "version": 1, "generation": 1, "id": "i1", "env": env });
    let response =
        agent.client.call("POST", "/forkd/identity", "application/json", identity.to_string().as_bytes());
    let response = response.json();
    assert_eq!((&response["ok"], &response["busy"]), (&json!(true), &json!([context])), "{response}");
}

#[test]
fn a_fork_while_code_runs_reseeds_it() {
    let agent = Agent::start();
    python(
        &agent,
        "import random, time, forkd_guest\nforkd_guest.on_fork(lambda: seen.append(1))\nseen = []",
    );
    // Also in a process that it has forked. A sleep is not cut short.
    let code = "import os, sys, types\nrandom.seed(1)\nread, write = os.pipe()\nchild = os.fork()\nbegun = time.monotonic()\n\
        if child: print('on')\ntime.sleep(1.5)\n\
        if not child: os.write(write, str(random.random()).encode()); os._exit(0)\n\
        slept = time.monotonic() - begun\nos.waitpid(child, 0)\n\
        len({random.random(), float(os.read(read, 100)), 0.13436424411240122}), slept >= 1.5, seen";
    let mut running = begin(&agent, code);
    running.find(|line| line["type"] == "stdout").unwrap();
    // So that the child sleeps, too.
    std::thread::sleep(Duration::from_millis(300));
    fork_while_busy(&agent, "default", &json!({ "COLOUR": "red" }));
    let rest: Vec<Value> = running.collect();
    assert_eq!(text(&rest, "result"), "(3, True, [])", "{rest:?}");
    let after = python(&agent, "seen, __import__('os').environ['COLOUR'], forkd_guest.identity['id']");
    assert_eq!(text(&after, "result"), "([1], 'red', 'i1')");
}

#[test]
fn a_generator_that_cannot_be_reseeded_does_not_disturb_the_code() {
    let agent = Agent::start();
    // A module as it is while it is imported: without its functions.
    let code = "import random, sys, time, types\nsys.modules['numpy.random'] = types.ModuleType('half')\nrandom.seed(1)\n\
        print('on')\ntime.sleep(1)\nrandom.random() != 0.13436424411240122";
    let mut running = begin(&agent, code);
    running.find(|line| line["type"] == "stdout").unwrap();
    fork_while_busy(&agent, "default", &json!({}));
    let rest: Vec<Value> = running.collect();
    assert_eq!(text(&rest, "result"), "True", "{rest:?}");
    // What went wrong is told to the next one who listens.
    let next = python(&agent, "6 * 7");
    assert_eq!(text(&next, "result"), "42");
    assert!(text(&next, "stderr").contains("[after the fork: reseeding numpy.random: "), "{next:?}");
}

#[test]
fn a_fork_while_javascript_runs_is_reported_and_followed() {
    let agent = Agent::start();
    let javascript = |code: &str| json!({ "code": code, "language": "javascript" });
    for code in [
        // Code that never yields, and code that waits.
        "console.log('on'); const end = Date.now() + 1000; while (Date.now() < end) Math.random(); 'ended'",
        "console.log('on'); await new Promise((done) => setTimeout(done, 1000)); 'ended'",
    ] {
        let agent = Agent::start();
        let mut running = agent.interpreter.lines("/execute", &javascript(code));
        running.find(|line| line["type"] == "stdout").unwrap();
        fork_while_busy(&agent, "javascript", &json!({ "COLOUR": "red" }));
        let rest: Vec<Value> = running.collect();
        assert_eq!(text(&rest, "result"), "ended", "{rest:?}");
        let after = run(&agent, &javascript("`${process.env.COLOUR} ${forkd_identity.id}`"));
        assert_eq!(text(&after, "result"), "red i1");
    }
    // The kernel's random numbers, with the checks that Node.js makes.
    let code = "const crypto = require('crypto'); const seen = [];\n\
        for (const call of [() => crypto.randomBytes(-1), () => crypto.randomInt(5, 1)]) try { call() } catch (error) { seen.push(error.code) }\n\
        const part = crypto.randomFillSync(new Uint16Array(40), 1, 38);\n\
        const number = await new Promise((done) => crypto.randomInt(3, 5, (_, number) => done(number)));\n\
        [...seen, crypto.randomBytes(5).length, crypto.randomUUID().length, part[0] + part[39], part[1] + part[38] > 0, number >= 3 && number < 5].join()";
    let lines = run(&agent, &javascript(code));
    assert_eq!(text(&lines, "result"), "ERR_OUT_OF_RANGE,ERR_OUT_OF_RANGE,5,36,0,true,true", "{lines:?}");
}

#[test]
fn a_fork_while_a_shell_runs_lets_it_wait() {
    let agent = Agent::start();
    let bash = |code: &str| json!({ "code": code, "language": "bash" });
    let mut running =
        agent.interpreter.lines("/execute", &bash("echo on; { sleep 1; echo slept; } & wait; echo $?"));
    running.find(|line| line["type"] == "stdout").unwrap();
    fork_while_busy(&agent, "bash", &json!({ "COLOUR": "red" }));
    let rest: Vec<Value> = running.collect();
    assert_eq!(text(&rest, "stdout"), "slept\n0\n", "{rest:?}");
    assert_eq!(text(&run(&agent, &bash("echo $COLOUR")), "stdout"), "red\n");
}
