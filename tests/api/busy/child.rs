//! What a sandbox with the busy programs says of itself, and whether it is somebody else than all others.

use std::collections::{BTreeMap, BTreeSet};

use forkd_tests::daemon::Daemon;
use forkd_tests::{TestResult, check};
use serde_json::Value;

use super::{Failure, eventually};

const SAMPLE: &str = "cat /run/python /run/node; wc -l < /srv/log; cat /proc/sys/kernel/random/uuid";

const PYTHON: &str = "import json; print(json.dumps({'step': step, 'total': total, 'files': guest.verify(), \
    'forks': forks, 'random': draws, 'numpy': arrays}))";
const JAVASCRIPT: &str = "console.log(JSON.stringify({ math: numbers, crypto: bytes }))";

/// How far everything is.
#[derive(Debug, Clone)]
pub struct Sample {
    pub python: usize,
    pub node: usize,
    pub files: usize,
    kernel: String,
}

pub fn sample(daemon: &Daemon, id: &str) -> Result<Sample, Failure> {
    let text = daemon.run(&["exec", id, "--", "sh", "-euc", SAMPLE])?;
    let [python, node, files, kernel] = text.lines().collect::<Vec<_>>()[..] else {
        return Err(format!("{text:?}").into());
    };
    let number = |text: &str| text.trim().parse::<usize>();
    Ok(Sample {
        python: number(python)?,
        node: number(node)?,
        files: number(files)?,
        kernel: kernel.to_owned(),
    })
}

/// The random numbers of all sandboxes, by generator.
#[derive(Debug, Default)]
pub struct Draws {
    sandboxes: Vec<Drawn>,
    kernel: BTreeSet<String>,
}

#[derive(Debug)]
struct Drawn {
    id: String,
    /// By generator: all numbers, and how many of them it may have in common with others.
    numbers: BTreeMap<&'static str, (Vec<String>, usize)>,
}

impl Draws {
    /// Sees a sandbox continue from where it was before its branch, ends its programs, verifies its files, and keeps its
    /// random numbers.
    pub fn add(&mut self, daemon: &Daemon, id: &str, before: Option<&Sample>) -> TestResult {
        let first = sample(daemon, id)?;
        if let Some(before) = before {
            let continues = first.python >= before.python && first.node >= before.node;
            check!(continues && first.files >= before.files, "{first:?} after {before:?}");
        }
        let mut second = first.clone();
        eventually("the programs continue", || {
            second = sample(daemon, id)?;
            let more =
                [(second.python, first.python), (second.node, first.node), (second.files, first.files)];
            Ok(more.iter().all(|(second, first)| *second > first + 1))
        })?;
        check!(self.kernel.insert(first.kernel) && self.kernel.insert(second.kernel), "the kernel's numbers");

        daemon.run(&["exec", id, "--", "touch", "/run/stop"])?;
        let python: Value = serde_json::from_str(&daemon.run(&["eval", id, PYTHON])?)?;
        let node = daemon.run(&["eval", "--language", "javascript", id, JAVASCRIPT])?;
        let node: Value = serde_json::from_str(&node)?;
        let step = python["step"].as_u64().ok_or("no step")?;
        check!(python["total"] == step * (step + 1) / 2, "it has begun again: {step}");
        check!(python["files"].as_u64() >= u64::try_from(second.files).ok(), "files {}", python["files"]);
        if before.is_some() {
            let last = python["forks"].as_array().and_then(|forks| forks.last());
            check!(last.is_some_and(|last| last == id), "its hooks have not run: {last:?}");
        }
        // One more than it had when it was asked first: that one may have been drawn before.
        let numbers = |list: &Value, common: usize| {
            let list = list.as_array().map(|list| list.iter().map(Value::to_string).collect());
            (list.unwrap_or_default(), if before.is_some() { common + 1 } else { usize::MAX })
        };
        let numbers = BTreeMap::from([
            ("Python's random", numbers(&python["random"], first.python)),
            ("numpy", numbers(&python["numpy"], first.python)),
            ("Math.random", numbers(&node["math"], first.node)),
            ("Node's crypto", numbers(&node["crypto"], first.node)),
        ]);
        self.sandboxes.push(Drawn { id: id.to_owned(), numbers });
        Ok(())
    }

    /// What a sandbox has drawn since it is itself, no other one has.
    pub fn check(&self) -> TestResult {
        let mut owners: BTreeMap<(&str, &str), BTreeSet<usize>> = BTreeMap::new();
        for (index, sandbox) in self.sandboxes.iter().enumerate() {
            for (generator, (numbers, _)) in &sandbox.numbers {
                for number in numbers {
                    owners.entry((generator, number)).or_default().insert(index);
                }
            }
        }
        for sandbox in &self.sandboxes {
            for (generator, (numbers, common)) in &sandbox.numbers {
                check!(!numbers.is_empty(), "{}: no numbers of {generator}", sandbox.id);
                for (index, number) in numbers.iter().enumerate().skip(*common) {
                    let others = owners.get(&(*generator, number.as_str())).map_or(0, BTreeSet::len);
                    check!(others == 1, "{}: {generator} gave {others} sandboxes number {index}", sandbox.id);
                }
            }
        }
        Ok(())
    }
}
