//! Snapshots that leave one engine in a file and arrive at another, which has nothing of them.

use std::fs::{self, File};
use std::io::Cursor;
use std::os::unix::fs::FileExt;
use std::process::Command;

use forkd_engine::{Destination, SnapshotHandle};
use forkd_hub::layout::{self, Layout};
use forkd_hub::{About, Annotations, Outgoing, Role, Silent, Snapshot, first_variant};
use forkd_image::images::ImageStore;
use forkd_proto::host_cpu::HostCpu;
use forkd_store::{Manifest, Store};
use forkd_tests::binaries;
use forkd_tests::engine::process::Failure;
use forkd_tests::engine::ticking::{self, Words};
use forkd_tests::engine::tiny::PATIENCE;
use forkd_tests::tiny_library;

use super::world::World;

fn keep(world: &World, id: &str, number: u64) -> Result<(), Failure> {
    Words::of(world.engine.sandbox(id)?.view().pid, PATIENCE)?.keep(number, PATIENCE)
}

/// A world with `base`, and `one` and `two`, branches of a sandbox that has written to its disk before each.
pub(crate) fn world() -> Result<World, Failure> {
    let world = World::with_guest(&ticking::elf())?;
    world.make("base")?;
    let id = world.fork("base", 1)?.remove(0);
    for (number, tag) in [(1, "one"), (2, "two")] {
        keep(&world, &id, number)?;
        let branch = world.run(world.engine.sandbox(&id)?.branch(Some(tag.parse()?)))?;
        world.run(branch.durable())?;
    }
    Ok(world)
}

pub(crate) fn save(world: &World, tag: &str) -> Result<Vec<u8>, Failure> {
    world.run(world.engine.snapshot(tag)?.durable())?;
    let departure = world.engine.depart(&tag.parse()?)?;
    let mut file = Vec::new();
    departure.send(|snapshot| layout::write(&mut file, snapshot, Some("latest"), &Silent))?;
    Ok(file)
}

pub(crate) fn load(world: &World, file: &[u8], tag: Option<&str>) -> Result<SnapshotHandle, Failure> {
    let spool = tempfile::tempdir()?;
    let layout = Layout::unpack(Cursor::new(file), spool.path(), 1 << 30, &Silent)?;
    let artifact = layout.open(&first_variant)?;
    let destination = Destination { tag: tag.map(str::parse).transpose()?, owner: None };
    let engine = world.engine.clone();
    let arriving = async {
        tokio::task::spawn_blocking(move || engine.arrive(&artifact, &layout, &destination, &Silent)).await
    };
    Ok(world.run(arriving)??)
}

/// What a fork has in its memory, which must be what it reads from its disk.
pub(crate) fn number_in(world: &World, tag: &str) -> Result<u64, Failure> {
    let id = world.fork(tag, 1)?.remove(0);
    let words = Words::of(world.engine.sandbox(&id)?.view().pid, PATIENCE)?;
    words.round(words.ticks()?, PATIENCE)?;
    assert_eq!(words.kept()?, words.read()?);
    words.kept()
}

fn store(world: &World) -> Store {
    Store::new(world.directory.path().join("snapshots"))
}

#[test]
fn a_snapshot_runs_where_nothing_of_it_was() -> Result<(), Failure> {
    let from = world()?;
    let file = save(&from, "two")?;
    let mut to = World::with_guest(&ticking::elf())?;
    let handle = load(&to, &file, None)?;
    assert_eq!(handle.tag().as_str(), "two");
    assert_eq!(number_in(&to, "two")?, 2);
    // All of the chain came, under names of its own, and is the same.
    assert_eq!(to.names("snapshots").len(), 2);
    let digests = |world: &World, tag: &str| -> Result<Vec<_>, Failure> {
        Ok(store(world).ancestry(&tag.parse()?)?.iter().map(|stored| stored.sealed.digest).collect())
    };
    assert_eq!(digests(&to, "two")?, digests(&from, "two")?);
    assert_eq!(to.names("layers").len(), 3, "two frozen layers and the fork's own");
    // Another daemon finds it all again.
    to.restart()?;
    assert_eq!(number_in(&to, "two")?, 2);
    // It is a snapshot like any other: its children are branched, and what it stands on is needed.
    let below = store(&to).ancestry(&"two".parse()?)?[1].tag.clone();
    assert!(to.run(to.engine.remove_snapshot(below.as_str(), false)).is_err());
    let id = to.fork("two", 1)?.remove(0);
    keep(&to, &id, 3)?;
    to.run(async { to.engine.sandbox(&id)?.branch(Some("three".parse()?)).await?.durable().await })?;
    assert_eq!(number_in(&to, "three")?, 3);
    Ok(())
}

