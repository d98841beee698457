//! Carries a Dockerfile out, step by step, on disks that someone else keeps.
//!
//! Each step that changes the disk has a key: the digest of the key before it and of all that the step depends on. A disk
//! that is kept under a step's key is what the step would make, so the build begins after the last such step.

use std::collections::{BTreeMap, BTreeSet};

use forkd_source::context::{Context, items_digest};
use serde::Serialize;

use super::runner::{BuildError, BuildOptions, Built, CopyFromStep, CopyStep, RunStep, Runner};
use super::words::{Variables, expand, split};
use super::{Base, Command, Copy, Dockerfile, Instruction, Line, Stage};
use crate::digest::{Digest, Hasher};
use crate::images::Config;
use crate::progress::Progress;

/// Builds the target.
pub fn build<R: Runner>(
    dockerfile: &Dockerfile,
    context: &Context,
    options: &BuildOptions,
    runner: &mut R,
    progress: &dyn Progress,
) -> Result<Built<R::Disk>, BuildError<R::Error>>
where
    R::Error: 'static,
{
    check_arguments(dockerfile, options)?;
    let target = match &options.target {
        Some(name) => find_stage(&dockerfile.stages, name).ok_or(BuildError::NoStage(name.clone()))?,
        None => dockerfile.stages.len() - 1,
    };
    let global = globals(dockerfile, options)?;
    let mut build = Build { dockerfile, context, options, runner, progress, global, built: BTreeMap::new() };
    for index in build.needed(target)? {
        let done = build.stage(index)?;
        build.built.insert(index, done);
    }
    build.built.remove(&target).ok_or_else(|| BuildError::NoStage(target.to_string()))
}

/// A typing error in a build argument would otherwise go unnoticed.
fn check_arguments<E: std::error::Error>(
    dockerfile: &Dockerfile,
    options: &BuildOptions,
) -> Result<(), BuildError<E>> {
    let lines = dockerfile.stages.iter().flat_map(|stage| &stage.instructions);
    let texts = lines.filter_map(|line| match &line.instruction {
        Instruction::Arg(text) => Some(text.as_str()),
        _ => None,
    });
    let texts = texts.chain(dockerfile.arguments.iter().map(|argument| argument.text.as_str()));
    let declared: BTreeSet<&str> = texts
        .flat_map(str::split_whitespace)
        .map(|word| word.split_once('=').map_or(word, |(name, _)| name))
        .collect();
    match options.arguments.keys().find(|name| !declared.contains(name.as_str())) {
        Some(name) => Err(BuildError::UnknownArgument(name.clone())),
        None => Ok(()),
    }
}

/// The variables that `FROM` sees.
fn globals<E: std::error::Error>(
    dockerfile: &Dockerfile,
    options: &BuildOptions,
) -> Result<Variables, BuildError<E>> {
    let mut variables = Variables::new();
    for argument in &dockerfile.arguments {
        let word = |source| BuildError::Word { line: argument.line, source };
        for declared in split(&argument.text, &variables, dockerfile.escape).map_err(word)? {
            let (name, default) = declared.split_once('=').unwrap_or((&declared, ""));
            let value = options.arguments.get(name).map_or(default, String::as_str);
            variables.insert(name.into(), value.into());
        }
    }
    Ok(variables)
}

fn find_stage(stages: &[Stage], name: &str) -> Option<usize> {
    let lower = name.to_ascii_lowercase();
    let by_name = stages.iter().position(|stage| stage.name.as_ref() == Some(&lower));
    by_name.or_else(|| name.parse().ok().filter(|index| *index < stages.len()))
}

struct Build<'a, R: Runner> {
    dockerfile: &'a Dockerfile,
    context: &'a Context,
    options: &'a BuildOptions,
    runner: &'a mut R,
    progress: &'a dyn Progress,
    global: Variables,
    built: BTreeMap<usize, Built<R::Disk>>,
}

/// A step that changes the disk.
enum Action<D> {
    Run(RunStep),
    Copy(CopyStep),
    CopyFrom { from: From<D>, step: CopyFromStep },
    MakeDirectory { path: String, owner: Option<String> },
}

enum From<D> {
    Stage(usize),
    Disk(D),
}

/// What is known while a stage is read.
struct StageState {
    config: Config,
    arguments: Variables,
    key: Digest,
}

