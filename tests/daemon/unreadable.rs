//! Records, manifests and directories that a daemon cannot read: nothing is lost, the rest is served, and it is told.

use std::fs;
use std::path::{Path, PathBuf};

use forkd_api::error::ErrorCode;
use forkd_api::sandbox::Sandbox;
use forkd_api::system::ProblemList;
use forkd_tests::binaries;
use forkd_tests::check;
use forkd_tests::engine::process::Failure;
use forkd_tests::engine::tiny;
use rustix::io::Errno;
use rustix::process::Signal;
use serde_json::json;

use crate::world::{World, lives};

/// A daemon with a branch and two sandboxes, one of which has gone on since.
struct Busy {
    world: World,
    ids: [String; 2],
    before: Seen,
}

/// What must not change.
#[derive(Debug, PartialEq)]
struct Seen {
    sandboxes: Vec<Sandbox>,
    processes: Vec<i32>,
    files: Vec<PathBuf>,
}

impl Busy {
    fn new() -> Result<Busy, Failure> {
        let world = World::new()?;
        let forked = world.fork("base", 2)?;
        let ids = [forked[0].id.clone(), forked[1].id.clone()];
        let branch = format!("POST /v1/sandboxes/{}/branch", ids[0]);
        check!(world.tell(&branch, json!({ "tag": "branch", "wait": true }))?.status == 201, "branch");
        let before = seen(&world)?;
        check!(before.processes.len() == 4, "{before:?}");
        Ok(Busy { world, ids, before })
    }

    fn record_of_sandbox(&self) -> PathBuf {
        tiny::run_directory(&self.world.root()).join("sandboxes").join(&self.ids[0]).join("record.json")
    }

    fn record_of_zygote(&self, tag: &str) -> PathBuf {
        tiny::run_directory(&self.world.root()).join("zygotes").join(tag).join("record.json")
    }

    fn manifest(&self, tag: &str) -> PathBuf {
        self.world.root().join("snapshots").join(tag).join("manifest.json")
    }

    /// Starts a daemon that cannot read `path`, checks that nothing is lost and that the rest is served, and kills it.
    fn survives(&mut self, case: &str, path: &Path, fault: Option<Errno>) -> Result<(), Failure> {
        let variable =
            fault.map(|errno| format!("{}:{}", errno.raw_os_error(), path.display())).unwrap_or_default();
        self.world.launch(&[], &[("FORKD_FAULT_READ", &variable)])?;
        self.world.until("the daemon answers", |world| {
            Ok(world.ask("GET /healthz").is_ok_and(|answer| answer.status == 200))
        })?;
        check!(self.before.processes.iter().all(|pid| lives(*pid)), "{case}: a process was ended");
        check!(files(&self.world.root()) == self.before.files, "{case}: files are gone");
        let told = self.world.ask("GET /v1/problems")?.parsed::<ProblemList>(200)?.problems;
        let names_it = |problem: &forkd_api::system::Problem| path.starts_with(&problem.path);
        check!(told.iter().any(names_it), "{case}: {told:?}");
        check!(self.world.log().contains(&told[0].path), "{case}: the log does not name it");
        let doctor = binaries::forkd(self.world.home(), &["doctor", "--json"])
            .env("FORKD_ADDRESS", format!("unix://{}", self.world.socket().display()))
            .output()?;
        let doctor = String::from_utf8(doctor.stdout)?;
        check!(doctor.contains("\"files\"") && doctor.contains(&told[0].path), "{case}: {doctor}");
        // The others are as they were.
        let served = self.world.sandboxes("")?;
        let others =
            self.before.sandboxes.iter().filter(|sandbox| served.iter().any(|it| it.id == sandbox.id));
        for sandbox in others {
            let pause = format!("POST /v1/sandboxes/{}/pause", sandbox.id);
            check!(self.world.ask(&pause)?.status == 200, "{case}: {} does not pause", sandbox.id);
            let resume = format!("POST /v1/sandboxes/{}/resume", sandbox.id);
            check!(self.world.ask(&resume)?.status == 200, "{case}: {} does not resume", sandbox.id);
        }
        self.world.end(Signal::KILL)
    }

    /// Everything is there again.
    fn is_whole(&mut self, case: &str) -> Result<(), Failure> {
        self.world.start(&[])?;
        check!(seen(&self.world)? == self.before, "{case}: {:?} after {:?}", seen(&self.world)?, self.before);
        let told = self.world.ask("GET /v1/problems")?.parsed::<ProblemList>(200)?.problems;
        check!(told.is_empty(), "{case}: {told:?}");
        self.world.end(Signal::KILL)
    }
}

fn seen(world: &World) -> Result<Seen, Failure> {
    let root = world.root();
    Ok(Seen { sandboxes: world.sandboxes("")?, processes: processes(&root), files: files(&root) })
}