#[test]
fn what_is_here_is_not_brought_again() -> Result<(), Failure> {
    let from = world()?;
    let to = World::with_guest(&ticking::elf())?;
    load(&to, &save(&from, "one")?, None)?;
    let (snapshots, layers) = (to.names("snapshots").len(), to.names("layers").len());
    load(&to, &save(&from, "two")?, Some("second"))?;
    assert_eq!(to.names("snapshots").len(), snapshots + 1);
    assert_eq!(to.names("layers").len(), layers + 1);
    assert_eq!((number_in(&to, "one")?, number_in(&to, "second")?), (1, 2));
    let refused = load(&to, &save(&from, "two")?, Some("one")).unwrap_err();
    assert!(refused.to_string().contains("there is a snapshot one already"), "{refused}");
    Ok(())
}

/// Every part of the file, flipped: nothing of it stays.
#[test]
fn a_damaged_file_leaves_nothing() -> Result<(), Failure> {
    let from = world()?;
    let file = save(&from, "one")?;
    let to = World::with_guest(&ticking::elf())?;
    let sealed = |world: &World, tag: &str| -> Result<Vec<_>, Failure> {
        Ok(store(world).ancestry(&tag.parse()?)?.iter().map(|stored| stored.sealed.digest).collect())
    };
    let expected = sealed(&from, "one")?;
    let mut refused = 0;
    for part in 0..40 {
        let mut damaged = file.clone();
        let at = file.len() * part / 40 + 700;
        let Some(byte) = damaged.get_mut(at) else { continue };
        *byte ^= 0x10;
        match load(&to, &damaged, None) {
            // Between two files of an archive is nothing that matters: then all of it is right.
            Ok(handle) => {
                assert_eq!(sealed(&to, handle.tag().as_str())?, expected, "byte {at}");
                let verified = to.run(to.engine.verify(&handle.tag(), ()))?;
                assert!(verified.damage.is_none(), "byte {at}: {verified:?}");
                to.run(to.engine.remove_snapshot(handle.tag().as_str(), true))?;
                for tag in to.names("snapshots") {
                    to.run(to.engine.remove_snapshot(&tag, true))?;
                }
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                refused += 1;
            }
        }
        assert_eq!(to.names("snapshots"), [""; 0], "byte {at}");
    }
    assert!(refused > 20, "{refused} of 40");
    load(&to, &file, None)?;
    assert_eq!(number_in(&to, "one")?, 1);
    Ok(())
}

/// Files of one host stay there.
#[test]
fn no_name_of_a_host_travels() -> Result<(), Failure> {
    let from = world()?;
    let departure = from.engine.depart(&"two".parse()?)?;
    let about = departure.send(|snapshot| serde_json::to_string(snapshot.about))?;
    let path = from.directory.path().display().to_string();
    let layers = from.names("layers");
    for word in layers.iter().chain([&path]) {
        assert!(!about.contains(word.as_str()), "{word}");
    }
    Ok(())
}