impl StageState {
    /// What words see: `ENV` wins over `ARG`.
    fn variables(&self) -> Variables {
        let mut variables = self.arguments.clone();
        variables.extend(self.config.env.clone());
        variables
    }

    fn workdir(&self) -> &str {
        self.config.workdir.as_deref().unwrap_or("/")
    }

    fn shell(&self, command: &Command) -> Vec<String> {
        match command {
            Command::Exec(words) => words.clone(),
            Command::Shell(text) => {
                let default = ["/bin/sh".to_owned(), "-c".to_owned()];
                let shell = if self.config.shell.is_empty() { &default[..] } else { &self.config.shell };
                shell.iter().cloned().chain([text.clone()]).collect()
            }
        }
    }
}

impl<R: Runner> Build<'_, R>
where
    R::Error: 'static,
{
    /// The stages that a stage needs, itself last.
    fn needed(&self, target: usize) -> Result<Vec<usize>, BuildError<R::Error>> {
        let mut needed = BTreeSet::from([target]);
        // Stages use only stages before them.
        for index in (0..=target).rev() {
            if !needed.contains(&index) {
                continue;
            }
            let stage = &self.dockerfile.stages[index];
            let from = self.word(&stage.from, &self.global, stage.line)?;
            needed.extend(find_named(&self.dockerfile.stages[..index], &from));
            for line in &stage.instructions {
                if let Instruction::Copy(Copy { from: Some(from), .. }) = &line.instruction {
                    let from = self.word(from, &self.global, line.line)?;
                    needed.extend(find_stage(&self.dockerfile.stages[..index], &from));
                }
            }
        }
        Ok(needed.into_iter().collect())
    }

    fn word(&self, text: &str, variables: &Variables, line: usize) -> Result<String, BuildError<R::Error>> {
        expand(text, variables, self.dockerfile.escape).map_err(|source| BuildError::Word { line, source })
    }

    fn stage(&mut self, index: usize) -> Result<Built<R::Disk>, BuildError<R::Error>> {
        let stage = &self.dockerfile.stages[index];
        let from = self.word(&stage.from, &self.global, stage.line)?;
        let parent = find_named(&self.dockerfile.stages[..index], &from);
        let failed = |line| move |source| BuildError::Runner { line, source };
        self.progress.step(&format!("FROM {from}"));
        // A stage that another one begins with is used again: under its key, if it has one.
        let (mut disk, state) = match parent {
            Some(parent) => {
                let before = self.built.get(&parent).ok_or_else(|| BuildError::NoStage(from.clone()))?;
                let (key, config) = (before.key, before.config.clone());
                self.runner.keep(key, &before.disk).map_err(failed(stage.line))?;
                let disk = self.runner.cached(key).map_err(failed(stage.line))?;
                let disk = disk.ok_or_else(|| {
                    wrong(stage.line, "the stage that it is based on is missing from the build cache")
                })?;
                (disk, StageState { config, arguments: Variables::new(), key })
            }
            None => {
                let base = self.runner.base(&Base::parse(&from)).map_err(failed(stage.line))?;
                let key = Hasher::new("forkd build 1").part(base.2.hex().as_bytes()).finish();
                (base.0, StageState { config: base.1, arguments: Variables::new(), key })
            }
        };
        let mut state = state;
        let mut actions = Vec::new();
        for line in &stage.instructions {
            if let Some(action) = self.read(line, index, &mut state)? {
                actions.push((line.line, state.key, action));
            }
        }
        let mut first = 0;
        for (number, (line, key, _)) in actions.iter().enumerate().rev() {
            if let Some(kept) = self.runner.cached(*key).map_err(failed(*line))? {
                let how_many = format!("{} of {} steps are cached", number + 1, actions.len());
                self.progress.step(&how_many);
                (disk, first) = (kept, number + 1);
                break;
            }
        }
        for (line, key, action) in actions.into_iter().skip(first) {
            if self.progress.is_cancelled() {
                return Err(BuildError::Cancelled);
            }
            disk = self.carry_out(disk, line, action)?;
            self.runner.keep(key, &disk).map_err(failed(line))?;
        }
        let last = stage.instructions.last().map_or(stage.line, |line| line.line);
        let disk = self.runner.settle(state.key, disk).map_err(failed(last))?;
        Ok(Built { disk, config: state.config, key: state.key })
    }

    fn carry_out(
        &mut self,
        disk: R::Disk,
        line: usize,
        action: Action<R::Disk>,
    ) -> Result<R::Disk, BuildError<R::Error>> {
        let step = |what: &str| format!("line {line}: {}", what.chars().take(100).collect::<String>());
        let result = match action {
            Action::Run(run) => {
                self.progress.step(&step(&format!("RUN {}", run.arguments.join(" "))));
                self.runner.run(disk, &run)
            }
            Action::Copy(copy) => {
                self.progress.step(&step(&format!("COPY {} files", copy.items.len())));
                self.runner.copy(disk, self.context, &copy)
            }
            Action::CopyFrom { from, step: copy } => {
                self.progress.step(&step(&format!("COPY {}", copy.sources.join(" "))));
                match &from {
                    From::Disk(from) => self.runner.copy_from(disk, from, &copy),
                    From::Stage(index) => match self.built.get(index) {
                        Some(built) => self.runner.copy_from(disk, &built.disk, &copy),
                        None => return Err(BuildError::NoStage(index.to_string())),
                    },
                }
            }
            Action::MakeDirectory { path, owner } => {
                self.progress.step(&step(&format!("WORKDIR {path}")));
                self.runner.make_directory(disk, &path, owner.as_deref())
            }
        };
        result.map_err(|source| BuildError::Runner { line, source })
    }

    /// Takes an instruction into the state, and says what it does to the disk. The state's key is then the step's.
    fn read(
        &mut self,
        line: &Line,
        stage: usize,
        state: &mut StageState,
    ) -> Result<Option<Action<R::Disk>>, BuildError<R::Error>> {
        let number = line.line;
        let variables = state.variables();
        let word = |text: &str| self.word(text, &variables, number);
        let action = match &line.instruction {
            Instruction::Env(text) => {
                let pairs = self.pairs(text, &variables, number)?;
                state.config.env.extend(pairs);
                return Ok(None);
            }
            Instruction::Label(text) => {
                let pairs = self.pairs(text, &variables, number)?;
                state.config.labels.extend(pairs);
                return Ok(None);
            }
            Instruction::Arg(text) => {
                self.argument(text, state, number)?;
                return Ok(None);
            }
            Instruction::User(text) => {
                state.config.user = Some(word(text)?);
                return Ok(None);
            }
            Instruction::Shell(shell) => {
                state.config.shell = shell.clone();
                return Ok(None);
            }
            Instruction::Cmd(command) => {
                state.config.cmd = state.shell(command);
                return Ok(None);
            }
            Instruction::Entrypoint(command) => {
                state.config.entrypoint = state.shell(command);
                // As Docker does: a command of the base image was for another entry point.
                state.config.cmd.clear();
                return Ok(None);
            }
            Instruction::Workdir(text) => {
                let path = absolute(state.workdir(), &word(text)?);
                state.config.workdir = Some(path.clone());
                let owner = state.config.user.clone().filter(|_| self.options.owns_workdir);
                state.key = match &owner {
                    Some(owner) => next_key(state.key, "workdir of", &(&path, owner))?,
                    None => next_key(state.key, "workdir", &path)?,
                };
                Action::MakeDirectory { path, owner }
            }
            Instruction::Run(command) => {
                let run = RunStep {
                    arguments: state.shell(command),
                    env: variables,
                    user: state.config.user.clone(),
                    workdir: state.workdir().to_owned(),
                };
                if run.arguments.is_empty() {
                    return Err(wrong(number, "RUN without a command"));
                }
                state.key = next_key(state.key, "run", &run)?;
                Action::Run(run)
            }
            Instruction::Copy(copy) => return self.copy(copy, number, stage, state).map(Some),
        };
        Ok(Some(action))
    }

    fn copy(
        &mut self,
        copy: &Copy,
        line: usize,
        stage: usize,
        state: &mut StageState,
    ) -> Result<Action<R::Disk>, BuildError<R::Error>> {
        let variables = state.variables();
        let words = |texts: &[String]| {
            texts.iter().map(|text| self.word(text, &variables, line)).collect::<Result<Vec<_>, _>>()
        };
        let sources = words(&copy.sources)?;
        let written = self.word(&copy.destination, &variables, line)?;
        let is_directory =
            written.ends_with('/') || written.ends_with("/.") || written == "." || sources.len() > 1;
        let mut destination = absolute(state.workdir(), &written);
        let owner = copy.chown.as_ref().map(|text| self.word(text, &variables, line)).transpose()?;
        let mode = match copy.chmod.as_ref().map(|text| self.word(text, &variables, line)).transpose()? {
            Some(text) => {
                let mode = u32::from_str_radix(&text, 8).ok().filter(|mode| *mode <= 0o7777);
                Some(mode.ok_or_else(|| wrong(line, "--chmod takes an octal number such as 755"))?)
            }
            None => None,
        };
        let Some(from) = &copy.from else {
            let mut items = Vec::new();
            for source in &sources {
                let selected = self.context.select(source, &destination, is_directory, copy.unpacks);
                items.extend(selected.map_err(|source| BuildError::Context { line, source })?);
            }
            let parts = (items_digest(&items).hex(), &owner, mode);
            state.key = next_key(state.key, "copy", &parts)?;
            return Ok(Action::Copy(CopyStep { items, owner, mode }));
        };
        if is_directory && destination != "/" {
            destination.push('/');
        }
        let name = self.word(from, &self.global, line)?;
        let sources = sources.iter().map(|source| absolute("/", source)).collect();
        let step = CopyFromStep { sources, destination, owner, mode };
        let (from, from_key) = match find_stage(&self.dockerfile.stages[..stage], &name) {
            Some(index) => {
                let built = self.built.get(&index).ok_or_else(|| BuildError::NoStage(name.clone()))?;
                (From::Stage(index), built.key)
            }
            None => {
                let base = self.runner.base(&Base::parse(&name));
                let (disk, _, id) = base.map_err(|source| BuildError::Runner { line, source })?;
                (From::Disk(disk), id)
            }
        };
        state.key = next_key(state.key, "copy from", &(from_key, &step))?;
        Ok(Action::CopyFrom { from, step })
    }

    /// `ARG NAME`, `ARG NAME=default`: what the user gave, else the default, else what was declared before `FROM`.
    fn argument(&self, text: &str, state: &mut StageState, line: usize) -> Result<(), BuildError<R::Error>> {
        let declared = split(text, &state.variables(), self.dockerfile.escape);
        for declared in declared.map_err(|source| BuildError::Word { line, source })? {
            let (name, default) = match declared.split_once('=') {
                Some((name, default)) => (name, Some(default)),
                None => (declared.as_str(), None),
            };
            let given = self.options.arguments.get(name).map(String::as_str);
            let value = given.or(default).or_else(|| self.global.get(name).map(String::as_str));
            if let Some(value) = value {
                state.arguments.insert(name.into(), value.into());
            }
        }
        Ok(())
    }

    /// `A=b C=d`, or the old form `A b c d`.
    fn pairs(
        &self,
        text: &str,
        variables: &Variables,
        line: usize,
    ) -> Result<Vec<(String, String)>, BuildError<R::Error>> {
        let text = text.trim();
        let first = text.split_whitespace().next().unwrap_or("");
        if !first.contains('=') {
            let (name, value) =
                text.split_once(char::is_whitespace).ok_or_else(|| wrong(line, "expected NAME=VALUE"))?;
            return Ok(vec![(name.to_owned(), self.word(value.trim(), variables, line)?)]);
        }
        let words = split(text, variables, self.dockerfile.escape);
        let words = words.map_err(|source| BuildError::Word { line, source })?;
        let pair = |word: &String| match word.split_once('=') {
            Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
            _ => Err(wrong(line, "expected NAME=VALUE")),
        };
        words.iter().map(pair).collect()
    }
}

fn wrong<E: std::error::Error>(line: usize, problem: &str) -> BuildError<E> {
    BuildError::Wrong { line, problem: problem.into() }
}

/// `FROM` takes stages by name only.
fn find_named(stages: &[Stage], name: &str) -> Option<usize> {
    let lower = name.to_ascii_lowercase();
    stages.iter().position(|stage| stage.name.as_ref() == Some(&lower))
}

fn next_key<E: std::error::Error>(
    before: Digest,
    kind: &str,
    step: &impl Serialize,
) -> Result<Digest, BuildError<E>> {
    let step = serde_json::to_vec(step).map_err(|error| wrong(0, &error.to_string()))?;
    Ok(Hasher::new(kind).part(before.hex().as_bytes()).part(&step).finish())
}

/// A path of the image: absolute, without `.`, `..` and slashes at the end.
fn absolute(workdir: &str, path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    let start = if path.starts_with('/') { "" } else { workdir };
    for part in start.split('/').chain(path.split('/')) {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}
