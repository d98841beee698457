//! Chains of snapshots in `forkd.toml`, and the images that they begin with (`image_table.rs`).
//!
//! ```toml
//! [image.python]
//! debian = ["python3", "python3-pip"]
//!
//! [snapshot.base]
//! from = "python"                    # another table, an image or a snapshot; image:NAME or snapshot:NAME for just that
//! memory = "512M"                    # a bare number is MiB
//!
//! [snapshot.pandas]
//! from = "base"
//! env = { A = "b" }
//! run = ["pip install pandas"]
//! warm_up = ["python=import pandas"] # python, javascript, typescript, bash, r, java; =@FILE for code in a file
//! ```
//!
//! The client that asks for a build reads the file, which is untrusted input. Errors that can be found without a daemon are found here,
//! before anything is made.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::image_table::{self, ImageStep, ImageTable};
use crate::recipe::{
    Language, MAX_FILE, MAX_MEMORY_MIB, MIN_MEMORY_MIB, Ready, ReadySection, Recipe, RecipeError, Size,
    Words, mib,
};

/// The most tables of one file.
pub const MAX_STEPS: usize = 64;

const MAX_VCPUS: u8 = 32;
const MAX_COMMANDS: usize = 64;
/// Less than the kernel allows for one argument.
const MAX_COMMAND: usize = 100 << 10;
const MAX_NAME: usize = 64;

#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Recipe(#[from] RecipeError),
    #[error("{}: {message}", path.display())]
    Syntax { path: PathBuf, message: String },
    #[error("{}: {key}: {problem}", path.display())]
    Wrong { path: PathBuf, key: String, problem: String },
}

/// What a file describes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Each after the one that it is based on.
    pub images: Vec<ImageStep>,
    /// Parents before children.
    pub snapshots: Vec<ChainStep>,
}

/// A snapshot to be built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainStep {
    pub name: String,
    pub from: Parent,
    pub kernel: Option<String>,
    pub vcpus: Option<u8>,
    pub memory_mib: Option<u64>,
    pub disk_mib: Option<u64>,
    pub cpu: Option<Cpu>,
    pub network: Option<bool>,
    pub host_certs: bool,
    pub e2b: bool,
    pub env: BTreeMap<String, String>,
    /// As arguments.
    pub start: Option<Vec<String>>,
    pub ready: Option<Ready>,
    pub run: Vec<String>,
    pub warm_up: Vec<WarmUp>,
}

/// What a snapshot is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parent {
    /// Another snapshot of the file.
    Step(String),
    /// An image of the file.
    ImageStep(String),
    Image(String),
    Snapshot(String),
    /// The template that `forkd e2b setup` makes ([`TEMPLATE`]), which is made if it is missing.
    Template,
    /// An image, or else a snapshot.
    Either(String),
}

/// The template that `template:` can name.
pub const TEMPLATE: &str = "code-interpreter-v1";

/// What the guest is shown of the host's CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum Cpu {
    #[serde(rename = "host")]
    Host,
    #[serde(rename = "x86-64-v2")]
    V2,
    #[serde(rename = "x86-64-v3")]
    V3,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WarmUp {
    pub language: Language,
    pub code: Code,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Code {
    Text(String),
    /// Relative to the file's directory.
    File(PathBuf),
}

#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    image: BTreeMap<String, ImageTable>,
    #[serde(default)]
    snapshot: BTreeMap<String, Table>,
}

/// The names that a table can refer to.
struct Names {
    images: BTreeSet<String>,
    snapshots: BTreeSet<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    from: String,
    kernel: Option<String>,
    vcpus: Option<u8>,
    #[serde(alias = "memory_mib")]
    memory: Option<Size>,
    #[serde(alias = "disk_mib")]
    disk: Option<Size>,
    cpu: Option<Cpu>,
    network: Option<bool>,
    #[serde(default)]
    host_certs: bool,
    #[serde(default)]
    e2b: bool,
    #[serde(default)]
    env: BTreeMap<String, String>,
    start: Option<Words>,
    ready: Option<ReadySection>,
    #[serde(default)]
    run: Vec<String>,
    #[serde(default)]
    warm_up: Vec<String>,
}

/// A key and what is wrong with it.
pub(crate) type Problem = (String, String);