/// What this host cannot run is refused before anything of it is fetched, and what is lacking is named.
#[test]
fn a_snapshot_that_does_not_fit_is_refused_at_once() -> Result<(), Failure> {
    let world = World::new()?;
    world.run(world.make("base")?.durable())?;
    let about = world.engine.depart(&"base".parse()?)?.send(|snapshot| snapshot.about.clone());
    let text = about["manifests"][0].as_str().ok_or("no manifest")?;
    // What says nothing of either is of the first version of both: digests stay what they were.
    assert!(!text.contains("agent_version") && !about.contains_key("state_version"), "{about:?}");
    let refused = |change: &dyn Fn(&mut Manifest, &mut About), words: &str| -> Result<(), Failure> {
        let mut manifest = Manifest::parse(text.as_bytes())?.manifest;
        let mut about = about.clone();
        change(&mut manifest, &mut about);
        about["manifests"][0] = String::from_utf8(manifest.seal()?.1)?.into();
        // None of its streams is there, so whoever fetched would fail of that.
        let source = b"something else".to_vec();
        let stream =
            Outgoing { role: Role::State, name: "none", source: &source, known: None, remembered: None };
        let snapshot = Snapshot { streams: &[stream], about: &about, annotations: &Annotations::new() };
        let mut file = Vec::new();
        layout::write(&mut file, snapshot, None, &Silent)?;
        let error = load(&world, &file, Some("other")).map(drop).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
        Ok(())
    };
    refused(&|it, _| it.cpu.features.push("zz_unknown".into()), "does not have: zz_unknown")?;
    refused(&|it, _| it.cpu.vendor = Some("NobodysOwnXX".into()), "a CPU of NobodysOwnXX")?;
    for version in [0, 2] {
        let agent = |it: &mut Manifest, _: &mut About| it.about["shape"]["agent_version"] = version.into();
        refused(&agent, &format!("speaks version {version}, this forkd 1 to 1"))?;
        let state = |_: &mut Manifest, about: &mut About| {
            about.insert("state_version".into(), version.into());
        };
        refused(&state, &format!("has version {version}, this forkd takes version 1"))?;
    }
    refused(&|_, _| {}, "there is no stream with")?;
    // Another rate of the time stamp counter: as this host's KVM can.
    let host = Command::new(binaries::directory().join("forkd-vmm")).arg("cpu").output()?;
    let host: HostCpu = serde_json::from_slice(&host.stdout)?;
    let slower = |it: &mut Manifest, _: &mut About| it.cpu.tsc_khz = Some(host.tsc_khz / 2);
    let told = match host.scales_tsc {
        true => "there is no stream with".to_owned(),
        false => format!("runs at {} kHz, this host's at {} kHz", host.tsc_khz / 2, host.tsc_khz),
    };
    refused(&slower, &told)?;
    // Within what KVM takes for the same.
    refused(&|it, _| it.cpu.tsc_khz = Some(host.tsc_khz + host.tsc_khz / 10_000), "there is no stream with")?;
    assert_eq!(world.names("snapshots"), ["base"]);
    Ok(())
}

/// The image below a disk comes along, and is known by what it has: what its sender calls it means nothing here.
#[test]
fn the_image_below_a_disk_comes_along() -> Result<(), Failure> {
    let from = World::with_guest(&ticking::elf())?;
    tiny_library::fill(from.directory.path())?;
    let images = ImageStore::new(from.directory.path());
    let image = images.find("empty")?;
    let base = File::options().read(true).write(true).open(image.base())?;
    base.set_len(16 << 20)?;
    base.write_all_at(b"what only this image has", 5 << 20)?;
    let id = image.id();
    from.make_with("base", |shape| {
        shape.image = Some(id);
        shape.devices.disks[0].base = true;
    })?;
    let sandbox = from.fork("base", 1)?.remove(0);
    keep(&from, &sandbox, 4)?;
    let branch = from.run(from.engine.sandbox(&sandbox)?.branch(Some("one".parse()?)))?;
    from.run(branch.durable())?;

    let mut to = World::with_guest(&ticking::elf())?;
    let arrived = load(&to, &save(&from, "one")?, None)?;
    let found = arrived.view().record.shape.image.ok_or("no image")?;
    assert_ne!(found, id, "a name that anybody could have given it");
    let images = ImageStore::new(to.directory.path());
    let contents = fs::read(images.get(found)?.ok_or("no image")?.base())?;
    let expected = fs::read(image.base())?;
    assert!(contents == expected, "{} and {} bytes", contents.len(), expected.len());
    assert_eq!(number_in(&to, "one")?, 4);
    // Another snapshot of the same image brings it not again, also not to the next daemon.
    to.restart()?;
    load(&to, &save(&from, "base")?, Some("again"))?;
    assert_eq!(images.list()?.len(), 1);
    number_in(&to, "again")?;
    let left = fs::read_dir(images.directory())?.flatten();
    assert_eq!(left.filter(|entry| entry.file_name().to_string_lossy().starts_with(".tmp")).count(), 0);
    Ok(())
}