/// Every process whose control socket is below a directory.
fn processes(root: &Path) -> Vec<i32> {
    let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let root = root.to_string_lossy();
    let inodes: Vec<String> = sockets
        .lines()
        .filter(|line| line.contains(&*root) && line.ends_with("/control"))
        .filter_map(|line| Some(format!("socket:[{}]", line.split_whitespace().nth(6)?)))
        .collect();
    let has_one = |pid: &i32| {
        let links = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        links
            .filter_map(|link| fs::read_link(link.path()).ok())
            .any(|target| inodes.iter().any(|inode| target.as_os_str() == inode.as_str()))
    };
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut pids: Vec<i32> = pids.filter(has_one).collect();
    pids.sort_unstable();
    pids
}

/// Every path below a directory. A `record.json` that a test made a directory counts as one path. Promises of groups do not count: the
/// next daemon writes them into records.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    let mut waiting = vec![directory.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) && !entry.path().ends_with("record.json") {
                waiting.push(entry.path());
            }
            if !directory.ends_with("promised") {
                all.push(entry.path());
            }
        }
    }
    all.sort();
    all
}

#[cfg(debug_assertions)]
#[test]
fn what_fails_to_be_read_is_left_alone() -> Result<(), Failure> {
    let mut busy = Busy::new()?;
    busy.world.end(Signal::KILL)?;
    let run = tiny::run_directory(&busy.world.root());
    let snapshots = busy.world.root().join("snapshots");
    let paths = [
        busy.record_of_sandbox(),
        busy.record_of_zygote("base"),
        busy.record_of_zygote("branch"),
        snapshots.join("base"),
        snapshots.join("branch"),
        run.join("sandboxes"),
        run.join("zygotes"),
        snapshots,
    ];
    for errno in [Errno::IO, Errno::MFILE, Errno::ACCESS] {
        for path in &paths {
            let case = format!("{errno:?} {}", path.display());
            busy.survives(&case, path, Some(errno))?;
            busy.is_whole(&case)?;
        }
    }
    busy.world.start(&[])
}

/// What becomes of a file's text.
type Damage<'a> = &'a dyn Fn(&str) -> String;

#[test]
fn what_is_damaged_or_newer_is_left_alone() -> Result<(), Failure> {
    let mut busy = Busy::new()?;
    busy.world.end(Signal::KILL)?;
    let add = |text: &str, field: &str| format!("{},{field}}}", text.trim_end().trim_end_matches('}'));
    let damages: [(&str, Damage<'_>); 5] = [
        ("truncated", &|text| text[..text.len() / 2].to_owned()),
        ("empty", &|_| String::new()),
        ("newer", &|text| text.replace("\"version\":1", "\"version\":2")),
        ("unknown field", &|text| add(text, "\"of_the_future\":[]")),
        ("too large", &|text| format!("{text}{}", " ".repeat(2 << 20))),
    ];
    let files = [
        busy.record_of_sandbox(),
        busy.record_of_zygote("base"),
        busy.record_of_zygote("branch"),
        busy.manifest("base"),
        busy.manifest("branch"),
    ];
    for path in &files {
        let whole = fs::read_to_string(path)?;
        for (name, damage) in damages {
            let case = format!("{name} {}", path.display());
            let damaged = damage(&whole);
            if damaged == whole {
                continue;
            }
            fs::write(path, damaged)?;
            busy.survives(&case, path, None)?;
            fs::write(path, &whole)?;
            busy.is_whole(&case)?;
        }
        // An error of the kernel's own: it is a directory.
        fs::remove_file(path)?;
        fs::create_dir(path)?;
        busy.survives(&format!("a directory {}", path.display()), path, None)?;
        fs::remove_dir(path)?;
        fs::write(path, &whole)?;
    }
    busy.is_whole("in the end")?;
    busy.world.start(&[])
}

/// A fork of a snapshot whose record is unreadable is refused by name, and its process is not replaced.
#[test]
fn the_place_of_what_cannot_be_read_is_not_taken() -> Result<(), Failure> {
    let mut busy = Busy::new()?;
    busy.world.end(Signal::KILL)?;
    let record = busy.record_of_zygote("base");
    let whole = fs::read(&record)?;
    fs::write(&record, "{")?;
    busy.world.start(&[])?;
    let fork = json!({ "snapshot_tag": "base" });
    let said = busy.world.refuses(ErrorCode::Unavailable, "POST /v1/sandboxes", fork)?;
    check!(said.contains("record.json"), "{said}");
    check!(busy.before.processes.iter().all(|pid| lives(*pid)), "a process was ended");
    busy.world.end(Signal::KILL)?;
    fs::write(&record, whole)?;
    busy.is_whole("in the end")?;
    busy.world.start(&[])
}