impl ChainStep {
    /// A key that is given, and means something only for a snapshot that is booted from an image.
    pub fn image_key(&self) -> Option<&'static str> {
        let given = [
            ("kernel", self.kernel.is_some()),
            ("vcpus", self.vcpus.is_some()),
            ("memory", self.memory_mib.is_some()),
            ("disk", self.disk_mib.is_some()),
            ("cpu", self.cpu.is_some()),
            ("network", self.network.is_some()),
            ("host_certs", self.host_certs),
            ("e2b", self.e2b),
            ("start", self.start.is_some()),
            ("ready", self.ready.is_some()),
        ];
        given.into_iter().find_map(|(key, is_given)| is_given.then_some(key))
    }

    /// What is wrong with a key of this snapshot.
    pub fn wrong(&self, path: &Path, key: &str, problem: impl Into<String>) -> ChainError {
        let key = format!("snapshot.{}.{key}", self.name);
        ChainError::Wrong { path: path.into(), key, problem: problem.into() }
    }
}

/// Reads a file.
pub fn read(path: &Path) -> Result<Chain, ChainError> {
    let failed = |source| ChainError::Read { path: path.into(), source };
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    file.take(MAX_FILE + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > MAX_FILE {
        return Err(failed(io::ErrorKind::FileTooLarge.into()));
    }
    parse(&text, path)
}

/// Parses a text; `path` is for messages.
pub fn parse(text: &str, path: &Path) -> Result<Chain, ChainError> {
    // What else the file may say is an image's, and is checked as that.
    Recipe::parse(text, path)?;
    let document: Document = toml::from_str(text).map_err(|error| ChainError::Syntax {
        path: path.into(),
        message: error.to_string().trim_end().to_owned(),
    })?;
    let wrong = |(key, problem): Problem| ChainError::Wrong { path: path.into(), key, problem };
    let count = document.snapshot.len();
    if !(1..=MAX_STEPS).contains(&count) {
        let problem = format!("expected 1 to {MAX_STEPS} tables [snapshot.NAME], found {count}");
        return Err(wrong(("snapshot".into(), problem)));
    }
    let names = Names {
        images: document.image.keys().cloned().collect(),
        snapshots: document.snapshot.keys().cloned().collect(),
    };
    let images = image_table::check_all(document.image).map_err(wrong)?;
    let steps = document.snapshot.into_iter().map(|(name, table)| {
        let below = format!("snapshot.{}", shown(&name));
        check(name, table, &names).map_err(|(key, problem)| match key.is_empty() {
            true => (below, problem),
            false => (format!("{below}.{key}"), problem),
        })
    });
    let snapshots = steps.collect::<Result<Vec<_>, _>>().and_then(sorted).map_err(wrong)?;
    Ok(Chain { images, snapshots })
}

/// The snapshots with these names, and those of the file that they stand on, in the same order. Without names, all. Else the name that
/// is not there.
pub fn select(steps: Vec<ChainStep>, names: &[String]) -> Result<Vec<ChainStep>, String> {
    if let Some(unknown) = names.iter().find(|name| !steps.iter().any(|step| step.name == **name)) {
        return Err(unknown.clone());
    }
    if names.is_empty() {
        return Ok(steps);
    }
    let mut wanted: BTreeSet<String> = names.iter().cloned().collect();
    let mut kept: Vec<ChainStep> = Vec::new();
    // Children before parents.
    for step in steps.into_iter().rev().filter_map(|step| {
        let is_wanted = wanted.contains(&step.name);
        if let (true, Parent::Step(parent)) = (is_wanted, &step.from) {
            wanted.insert(parent.clone());
        }
        is_wanted.then_some(step)
    }) {
        kept.push(step);
    }
    kept.reverse();
    Ok(kept)
}

/// The images of the file that these snapshots are of, and those that they are based on, in the same order.
pub fn images_of(images: Vec<ImageStep>, snapshots: &[ChainStep]) -> Vec<ImageStep> {
    let wanted = snapshots.iter().filter_map(|step| match &step.from {
        Parent::ImageStep(image) => Some(image.clone()),
        _ => None,
    });
    image_table::with_bases(images, wanted.collect())
}

fn check(name: String, table: Table, names: &Names) -> Result<ChainStep, Problem> {
    let wrong = |key: &str, problem: &str| (key.to_owned(), problem.to_owned());
    if !is_name(&name) {
        return Err(("".into(), format!("invalid snapshot name: {NAME_RULE}")));
    }
    if table.vcpus.is_some_and(|vcpus| !(1..=MAX_VCPUS).contains(&vcpus)) {
        return Err(wrong("vcpus", "expected 1 to 32"));
    }
    let start = match table.start {
        Some(start) => Some(start.arguments().ok_or_else(|| wrong("start", "the command is empty"))?),
        None => None,
    };
    let ready = table.ready.map(ReadySection::check).transpose();
    let is_variable = |name: &str| !name.is_empty() && !name.contains(['=', '\0']);
    if let Some((name, _)) = table.env.iter().find(|(name, value)| !is_variable(name) || value.contains('\0'))
    {
        return Err(wrong(&format!("env.{}", shown(name)), "not a valid environment variable"));
    }
    if table.run.len() > MAX_COMMANDS || table.warm_up.len() > MAX_COMMANDS {
        let key = if table.run.len() > MAX_COMMANDS { "run" } else { "warm_up" };
        return Err(wrong(key, "expected at most 64; put several commands into one"));
    }
    if table.run.iter().any(|command| command.trim().is_empty() || command.len() > MAX_COMMAND) {
        return Err(wrong("run", "a command has 1 to 102400 bytes"));
    }
    let from = parent(&name, &table.from, names)?;
    let step = ChainStep {
        from,
        kernel: table.kernel,
        vcpus: table.vcpus,
        memory_mib: size("memory", table.memory, MIN_MEMORY_MIB)?,
        disk_mib: size("disk", table.disk, 1)?,
        cpu: table.cpu,
        network: table.network,
        host_certs: table.host_certs,
        e2b: table.e2b,
        env: table.env,
        start,
        ready: ready.map_err(|(key, problem)| wrong(key, problem))?,
        run: table.run,
        warm_up: table.warm_up.iter().map(|text| warm_up(text)).collect::<Result<_, _>>()?,
        name,
    };
    match (&step.from, step.image_key()) {
        (Parent::Step(_) | Parent::Snapshot(_) | Parent::Template, Some(key)) => Err(wrong(key, OF_IMAGES)),
        _ => Ok(step),
    }
}

/// What is wrong with a key that a snapshot of a snapshot has.
pub const OF_IMAGES: &str =
    "only valid for a snapshot of an image; move it to the snapshot that this one is based on";

fn parent(name: &str, from: &str, names: &Names) -> Result<Parent, Problem> {
    let wrong = |problem: String| ("from".to_owned(), problem);
    let parent = match from.split_once(':') {
        Some(("image", image)) if names.images.contains(image) => Parent::ImageStep(image.into()),
        Some(("image", image)) => Parent::Image(image.into()),
        Some(("snapshot", snapshot)) => Parent::Snapshot(snapshot.into()),
        Some(("template", TEMPLATE)) => Parent::Template,
        Some(("template", other)) => {
            return Err(wrong(format!("unknown template {:?}, expected {TEMPLATE}", shown(other))));
        }
        // A snapshot may have the name of its image.
        _ if names.images.contains(from) && (from == name || !names.snapshots.contains(from)) => {
            Parent::ImageStep(from.into())
        }
        _ if from == name => {
            let problem = format!("it is the snapshot itself; write \"image:{from}\" for the image {from}");
            return Err(wrong(problem));
        }
        _ if names.snapshots.contains(from) => Parent::Step(from.into()),
        _ => Parent::Either(from.into()),
    };
    match &parent {
        Parent::Image(other) | Parent::Snapshot(other) | Parent::Either(other) if other.is_empty() => {
            Err(wrong("expected the name of another table, of an image or of a snapshot".into()))
        }
        _ => Ok(parent),
    }
}

fn size(key: &str, size: Option<Size>, least: u64) -> Result<Option<u64>, Problem> {
    let wrong = |problem: String| (key.to_owned(), problem);
    let Some(size) = size else { return Ok(None) };
    let mib = mib(&size).ok_or_else(|| wrong("expected a size such as \"4G\" or 512 (MiB)".into()))?;
    match (least..=MAX_MEMORY_MIB).contains(&mib) {
        true => Ok(Some(mib)),
        false => Err(wrong(format!("expected {least}M to 1T"))),
    }
}

fn warm_up(text: &str) -> Result<WarmUp, Problem> {
    let wrong = |problem: &str| ("warm_up".to_owned(), problem.to_owned());
    let (language, code) =
        text.split_once('=').ok_or_else(|| wrong("expected LANGUAGE=CODE or LANGUAGE=@FILE"))?;
    let language = Language::ALL.into_iter().find(|known| known.name() == language);
    let language = language
        .ok_or_else(|| wrong("expected python, javascript, typescript, bash, r or java before the ="))?;
    let code = match code.strip_prefix('@') {
        Some("") => return Err(wrong("expected the path of a file after the @")),
        Some(path) => Code::File(path.into()),
        None => Code::Text(code.into()),
    };
    Ok(WarmUp { language, code })
}

/// Parents before children, else by name. Or the snapshots that stand on each other in a circle.
fn sorted(steps: Vec<ChainStep>) -> Result<Vec<ChainStep>, Problem> {
    let mut left = steps;
    let mut done: Vec<ChainStep> = Vec::new();
    while !left.is_empty() {
        let is_ready = |step: &ChainStep| match &step.from {
            Parent::Step(parent) => done.iter().any(|other| other.name == *parent),
            _ => true,
        };
        let (ready, rest): (Vec<_>, Vec<_>) = left.into_iter().partition(is_ready);
        if ready.is_empty() {
            return Err(circle(&rest));
        }
        done.extend(ready);
        left = rest;
    }
    Ok(done)
}

/// All of these stand on one of these.
fn circle(steps: &[ChainStep]) -> Problem {
    let parent = |name: &str| {
        let step = steps.iter().find(|step| step.name == name);
        step.and_then(|step| match &step.from {
            Parent::Step(parent) => Some(parent.as_str()),
            _ => None,
        })
    };
    let mut walked: Vec<&str> = steps.first().map(|step| step.name.as_str()).into_iter().collect();
    while let Some(next) = walked.last().and_then(|last| parent(last)) {
        if let Some(begin) = walked.iter().position(|name| *name == next) {
            let mut round = walked.split_off(begin);
            round.push(next);
            return (
                format!("snapshot.{}.from", round[0]),
                format!(
                    "the snapshots are based on each other in a cycle: {}; one must be based on an image",
                    round.join(" from ")
                ),
            );
        }
        walked.push(next);
    }
    ("snapshot".into(), "the snapshots are based on each other in a cycle".into())
}

pub(crate) const NAME_RULE: &str =
    "use 1 to 64 of a-z, 0-9, '.', '_' and '-', beginning with a letter or a digit";

/// Whether a snapshot can have this tag.
pub(crate) fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    (1..=MAX_NAME).contains(&name.len())
        && name.bytes().take(1).all(plain)
        && name.bytes().all(|byte| plain(byte) || b"._-".contains(&byte))
}

