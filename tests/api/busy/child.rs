//! What a sandbox with the busy programs says of itself, and whether its identity differs from all others.

use std::collections::{BTreeMap, BTreeSet};

use forkd_tests::daemon::Daemon;
use forkd_tests::{TestResult, check};
use serde_json::Value;

use super::Failure;

/// How far everything is, on one line. Without programs of its own: each takes an emulator long to start.
const SAMPLE: &str = "look() {
    read python < /run/python; read node < /run/node; read files < /run/files
    read kernel < /proc/sys/kernel/random/uuid
}
say() {
    echo $python $node $files $kernel
}
look; say";

/// Everything continues, is told to end, and says what it has seen. `$1` is the sandbox whose hooks must have run.
const STOP: &str = "
more_python=$((python + 1)) more_node=$((node + 1)) more_files=$((files + 1))
for _ in $(seq 120); do
    sleep 0.5
    look
    if [ $python -gt $more_python ] && [ $node -gt $more_node ] && [ $files -gt $more_files ]; then
        say
        touch /run/stop
        break
    fi
done
for _ in $(seq 120); do
    sleep 0.5
    fork=
    if [ -e /run/fork ]; then read fork < /run/fork; fi
    if [ -e /run/python.json ] && [ -e /run/node.json ] && [ \"$fork\" = \"$1\" ]; then
        exec cat /run/python.json /run/node.json
    fi
done
echo not everything continues: $(say), hooks of $fork: $(ls /run) >&2
exit 1";

/// How far everything is.
#[derive(Debug, Clone)]
pub struct Sample {
    pub python: usize,
    pub node: usize,
    pub files: usize,
    kernel: String,
}

pub fn sample(daemon: &Daemon, id: &str) -> Result<Sample, Failure> {
    Sample::parse(&daemon.run(&["exec", id, "--", "sh", "-euc", SAMPLE])?)
}

/// What a sandbox says when its programs are told to end.
struct Last {
    /// Everything has continued between them.
    samples: [Sample; 2],
    python: Value,
    node: Value,
}

/// Ends the programs of a sandbox, of one that was forked when its hooks have run.
fn stop(daemon: &Daemon, id: &str, forked: bool) -> Result<Last, Failure> {
    let script = [SAMPLE, STOP].concat();
    let hooks_of = if forked { id } else { "" };
    let text = daemon.run(&["exec", id, "--", "sh", "-euc", &script, "sh", hooks_of])?;
    let [first, second, python, node] = text.lines().collect::<Vec<_>>()[..] else {
        return Err(format!("{text:?}").into());
    };
    Ok(Last {
        samples: [Sample::parse(first)?, Sample::parse(second)?],
        python: serde_json::from_str(python)?,
        node: serde_json::from_str(node)?,
    })
}

impl Sample {
    fn parse(line: &str) -> Result<Sample, Failure> {
        let [python, node, files, kernel] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            return Err(format!("{line:?}").into());
        };
        let (python, node, files) = (python.parse()?, node.parse()?, files.parse()?);
        Ok(Sample { python, node, files, kernel: kernel.to_owned() })
    }
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
    /// Sees sandboxes continue from where they were before their branch, ends their programs, verifies their files, and keeps
    /// their random numbers.
    pub fn add(&mut self, daemon: &Daemon, ids: &[&str], before: Option<&Sample>) -> TestResult {
        for id in ids {
            self.keep(id, stop(daemon, id, before.is_some())?, before)?;
        }
        Ok(())
    }

    fn keep(&mut self, id: &str, last: Last, before: Option<&Sample>) -> TestResult {
        let Last { samples: [first, second], python, node } = last;
        if let Some(before) = before {
            let continues = first.python >= before.python && first.node >= before.node;
            check!(continues && first.files >= before.files, "{first:?} after {before:?}");
        }
        check!(self.kernel.insert(first.kernel) && self.kernel.insert(second.kernel), "the kernel's numbers");

        let step = python["step"].as_u64().ok_or("no step")?;
        check!(python["total"] == step * (step + 1) / 2, "it has begun again: {step}");
        check!(python["files"].as_u64() >= u64::try_from(second.files).ok(), "files {}", python["files"]);
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
