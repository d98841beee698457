//! `forkd bench api`, with its hundred children in `make soak` only: an emulator takes two minutes for them. And `forkd bench
//! demo`, which is the same and more.

use std::fs;
use std::io::Write;

use forkd_tests::daemon::Daemon;
use forkd_tests::library::DEBIAN;
use forkd_tests::scale::count;
use forkd_tests::{TestResult, check};
use serde_json::{Value, json};

use crate::life::snapshot;

pub fn of_the_api() -> TestResult {
    let daemon = Daemon::start()?;
    snapshot(&daemon)?;
    let n = count(10, 100).to_string();
    let (code, colds) = ("numpy.zeros(5).tolist()", count(0, 5).to_string());
    let words = ["bench", "api", "--snapshot", "warm", "--n", &n, "--code", code, "--cold-boots", &colds];
    let report = daemon.json(&[&words[..], &["--singles", "2"]].concat())?;
    check!(report["output_ms"].as_f64() > report["ready_ms"].as_f64(), "{report}");
    check!(report["pause"]["seen"]["count"] == report["pause"]["branches"], "{report}");
    check!(report["pause"]["quiet"]["count"].as_u64() > report["pause"]["branches"].as_u64(), "{report}");
    check!(report["single"]["ready"]["count"] == 2, "{report}");
    let faults = |when: &str| report["counted"][when]["page_faults"]["p50"].as_u64();
    check!(faults("running") < faults("ready") && faults("ready") < faults("output"), "{report}");
    check!(report["counted"]["output"]["private_bytes"]["p50"].as_u64() > Some(0), "{report}");
    let steps: Vec<_> = report["steps"].as_array().into_iter().flatten().map(|step| &step["step"]).collect();
    for step in ["network", "cgroup", "fork", "running", "identity", "identity.hooks", "promise"] {
        check!(steps.contains(&&json!(step)), "{report}");
    }
    writeln!(std::io::stdout(), "{report}")?;
    check!(daemon.run(&["ls", "--quiet"])?.is_empty(), "nothing is left");
    Ok(())
}

pub fn of_the_main_job() -> TestResult {
    let daemon = Daemon::start()?;
    let directory = tempfile::tempdir()?;
    let out = directory.path().to_str().ok_or("a strange path")?;
    let few = ["--n", "2", "--branches", "1", "--cold-boots", "1"];
    let said = daemon.run(&[&["bench", "demo", "--image", DEBIAN, "--out", out][..], &few].concat())?;
    for what in ["cold boot of the same image", "2 forks until every result has arrived", "branched at step"]
    {
        check!(said.contains(what), "{said}");
    }
    let report: Value = serde_json::from_str(&fs::read_to_string(directory.path().join("demo.json"))?)?;
    check!(report["children"]["results"] == json!(["[0.0, 0.0, 0.0, 0.0, 0.0]"]), "{report}");
    check!(report["children"]["cold_boot"]["count"] == 1, "{report}");
    let side = |name: &str| (report["branch"][name][0].as_u64(), report["branch"][name][1].as_u64());
    for (soon, later) in [side("original"), side("branch")] {
        check!(report["branch"]["before"].as_u64() <= soon && soon < later, "{report}");
    }
    check!(fs::read_to_string(directory.path().join("demo.svg"))?.starts_with("<svg"), "a picture");
    check!(daemon.run(&["ls", "--quiet"])?.is_empty(), "nothing is left");
    Ok(())
}
