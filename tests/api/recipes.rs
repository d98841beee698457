//! The recipes, as users have them: `forkd recipe build`, then the recipe's own `use.py` with forked guests. Each prints a JSON line with
//! the time of a fork until it is of use, and what the same takes without a fork: boot, start and warm-up. `make recipes` runs all.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use forkd_tests::daemon::Daemon;
use forkd_tests::suite::host;
use forkd_tests::watch::report;
use forkd_tests::{TestResult, binaries, check};
use serde_json::{Value, json};

type Error = Box<dyn std::error::Error + Send + Sync>;

const TOOLS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../sdk/python/with-tools");

pub fn python_numpy() -> TestResult {
    is_built_and_used("python-numpy")
}

pub fn code_interpreter() -> TestResult {
    is_built_and_used("code-interpreter")
}

pub fn jupyter_kernel() -> TestResult {
    is_built_and_used("jupyter-kernel")
}

pub fn coding_agent() -> TestResult {
    is_built_and_used("coding-agent")
}

pub fn nodejs() -> TestResult {
    is_built_and_used("nodejs")
}

pub fn postgres_fixture() -> TestResult {
    is_built_and_used("postgres-fixture")
}

fn is_built_and_used(name: &str) -> TestResult {
    let daemon = Daemon::start()?;
    let home = tempfile::tempdir()?;
    let (built, cold) = build(&daemon, home.path(), name)?;
    let outcomes = |built: &Value| -> Vec<String> {
        let of = |key: &str| built[key].as_array().into_iter().flatten().cloned().collect::<Vec<_>>();
        [of("images"), of("snapshots")].concat().iter().map(|one| one["outcome"].to_string()).collect()
    };
    check!(outcomes(&built).last().map(String::as_str) == Some("\"made\""), "{built}");

    let (again, _) = build(&daemon, home.path(), name)?;
    check!(outcomes(&again).iter().all(|outcome| outcome == "\"unchanged\""), "{again}");
    let tag =
        built["snapshots"].as_array().and_then(|all| all.last()).map(|last| last["snapshot"]["tag"].clone());
    let listed = daemon.json(&["recipe", "ls"])?;
    let listed = listed.as_array().and_then(|all| all.iter().find(|one| one["name"] == name));
    check!(tag.is_some() && listed.map(|one| &one["snapshot"]) == tag.as_ref(), "{tag:?}: {listed:?}");

    let directory = built["directory"].as_str().ok_or("the build does not say where the files are")?;
    let mut program = daemon.program(TOOLS);
    let output = program.args(["python3", &format!("{directory}/use.py")]).stdin(Stdio::null()).output()?;
    check!(output.status.success(), "{name}: {}", binaries::transcript(&output));
    let used: Value = serde_json::from_slice(&output.stdout)?;
    check!(used["recipe"] == name && used["fork_ms"].as_array().is_some_and(|all| !all.is_empty()), "{used}");
    let mut forks: Vec<f64> =
        used["fork_ms"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
    forks.sort_by(f64::total_cmp);
    let median = *forks.get(forks.len() / 2).ok_or("no fork was timed")?;
    let figure = json!({
        "recipe": name,
        "cold_ms": u64::try_from(cold.as_millis())?,
        "fork_ms": used["fork_ms"],
        "used": used,
        "host": host()?.describe(),
    });
    report(&figure.to_string());
    check!(
        Duration::try_from_secs_f64(median / 1000.0)? < cold,
        "{name}: the median fork took {median} ms, as long as without a fork"
    );
    Ok(())
}

/// Builds a recipe: what the command says, and how long guests took until they were warm.
fn build(daemon: &Daemon, home: &Path, name: &str) -> Result<(Value, Duration), Error> {
    let run = |arguments: &[&str]| timed(daemon.command_with_library(arguments, home)?);
    let recipe = ["recipe", "build", name, "--json"];
    let mut built = run(&recipe)?;
    let mut cold = built.warm;
    // pip's words where guests do not reach PyPI, as with a mirror at a private address. Then the error says what to do.
    if !built.output.status.success() && built.said.contains("Failed to establish a new connection") {
        check!(built.said.contains("forkd e2b setup --debian-node"), "{name}: {}", built.said);
        report(&format!("{name}: guests do not reach PyPI: the template has Debian's Node.js"));
        let template = run(&["e2b", "setup", "--debian-node"])?;
        template.succeeded("forkd e2b setup")?;
        built = run(&recipe)?;
        cold = template.warm + built.warm;
    }
    built.succeeded(&format!("forkd recipe build {name}"))?;
    Ok((serde_json::from_slice(&built.output.stdout)?, cold))
}

/// A command that made snapshots.
struct Timed {
    output: Output,
    /// What it printed on stderr.
    said: String,
    /// How long guests took until they were warm.
    warm: Duration,
}

impl Timed {
    fn succeeded(&self, what: &str) -> TestResult {
        check!(self.output.status.success(), "{what}: {}\n{}", binaries::transcript(&self.output), self.said);
        Ok(())
    }
}

fn timed(mut command: Command) -> Result<Timed, Error> {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let stderr = child.stderr.take().ok_or("no pipe")?;
    let (mut warm, mut begun, mut said) = (Duration::ZERO, None::<Instant>, String::new());
    for line in BufReader::new(stderr).lines() {
        let line = line?;
        // The steps of a snapshot, which is of no use to anybody from its freeze to its forks.
        if let Some(step) = line.strip_prefix("forkd: snapshot ").and_then(|rest| rest.rsplit(": ").next()) {
            match (step, begun) {
                ("freeze", Some(since)) => {
                    warm += since.elapsed();
                    begun = None;
                }
                ("boot" | "fork", None) => begun = Some(Instant::now()),
                _ => {}
            }
        }
        said += &(line + "\n");
    }
    Ok(Timed { output: child.wait_with_output()?, said, warm })
}