pub(crate) fn shown(text: &str) -> String {
    text.chars().take(80).flat_map(char::escape_default).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::recipe::{FILE, Probe};

    fn parse_text(text: &str) -> Result<Vec<ChainStep>, String> {
        let chain = parse(text, Path::new(FILE)).map_err(|error| error.to_string())?;
        Ok(chain.snapshots)
    }

    fn names(steps: &[ChainStep]) -> Vec<&str> {
        steps.iter().map(|step| step.name.as_str()).collect()
    }

    #[test]
    fn a_whole_step() {
        let text = r#"
            [snapshot.base]
            from = "image:python:3.12"
            kernel = "6.1"
            vcpus = 2
            memory = "1G"
            disk_mib = 2048
            cpu = "x86-64-v3"
            network = false
            host_certs = true
            e2b = true
            env = { A = "b" }
            start = "python3 server.py"
            ready = { port = 8080 }
            run = ["pip install pandas"]
            warm_up = ["python=import pandas", "bash=@warm.sh"]
        "#;
        let [step] = &parse_text(text).unwrap()[..] else { panic!("one step") };
        assert_eq!(step.from, Parent::Image("python:3.12".into()));
        assert_eq!((step.kernel.as_deref(), step.vcpus, step.cpu), (Some("6.1"), Some(2), Some(Cpu::V3)));
        assert_eq!((step.memory_mib, step.disk_mib, step.network), (Some(1024), Some(2048), Some(false)));
        assert!(step.host_certs && step.e2b);
        assert_eq!(step.env["A"], "b");
        assert_eq!(step.start.as_ref().unwrap()[2], "python3 server.py");
        assert_eq!(step.ready.as_ref().unwrap().probe, Probe::Port(8080));
        assert_eq!(step.run, ["pip install pandas"]);
        let code = [Code::Text("import pandas".into()), Code::File("warm.sh".into())];
        assert_eq!(step.warm_up.iter().map(|one| one.code.clone()).collect::<Vec<_>>(), code);
        assert_eq!(step.image_key(), Some("kernel"));
    }

    #[test]
    fn parents_come_before_children_and_names_are_told_apart() {
        let text = "vcpus = 2\n[snapshot.a]\nfrom = \"c\"\n[snapshot.b]\nfrom = \"python\"\n\
                    [snapshot.c]\nfrom = \"b\"\n[snapshot.d]\nfrom = \"snapshot:b\"\n[warmup]\nbash = \"x\"";
        let steps = parse_text(text).unwrap();
        assert_eq!(names(&steps), ["b", "d", "c", "a"]);
        assert_eq!(steps[0].from, Parent::Either("python".into()));
        assert_eq!(
            (&steps[1].from, &steps[2].from),
            (&Parent::Snapshot("b".into()), &Parent::Step("b".into()))
        );
        let select = |wanted: &[&str]| {
            let wanted: Vec<String> = wanted.iter().map(ToString::to_string).collect();
            super::select(steps.clone(), &wanted).map(|kept| names(&kept).join(" "))
        };
        assert_eq!(select(&[]).unwrap(), "b d c a");
        assert_eq!(select(&["c"]).unwrap(), "b c");
        assert_eq!(select(&["a", "d"]).unwrap(), "b d c a");
        assert_eq!(select(&["x"]).unwrap_err(), "x");
    }

    #[test]
    fn mistakes_are_named() {
        let many: String = (0..=MAX_STEPS).map(|n| format!("[snapshot.s{n}]\nfrom = \"i\"\n")).collect();
        let commands = format!("run = [{}]", "\"x\",".repeat(MAX_COMMANDS + 1));
        for (text, message) in [
            ("", "forkd.toml: snapshot: expected 1 to 64 tables [snapshot.NAME], found 0"),
            (&many, "forkd.toml: snapshot: expected 1 to 64 tables [snapshot.NAME], found 65"),
            ("cpus = 2", "unknown field `cpus`"),
            ("[snapshots.a]\nfrom = \"b\"", "unknown field `snapshots`"),
            ("[snapshot.a]", "missing field `from`"),
            ("[snapshot.a]\nfrom = \"b\"\nfrmo = \"c\"", "unknown field `frmo`"),
            ("[snapshot.A]\nfrom = \"b\"", "forkd.toml: snapshot.A: invalid snapshot name: use 1 to 64"),
            ("[snapshot.\"../x\"]\nfrom = \"b\"", "forkd.toml: snapshot.../x: invalid snapshot name"),
            ("[snapshot.a]\nfrom = \"\"", "forkd.toml: snapshot.a.from: expected the name of"),
            ("[snapshot.a]\nfrom = \"image:\"", "forkd.toml: snapshot.a.from: expected the name of"),
            ("[snapshot.a]\nfrom = \"a\"", "forkd.toml: snapshot.a.from: it is the snapshot itself; write"),
            (
                "[snapshot.a]\nfrom = \"b\"\n[snapshot.b]\nfrom = \"c\"\n[snapshot.c]\nfrom = \"b\"",
                "forkd.toml: snapshot.b.from: the snapshots are based on each other in a cycle: b from c from b;",
            ),
            ("[snapshot.a]\nfrom = \"i\"\nvcpus = 33", "forkd.toml: snapshot.a.vcpus: expected 1 to 32"),
            ("[snapshot.a]\nfrom = \"i\"\nmemory = 63", "forkd.toml: snapshot.a.memory: expected 64M to 1T"),
            ("[snapshot.a]\nfrom = \"i\"\nmemory = \"x\"", "forkd.toml: snapshot.a.memory: expected a size"),
            ("[snapshot.a]\nfrom = \"i\"\nmemory = 64\nmemory_mib = 64", "duplicate field"),
            ("[snapshot.a]\nfrom = \"i\"\ndisk = 0", "forkd.toml: snapshot.a.disk: expected a size"),
            ("[snapshot.a]\nfrom = \"i\"\ncpu = \"z80\"", "unknown variant `z80`"),
            ("[snapshot.a]\nfrom = \"i\"\nstart = []", "forkd.toml: snapshot.a.start: the command is empty"),
            ("[snapshot.a]\nfrom = \"i\"\nready = {}", "forkd.toml: snapshot.a.ready: give either"),
            (
                "[snapshot.a]\nfrom = \"i\"\nenv = { \"\" = \"x\" }",
                "forkd.toml: snapshot.a.env.: not a valid env",
            ),
            ("[snapshot.a]\nfrom = \"i\"\nenv = { A = 1 }", "invalid type"),
            ("[snapshot.a]\nfrom = \"i\"\nrun = [\" \"]", "forkd.toml: snapshot.a.run: a command has"),
            (
                &format!("[snapshot.a]\nfrom = \"i\"\n{commands}"),
                "forkd.toml: snapshot.a.run: expected at most",
            ),
            (
                "[snapshot.a]\nfrom = \"i\"\nwarm_up = [\"x\"]",
                "forkd.toml: snapshot.a.warm_up: expected LANG",
            ),
            (
                "[snapshot.a]\nfrom = \"i\"\nwarm_up = [\"ruby=1\"]",
                "snapshot.a.warm_up: expected python, java",
            ),
            ("[snapshot.a]\nfrom = \"i\"\nwarm_up = [\"bash=@\"]", "snapshot.a.warm_up: expected the path"),
            (
                "[snapshot.a]\nfrom = \"snapshot:b\"\nvcpus = 2",
                "forkd.toml: snapshot.a.vcpus: only valid for a",
            ),
            (
                "[snapshot.a]\nfrom = \"i\"\n[snapshot.b]\nfrom = \"a\"\nready = { port = 1 }",
                "forkd.toml: snapshot.b.ready: only valid for a snapshot of an image; move it",
            ),
        ] {
            let error = parse_text(text).unwrap_err();
            assert!(error.contains(message), "{text:?}: {error}");
        }
    }

    #[test]
    fn snapshots_are_of_images_of_the_file() {
        let text = "[image.a]\ndebian = []\n[image.b]\nfrom = \"a\"\ndockerfile = \"D\"\n[image.c]\ndebian = [\"x\"]\n\
                    [snapshot.a]\nfrom = \"a\"\nmemory = 64\n[snapshot.b]\nfrom = \"a\"\n\
                    [snapshot.d]\nfrom = \"image:b\"\n[snapshot.e]\nfrom = \"image:other\"\n\
                    [snapshot.f]\nfrom = \"template:code-interpreter-v1\"";
        let chain = parse(text, Path::new(FILE)).unwrap();
        let from = |name: &str| chain.snapshots.iter().find(|step| step.name == name).unwrap().from.clone();
        assert_eq!(from("a"), Parent::ImageStep("a".into()));
        assert_eq!(from("b"), Parent::Step("a".into()));
        assert_eq!(from("d"), Parent::ImageStep("b".into()));
        assert_eq!(from("e"), Parent::Image("other".into()));
        assert_eq!(from("f"), Parent::Template);
        let needed = |wanted: &str| {
            let steps = select(chain.snapshots.clone(), &[wanted.to_owned()]).unwrap();
            let images = images_of(chain.images.clone(), &steps);
            images.into_iter().map(|image| image.name).collect::<Vec<_>>().join(" ")
        };
        assert_eq!((needed("b").as_str(), needed("d").as_str(), needed("e").as_str()), ("a", "a b", ""));
        let error = parse_text("[snapshot.a]\nfrom = \"template:x\"").unwrap_err();
        assert!(error.contains("snapshot.a.from: unknown template \"x\", expected code-inter"), "{error}");
        let error =
            parse_text("[snapshot.a]\nfrom = \"template:code-interpreter-v1\"\nvcpus = 2").unwrap_err();
        assert!(error.contains("only valid for a snapshot of an image"), "{error}");
    }

    #[test]
    fn a_file_is_read_within_bounds() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE);
        assert!(matches!(read(&path), Err(ChainError::Read { .. })));
        std::fs::write(&path, "[snapshot.a]\nfrom = \"b\"").unwrap();
        assert_eq!(names(&read(&path).unwrap().snapshots), ["a"]);
        std::fs::write(&path, " ".repeat((1 << 20) + 1)).unwrap();
        assert!(matches!(read(&path), Err(ChainError::Read { .. })));
    }

    proptest! {
        #[test]
        fn nothing_panics(text in ".{0,80}") {
            let _ = parse_text(&text);
        }

        #[test]
        fn any_graph_is_sorted_or_refused(parents in proptest::collection::vec(0usize..12, 1..12)) {
            let text: String = (0..).zip(&parents).map(|(n, parent)| format!("[snapshot.s{n}]\nfrom = \"s{parent}\"\n")).collect();
            if let Ok(steps) = parse_text(&text) {
                for (index, step) in steps.iter().enumerate() {
                    if let Parent::Step(parent) = &step.from {
                        prop_assert!(steps[..index].iter().any(|other| other.name == *parent));
                    }
                }
                prop_assert_eq!(steps.len(), parents.len());
            }
        }
    }
}
