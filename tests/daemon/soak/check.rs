//! What is there, against what must be.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use forkd_api::sandbox::{Sandbox as Shown, SandboxState};
use forkd_api::snapshot::SnapshotStatus;
use forkd_tests::check;
use forkd_tests::engine::process::Failure;
use forkd_tests::engine::processes;
use forkd_tests::engine::ticking::Words;
use forkd_tests::engine::tiny::{self, PATIENCE};

use rustix::process::Signal;

use super::model::{Doubt, Model, Sandbox};
use crate::world::World;

/// A sweep comes after a minute, and is about what is a minute old.
const SWEPT: Duration = Duration::from_secs(150);

/// Everything that a daemon which has just started has found. What was in doubt is in none afterwards.
pub fn check(world: &World, model: &mut Model) -> Result<(), Failure> {
    let shown: BTreeMap<String, Shown> =
        world.sandboxes("?limit=1000")?.into_iter().map(|sandbox| (sandbox.id.clone(), sandbox)).collect();
    adopted(world, &shown)?;
    snapshots(world, model)?;
    creations(model, &shown)?;
    let mut gone = Vec::new();
    let mut running = Vec::new();
    for (id, sandbox) in &mut model.sandboxes {
        match shown.get(id) {
            Some(shown) => {
                let words = same(sandbox, shown).map_err(|error| format!("{id}: {error}"))?;
                if !sandbox.paused {
                    running.push((id, words.ticks()?, words));
                }
            }
            None if sandbox.doubt == Some(Doubt::Removed) => gone.push(id.clone()),
            None => return Err(format!("{id} is lost: {sandbox:?}").into()),
        }
    }
    // All of them at the same time, since they share few processors.
    for (id, ticks, words) in running {
        words.round(ticks, PATIENCE).map_err(|error| format!("{id}: {error}"))?;
        let (kept, read) = (words.kept()?, words.read()?);
        check!(kept == read, "the disk of {id} has {read}, not {kept}");
    }
    gone.iter().for_each(|id| drop(model.sandboxes.remove(id)));
    none_is_nobody_s(world)
}

/// The log says what was adopted.
fn adopted(world: &World, shown: &BTreeMap<String, Shown>) -> Result<(), Failure> {
    let log = world.log();
    let last = log.rfind("adopted running VMs").ok_or("nothing was adopted")?;
    let begin = log[..last].rfind('\n').map_or(0, |line| line + 1);
    let log = &log[begin..];
    check!(log.contains(&format!("sandboxes={} ", shown.len())), "adopted, and shown {}: {log}", shown.len());
    for id in shown.keys() {
        check!(log.contains(&format!("id={id}")), "{id} is not among those that were adopted: {log}");
    }
    Ok(())
}

fn snapshots(world: &World, model: &mut Model) -> Result<(), Failure> {
    let mut there = BTreeSet::new();
    for snapshot in world.snapshots()? {
        let failed = snapshot.status == SnapshotStatus::Failed || snapshot.error.is_some();
        check!(!failed, "a snapshot has failed: {snapshot:?}");
        let from = snapshot.branched_from.as_ref().and_then(|id| model.sandboxes.get(id));
        // Branches that the engine has named are told apart by whose they are.
        let copied =
            from.filter(|from| matches!(&from.doubt, Some(Doubt::Branched(_)))).map(|from| from.keeps);
        let known = model.snapshots.get(&snapshot.tag).or_else(|| model.branches.get(&snapshot.tag)).copied();
        let keeps = known.or(copied).ok_or_else(|| format!("nobody has asked for {snapshot:?}"))?;
        model.snapshots.insert(snapshot.tag.clone(), keeps);
        there.insert(snapshot.tag);
    }
    let removed = std::mem::take(&mut model.removals);
    let lost = model.snapshots.keys().find(|tag| !there.contains(*tag) && !removed.contains(tag));
    check!(lost.is_none(), "a snapshot is lost: {lost:?}");
    model.snapshots.retain(|tag, _| there.contains(tag));
    model.branches.clear();
    Ok(())
}

/// Those that nobody was told of: all of a request's, or none.
fn creations(model: &mut Model, shown: &BTreeMap<String, Shown>) -> Result<(), Failure> {
    let unknown = shown.values().filter(|shown| !model.sandboxes.contains_key(&shown.id));
    let mut groups: BTreeMap<String, Vec<&Shown>> = BTreeMap::new();
    for shown in unknown {
        let operation = shown.metadata.get("operation").cloned().unwrap_or_default();
        groups.entry(operation).or_default().push(shown);
    }
    for (operation, group) in groups {
        let creation = model.creations.get(&operation).ok_or_else(|| format!("nobody's: {group:?}"))?;
        let (found, count, keeps) = (group.len(), creation.count, creation.keeps);
        check!(found == count, "{found} of {count} are there: {group:?}");
        for shown in group {
            let pid = shown.pid.ok_or("no pid")?;
            model.sandboxes.insert(shown.id.clone(), Sandbox::new(pid, keeps));
        }
    }
    model.creations.clear();
    Ok(())
}

