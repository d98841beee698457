//! What a sandbox with the busy programs says of itself, and whether it is somebody else than all others.

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

/// Everything continues, and is told to end.
const CONTINUES: &str = "
more_python=$((python + 1)) more_node=$((node + 1)) more_files=$((files + 1))
for _ in $(seq 120); do
    sleep 0.5
    look
    if [ $python -gt $more_python ] && [ $node -gt $more_node ] && [ $files -gt $more_files ]; then
        say
        exec touch /run/stop
    fi
done
echo not everything continues: $(say) >&2
exit 1";

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
    Sample::parse(&daemon.run(&["exec", id, "--", "sh", "-euc", SAMPLE])?)
}

/// Two samples, between which everything has continued. Its programs end then.
fn stop(daemon: &Daemon, id: &str) -> Result<(Sample, Sample), Failure> {
    let text = daemon.run(&["exec", id, "--", "sh", "-euc", &[SAMPLE, CONTINUES].concat()])?;
    let (first, second) = text.split_once('\n').ok_or_else(|| format!("{text:?}"))?;
    Ok((Sample::parse(first)?, Sample::parse(second)?))
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
        // Stop all of them before asking any: running programs compete with the evals for the emulated CPU.
        let stopped: Vec<_> = ids.iter().map(|id| stop(daemon, id)).collect::<Result<_, _>>()?;
        for (id, samples) in ids.iter().zip(stopped) {
            self.add_one(daemon, id, samples, before)?;
        }
        Ok(())
    }

    fn add_one(
        &mut self,
        daemon: &Daemon,
        id: &str,
        (first, second): (Sample, Sample),
        before: Option<&Sample>,
    ) -> TestResult {
        if let Some(before) = before {
            let continues = first.python >= before.python && first.node >= before.node;
            check!(continues && first.files >= before.files, "{first:?} after {before:?}");
        }
        check!(self.kernel.insert(first.kernel) && self.kernel.insert(second.kernel), "the kernel's numbers");

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
