//! What a sandbox is told about itself, and who may ask.

use serde_json::json;

use crate::Agent;
use crate::client::stdout;

fn init(agent: &Agent, body: &serde_json::Value) -> u16 {
    agent.client.call("POST", "/init", "application/json", body.to_string().as_bytes()).status
}

#[test]
fn the_agent_is_healthy_and_says_what_it_uses() {
    let agent = Agent::start();
    assert_eq!(agent.client.get("/health").status, 204);
    let metrics = agent.client.get("/metrics").json();
    for name in ["ts", "cpu_count", "mem_total", "mem_used", "mem_total_mib", "disk_total", "disk_used"] {
        assert!(metrics[name].as_u64().is_some_and(|number| number > 0), "{name}: {metrics}");
    }
    assert!(metrics["cpu_used_pct"].as_f64().is_some_and(|used| (0.0..=100.0).contains(&used)), "{metrics}");
    assert_eq!(agent.client.get("/nothing/here").status, 404);
}

#[test]
fn init_sets_environment_user_directory_and_token() {
    let agent = Agent::start();
    let body = json!({
        "envVars": {"COLOUR": "blue"}, "defaultWorkdir": "/usr", "timestamp": "2030-01-01T00:00:00Z", "accessToken": "secret",
    });
    assert_eq!(init(&agent, &body), 204);
    assert_eq!(agent.client.get("/health").status, 204);
    assert_eq!(agent.client.get("/envs").json()["code"], 401);
    let (status, refused) = agent.client.unary("process.Process/List", &json!({}));
    assert_eq!((status, refused["code"].as_str()), (401, Some("unauthenticated")));
    assert_eq!(agent.client.with("X-Access-Token", "wrong").get("/envs").status, 401);
    let client = agent.client.with("X-Access-Token", "secret");
    assert_eq!(client.get("/envs").json(), json!({"COLOUR": "blue"}));
    let start = json!({"process": {"cmd": "sh", "args": ["-c", "printf $COLOUR; pwd"]}, "stdin": false});
    let (events, _) = client.stream("process.Process/Start", &start).all();
    assert_eq!(stdout(&events), "blue/usr\n");
    // Later ones must know the token that holds: in the header, or by naming it.
    assert_eq!(init(&agent, &json!({"envVars": {"A": "1"}})), 401);
    assert_eq!(init(&agent, &json!({"envVars": {"A": "1"}, "accessToken": "secret"})), 204);
    let changed = client.call("POST", "/init", "application/json", br#"{"accessToken":"next"}"#);
    assert_eq!((changed.status, client.get("/envs").status), (204, 401));
    assert_eq!(client.call("POST", "/init", "application/json", b"{").status, 400);
}

#[test]
fn a_signature_opens_one_file_and_nothing_else() {
    let agent = Agent::start();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    std::fs::write(&path, "contents").unwrap();
    assert_eq!(init(&agent, &json!({"accessToken": "secret"})), 204);
    let path = path.to_str().unwrap();
    let signature = {
        use base64::Engine;
        use sha2::Digest;
        let digest = sha2::Sha256::digest(format!("{path}:read::secret"));
        format!("v1_{}", base64::engine::general_purpose::STANDARD_NO_PAD.encode(digest))
    };
    let encoded = signature.replace('+', "%2B").replace('/', "%2F");
    assert_eq!(agent.client.get(&format!("/files?path={path}")).status, 401);
    let signed = agent.client.get(&format!("/files?path={path}&signature={encoded}"));
    assert_eq!((signed.status, signed.body.as_slice()), (200, b"contents".as_slice()));
    assert_eq!(agent.client.get(&format!("/files?path={path}x&signature={encoded}")).status, 401);
    let written =
        agent.client.call("POST", &format!("/files?path={path}&signature={encoded}"), "text/plain", b"x");
    assert_eq!(written.status, 401);
}