/// A sandbox is what it was, and what was in doubt is one of what it can be. Its disk is for later.
fn same(sandbox: &mut Sandbox, shown: &Shown) -> Result<Words, Failure> {
    let doubt = sandbox.doubt.take();
    let pid = shown.pid.ok_or("it has ended")?;
    let words = Words::of(pid, PATIENCE)?;
    let kept = words.kept()?;
    match &doubt {
        Some(Doubt::RolledBack(tag, keeps)) if pid != sandbox.pid => {
            sandbox.pid = pid;
            sandbox.keeps = keeps.ok_or("the branch was gone")?;
            sandbox.back_to(tag);
        }
        Some(Doubt::Branched(tag)) => {
            let more = shown.branches.get(sandbox.branches.len()..).unwrap_or_default();
            check!(more.len() <= 1 && more.iter().all(|it| it.starts_with(tag.as_str())), "{more:?}");
            sandbox.branches.extend(more.iter().cloned());
        }
        Some(Doubt::Changed) => sandbox.paused = shown.state == SandboxState::Paused,
        _ => {}
    }
    check!(pid == sandbox.pid, "its process is {pid}, not {}", sandbox.pid);
    check!(kept == sandbox.keeps, "it keeps {kept}, not {} ({doubt:?})", sandbox.keeps);
    check!(shown.branches == sandbox.branches, "{:?} are not {:?}", shown.branches, sandbox.branches);
    let state = if sandbox.paused { SandboxState::Paused } else { SandboxState::Running };
    check!(shown.state == state, "it is {:?}, not {state:?} ({doubt:?})", shown.state);
    Ok(words)
}

/// Every process is one of a sandbox or a snapshot, and each has one.
fn none_is_nobody_s(world: &World) -> Result<(), Failure> {
    let names = |paths: Vec<PathBuf>| {
        let mut paths: Vec<String> =
            paths.iter().filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect();
        paths.sort();
        paths
    };
    let compare = || -> Result<(Vec<String>, Vec<String>), Failure> {
        let mut known: Vec<String> = world.sandboxes("?limit=1000")?.into_iter().map(|it| it.id).collect();
        known.extend(world.snapshots()?.into_iter().filter(|it| it.loaded).map(|it| it.tag));
        known.sort();
        let there = processes::below(&world.root())?.into_iter().map(|(_, directory)| directory).collect();
        Ok((known, names(there)))
    };
    // Writers of snapshots and processes that were killed take a moment to go. One that was too slow to be adopted is swept.
    let waited = world.until_within(SWEPT, "every process is somebody's", |_| {
        compare().map(|(known, there)| known == there)
    });
    waited.map_err(|error| match compare() {
        Ok((known, there)) => format!("known are {known:?}, there are {there:?}: {error}").into(),
        Err(error) => error,
    })
}

/// Removes everything through the API, and looks for what is left.
pub fn empty(world: &mut World, model: &mut Model, options: &[&str]) -> Result<(), Failure> {
    for (id, sandbox) in std::mem::take(&mut model.sandboxes) {
        if sandbox.paused {
            world.ask(&format!("POST /v1/sandboxes/{id}/resume"))?.parsed::<Shown>(200)?;
        }
        let words = Words::of(sandbox.pid, PATIENCE)?;
        words.round(words.ticks()?, PATIENCE)?;
        let (kept, read) = (words.kept()?, words.read()?);
        check!((kept, read) == (sandbox.keeps, sandbox.keeps), "{id} has {kept} and {read}: {sandbox:?}");
        let removed = world.ask(&format!("DELETE /v1/sandboxes/{id}"))?;
        check!(removed.status == 204, "{removed:?}");
    }
    for tag in model.snapshots.keys() {
        let removed = world.ask(&format!("DELETE /v1/snapshots/{tag}?cascade=true"))?;
        check!([200, 404].contains(&removed.status), "{removed:?}");
    }
    // Frozen layers that nobody has any more go with a sweep, and a daemon that starts begins with one.
    world.end(Signal::TERM)?;
    world.start(options)?;
    for place in ["sandboxes", "zygotes", "snapshots", "names", "layers", "arriving"] {
        let left = tiny::names(&world.root(), place);
        check!(left.is_empty(), "left in {place}: {left:?}");
    }
    let root = fs::read_dir(world.root())?.flatten().map(|entry| entry.file_name());
    let left: Vec<_> = root
        .filter(|it| {
            !["arriving", "layers", "lock", "names", "partial", "run", "snapshots"]
                .iter()
                .any(|name| it == name)
        })
        .collect();
    check!(left.is_empty(), "left: {left:?}");
    world.until("no process is left", |world| Ok(processes::below(&world.root())?.is_empty()))
}
