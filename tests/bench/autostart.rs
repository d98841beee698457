//! `make bench-autostart`: how long it takes a program that finds no daemon from the import of its client to its first sandbox, beside
//! the next fork of the same snapshot; and until nothing is left after the program was killed.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use forkd_tests::engine::process::Failure;
use forkd_tests::held::HeldHome;
use forkd_tests::measure::{percentile, print};
use serde_json::{Value, json};

const ROUNDS: usize = 10;
const PYTHON: &str = r#"
import time
begun = time.perf_counter()
from forkd import Sandbox
imported = time.perf_counter()
Sandbox.create("base")
first = time.perf_counter()
Sandbox.create("base")
fork = time.perf_counter()
print([1e3 * (imported - begun), 1e3 * (first - begun), 1e3 * (fork - first)], flush=True)
time.sleep(600)
"#;
const TYPESCRIPT: &str = r#"
const begun = performance.now();
const { Sandbox } = await import("forkd");
const imported = performance.now();
await Sandbox.create("base");
const first = performance.now();
await Sandbox.create("base");
const fork = performance.now();
console.log(JSON.stringify([imported - begun, first - begun, fork - first]));
setInterval(() => {}, 1000);
"#;
const SDK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../sdk");

fn main() -> Result<(), Failure> {
    let built =
        Command::new(format!("{SDK}/typescript/with-tools")).args(["./test", "--only-build"]).status()?;
    if !built.success() {
        return Err("the TypeScript client cannot be compiled".into());
    }
    let home = HeldHome::new()?;
    measure(&home, "python", || {
        let mut command = Command::new(format!("{SDK}/python/with-tools"));
        command.args(["python", "-c", PYTHON]);
        command
    })?;
    measure(&home, "typescript", || {
        let mut command = Command::new(format!("{SDK}/typescript/with-tools"));
        let script = "cd \"$FORKD_TYPESCRIPT/out\" && exec node --input-type=module -e \"$0\"";
        command.args(["sh", "-c", script, TYPESCRIPT]);
        command
    })
}

fn measure(home: &HeldHome, name: &str, client: impl Fn() -> Command) -> Result<(), Failure> {
    let mut times: [Vec<f64>; 4] = Default::default();
    for _ in 0..ROUNDS {
        let mut command = client();
        home.environment(&mut command);
        let mut child = command.env("FORKD_AUTOSTART", "1").stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("no stdout")?).read_line(&mut line)?;
        child.kill()?;
        child.wait()?;
        let gone = home.until_nothing_is_left()?.as_secs_f64() * 1e3;
        let told: Vec<f64> =
            serde_json::from_str::<Vec<Value>>(&line)?.iter().filter_map(Value::as_f64).collect();
        for (times, time) in times.iter_mut().zip(told.into_iter().chain([gone])) {
            times.push(time);
        }
    }
    let [import, first, fork, gone] = times.map(|mut times| {
        times.sort_unstable_by(f64::total_cmp);
        (percentile(&times, 50), times.last().copied())
    });
    print(&json!({
        "bench": "autostart",
        "client": name,
        "end": "the first sandbox runs, from before the import",
        "n": ROUNDS,
        "import_ms": import.0,
        "first_ms": first.0,
        "first_max_ms": first.1,
        "fork_ms": fork.0,
        "gone_ms": gone.0,
        "gone_max_ms": gone.1,
    }))
}
