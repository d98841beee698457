//! `bench-api` with a few children: what it prints is whole, and nothing of it is left.

use std::process::Command;

use forkd_tests::engine::process::Failure;
use forkd_tests::{alone, binaries};
use serde_json::Value;

#[test]
fn a_line_for_each_size() -> Result<(), Failure> {
    if !alone::is_possible() {
        return Ok(());
    }
    let program = binaries::directory().join("bench-api");
    let run = Command::new(program).args(["--rounds", "1", "1", "2"]).output()?;
    assert!(run.status.success(), "{}", binaries::transcript(&run));
    let lines = String::from_utf8(run.stdout)?;
    let lines = lines.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    let sizes: Vec<_> = lines.iter().map(|line| line["n"].as_u64()).collect();
    assert_eq!(sizes, [Some(1), Some(2)], "{lines:?}");
    for line in lines {
        assert_eq!((&line["bench"], &line["end"]), (&"api".into(), &"ready".into()));
        for time in ["wall_ms", "per_child_ms", "restored_ms", "removed_ms", "fork_ms", "floor_ms", "ratio"] {
            assert!(line[time].as_f64().is_some_and(|value| value > 0.0), "{time}: {line}");
        }
        assert!(line["networks_ready"].as_u64() >= line["n"].as_u64(), "{line}");
        assert_ne!(line["cgroups"] == true, line["no_cgroups"].is_string(), "{line}");
        let steps = line["steps"].as_array().ok_or("no steps")?;
        for name in ["network", "files", "fork", "running", "identity", "promise"] {
            let step = steps.iter().find(|step| step["step"] == name);
            assert_eq!(step.map(|step| &step["n"]), Some(&line["n"]), "{name}: {line}");
        }
    }
    Ok(())
}

#[test]
fn what_is_no_size_is_refused() -> Result<(), Failure> {
    let run = Command::new(binaries::directory().join("bench-api")).arg("many").output()?;
    let said = binaries::transcript(&run);
    assert!(!run.status.success() && said.contains("numbers from 1 to 1000"), "{said}");
    Ok(())
}
