//! The benchmark of the API, against a stand-in: what it asks, and what it leaves.

use forkd_tests::engine::process::Failure;
use serde_json::{Value, json};
use snapbox::{assert_data_eq, str};

use crate::stand_in::{ID, StandIn, sandbox, snapshot, usual};
use crate::world::Home;

fn evaluated(error: Option<Value>) -> Option<(u16, String)> {
    let answer = json!({
        "result": "2", "results": [], "stdout": "", "stderr": "", "truncated": false, "error": error,
    });
    Some((200, answer.to_string()))
}

#[test]
fn every_figure_is_there_and_nothing_stays() -> Result<(), Failure> {
    let home = Home::new()?;
    let daemon = StandIn::start(home.path(), &[], |request, body| {
        if request.ends_with("/eval") {
            return evaluated(None);
        }
        if request.starts_with("POST") && request.ends_with("/branch") {
            let mut branch = snapshot("branch");
            branch["pause_us"] = 1500.into();
            return Some((201, branch.to_string()));
        }
        if request == "DELETE /v1/snapshots/branch" {
            return Some((200, json!({ "removed": ["branch"] }).to_string()));
        }
        if request == "POST /v1/snapshots" {
            let last = json!({ "snapshot": snapshot("cold") });
            return Some((200, format!("{{\"step\":\"boot\"}}\n{{\"step\":\"freeze\"}}\n{last}\n")));
        }
        if request == "DELETE /v1/snapshots/cold" {
            return Some((200, json!({ "removed": ["cold"] }).to_string()));
        }
        if request == "GET /v1/snapshots/base" {
            let mut base = snapshot("base");
            base["image"] = "sha256:1".into();
            return Some((200, base.to_string()));
        }
        if request == format!("GET /v1/sandboxes/{ID}/stats") {
            let stats = json!({
                "cpu_us": 1, "memory_private_bytes": 5, "memory_shared_bytes": 7, "disk_bytes": 0, "process_faults": 11,
                "kvm": { "exits": 13, "page_faults": 17 },
            });
            return Some((200, stats.to_string()));
        }
        if request == format!("GET /v1/sandboxes/{ID}") {
            let mut branched = sandbox();
            branched["branches"] = json!(["branch", "branch"]);
            return Some((200, branched.to_string()));
        }
        usual(request, body)
    })?;
    let text = home.stdout(&[
        "bench",
        "api",
        "--snapshot",
        "base",
        "--n",
        "1",
        "--branches",
        "2",
        "--cold-boots",
        "3",
        "--singles",
        "2",
        "--json",
    ])?;
    let report: Value = serde_json::from_str(&text)?;
    assert_eq!((&report["restored_ms"], &report["ready_ms"]), (&1.0.into(), &2.0.into()));
    for figure in ["ready_here_ms", "output_ms", "eval_ms", "removed_ms"] {
        assert!(report[figure].is_number(), "{figure}: {report}");
    }
    assert_eq!(
        (&report["pause"]["daemon"]["p50_ms"], &report["pause"]["seen"]["count"]),
        (&1.5.into(), &2.into())
    );
    assert_eq!(report["cold_boot"]["count"], 3);
    assert_eq!(
        (&report["memory"]["private_p50_bytes"], &report["memory"]["shared_p50_bytes"]),
        (&5.into(), &7.into())
    );
    assert_eq!(report["single"]["ready"]["count"], 2);
    let used = &report["counted"]["output"];
    assert_eq!((&used["page_faults"]["p50"], &used["exits"]["max"]), (&17.into(), &13.into()));
    assert_eq!((&used["process_faults"]["p99"], &used["private_bytes"]["p50"]), (&11.into(), &5.into()));
    let asked = daemon.asked();
    let count = |what: &str| asked.iter().filter(|asked| *asked == what).count();
    // To be branched, all at once, two by themselves, and those that are counted.
    assert_eq!((count("POST /v1/sandboxes"), count(&format!("DELETE /v1/sandboxes/{ID}"))), (5, 5));
    assert_eq!((count("DELETE /v1/snapshots/branch"), count("DELETE /v1/snapshots/cold")), (2, 3));
    Ok(())
}

#[test]
fn code_that_fails_is_named_and_nothing_stays() -> Result<(), Failure> {
    let home = Home::new()?;
    let daemon = StandIn::start(home.path(), &[], |request, body| match request.ends_with("/eval") {
        true => evaluated(Some(json!({ "name": "NameError", "value": "x", "traceback": "" }))),
        false => usual(request, body),
    })?;
    assert_data_eq!(
        home.run(&["bench", "api", "--snapshot", "base", "--n", "1"])?,
        str![[r#"
exit: 1
--- stderr
forkd: the code failed in sandbox ID: NameError: x

"#]]
    );
    assert!(daemon.asked().contains(&format!("DELETE /v1/sandboxes/{ID}")));
    Ok(())
}
