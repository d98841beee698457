//! Images and kernels through the API. Images keep the owners of their files, so most of this needs root.

use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering;

use forkd_api::error::ErrorCode;
use forkd_api::library::{Image, ImageList, ImageSource, Kernel, KernelList, PrunedImages, RemovedImage};
use forkd_image::digest::Digest;
use forkd_tests::engine::firecracker::guest;
use forkd_tests::engine::process::Failure;
use forkd_tests::engine::tiny;
use forkd_tests::registry::{PASSWORD, Registry, USER};
use forkd_tests::tiny_library::fill;
use rustix::process::Signal;
use serde_json::{Value, json};
use tar::EntryType;

use crate::world::World;

const STREAM: &str = "accept: application/x-ndjson\r\n";

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// An archive. Names are written as they are, also those that a polite writer refuses.
fn tar(entries: &[(&str, EntryType, &[u8])]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (path, kind, content) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        let (size, content) = match kind.is_symlink() || kind.is_hard_link() {
            true => {
                let target = std::str::from_utf8(content).expect("a path");
                header.set_link_name(target).expect("a short path");
                (0, &b""[..])
            }
            false => (content.len(), *content),
        };
        header.set_size(size as u64);
        header.as_gnu_mut().expect("a GNU header").name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_cksum();
        archive.append(&header, content).expect("memory");
    }
    archive.into_inner().expect("memory")
}

const FILE: EntryType = EntryType::Regular;
const LINK: EntryType = EntryType::Symlink;

/// Whether a store of the library has nothing half-made in it.
fn is_clean(library: &Path) -> bool {
    ["", "images", "builds", "kernels"].iter().all(|store| {
        let entries = fs::read_dir(library.join(store)).into_iter().flatten().flatten();
        entries.into_iter().all(|entry| !entry.file_name().to_string_lossy().starts_with(".tmp-"))
    })
}

fn images(world: &World) -> Result<Vec<String>, Failure> {
    let list: ImageList = world.ask("GET /v1/images")?.parsed(200)?;
    Ok(list.images.into_iter().map(|image| image.names.join(" ")).collect())
}

#[test]
fn an_archive_becomes_an_image_and_goes_again() -> Result<(), Failure> {
    if !is_root() {
        return Ok(());
    }
    let world = World::new()?;
    assert_eq!(images(&world)?, [""; 0]);
    let archive = tar(&[("etc/passwd", FILE, b"root:x:0:0::/:/bin/sh\nuser:x:1:1::/:/bin/sh\n")]);
    let import = "POST /v1/images/import?name=team%2Fapp:v1";
    let made: Image = world.upload("", import, &archive)?.parsed(201)?;
    assert_eq!(
        (&made.summary.names[..], &made.summary.default_user[..]),
        (&["team/app:v1".to_owned()][..], "user")
    );
    assert_eq!(made.source, ImageSource::Archive { file: "upload".into() });
    // The same files are the same image, under another name too.
    let again: Image = world.upload("", "POST /v1/images/import?name=other", &archive)?.parsed(201)?;
    assert_eq!((&again.summary.id, again.summary.names.len()), (&made.summary.id, 2));

    let digits = &made.summary.id["sha256:".len()..];
    for name in ["team%2Fapp:v1", "other", "other:latest", digits, &digits[..8]] {
        let found: Image = world.ask(&format!("GET /v1/images/{name}"))?.parsed(200)?;
        assert_eq!(found.summary.id, made.summary.id, "{name}");
    }
    world.ask("GET /v1/images/none")?.error(ErrorCode::NotFound)?;
    world.ask("GET /v1/images/..%2F..%2Fetc")?.error(ErrorCode::NotFound)?;

    let removed: RemovedImage = world.ask("DELETE /v1/images/other")?.parsed(200)?;
    assert_eq!((&removed.names[..], removed.removed), (&["other:latest".to_owned()][..], false));
    let removed: RemovedImage = world.ask(&format!("DELETE /v1/images/{digits}"))?.parsed(200)?;
    assert!(removed.removed && removed.freed_bytes > 0 && removed.names == ["team/app:v1"], "{removed:?}");
    world.ask("DELETE /v1/images/other")?.parsed::<RemovedImage>(200)?;
    world.ask("DELETE /v1/images/none")?.error(ErrorCode::NotFound)?;
    assert_eq!(images(&world)?, [""; 0]);
    assert!(is_clean(&world.library()));
    Ok(())
}

#[test]
fn what_is_being_made_is_told_line_by_line() -> Result<(), Failure> {
    if !is_root() {
        return Ok(());
    }
    let world = World::new()?;
    let lines = |answer: &str| -> Vec<Value> {
        let lines = answer.lines().filter(|line| line.starts_with('{'));
        lines.map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    let good = world.upload(STREAM, "POST /v1/images/import?name=a", &tar(&[("a", FILE, b"x")]))?;
    let said = lines(&good.body);
    assert_eq!(said[0]["step"], "unpacking upload", "{good:?}");
    assert_eq!(said.last().ok_or("no line")?["image"]["names"], json!(["a:latest"]));
    let bad = world.upload(STREAM, "POST /v1/images/import?name=b", &tar(&[("../a", FILE, b"x")]))?;
    assert_eq!(bad.status, 200);
    assert_eq!(lines(&bad.body).last().ok_or("no line")?["error"]["code"], "malformed");
    assert_eq!(images(&world)?, ["a:latest"]);
    Ok(())
}

#[test]
fn hostile_archives_are_refused_and_leave_nothing() -> Result<(), Failure> {
    if !is_root() {
        return Ok(());
    }
    let world = World::new()?;
    let outside = world.library().join("outside");
    let through = format!("{}", world.library().display());
    let archives: [&[(&str, EntryType, &[u8])]; 5] = [
        &[("../outside", FILE, b"x")],
        &[("link", LINK, through.as_bytes()), ("link/outside", FILE, b"x")],
        &[("a", EntryType::Link, b"/etc/passwd")],
        &[("a", EntryType::new(b'S'), b"x")],
        &[("a", EntryType::new(b'V'), b"x")],
    ];
    let mut bodies: Vec<Vec<u8>> = archives.iter().map(|entries| tar(entries)).collect();
    bodies.push(vec![b'x'; 100_000]);
    bodies.push(b"BZh91AY&SY".to_vec());
    let whole = tar(&[("a", FILE, &[b'x'; 10_000])]);
    bodies.push(whole[..5000].to_vec());
    for body in &bodies {
        let answer = world.upload("", "POST /v1/images/import?name=bad", body)?;
        answer.error(ErrorCode::Malformed)?;
    }
    // A context is an archive too, and its Dockerfile is none of the host's files.
    let dockerfile: (&str, EntryType, &[u8]) = ("Dockerfile", FILE, b"FROM scratch\n");
    for (entries, code) in [
        (&[dockerfile, ("../a", FILE, b"x")][..], ErrorCode::Malformed),
        (&[("Dockerfile", LINK, b"/etc/passwd")], ErrorCode::BuildFailed),
        (&[dockerfile, ("forkd.toml", LINK, b"/etc/passwd")], ErrorCode::BuildFailed),
        (&[("Dockerfile", FILE, b"FROM scratch\nONBUILD RUN x\n")], ErrorCode::BuildFailed),
        (&[("Dockerfile", FILE, b"FROM scratch\nCOPY none /\n")], ErrorCode::BuildFailed),
        (&[("other", FILE, b"")], ErrorCode::BuildFailed),
    ] {
        let error = world.upload("", "POST /v1/images/build?name=bad", &tar(entries))?.error(code)?;
        assert!(!error.error.contains("root:") && !error.error.contains(&through), "{error:?}");
    }
    for (request, code) in [
        ("POST /v1/images/import", ErrorCode::Malformed),
        ("POST /v1/images/import?name=a%20b", ErrorCode::Malformed),
        ("POST /v1/images/import?name=a&file=%2Fetc%2Fpasswd", ErrorCode::Malformed),
        ("POST /v1/images/build?nmae=a", ErrorCode::Malformed),
        ("POST /v1/images/build?dockerfile=%2Fetc%2Fpasswd", ErrorCode::BuildFailed),
        ("POST /v1/images/build?dockerfile=..%2F..%2Fx", ErrorCode::BuildFailed),
    ] {
        world.upload("", request, &tar(&[dockerfile]))?.error(code)?;
    }
    world.break_off("POST /v1/images/import?name=half", 1 << 20, &whole)?;
    assert!(!outside.exists() && images(&world)?.iter().all(String::is_empty), "{:?}", images(&world)?);
    world.until("nothing is left", |world| Ok(is_clean(&world.library())))
}

#[test]
fn a_dockerfile_without_commands_needs_no_guest() -> Result<(), Failure> {
    if !is_root() {
        return Ok(());
    }
    let world = World::new()?;
    let context = tar(&[
        ("sub/Dockerfile", FILE, b"FROM scratch AS first\nARG WHO\nENV HELLO=$WHO\nFROM first\nLABEL a=b\n"),
        ("sub/forkd.toml", FILE, b"vcpus = 2\n[ready]\nport = 80\n"),
    ]);
    let build = "POST /v1/images/build?name=built&dockerfile=sub%2FDockerfile&build_arg=WHO=you";
    let image: Image = world.upload("", build, &context)?.parsed(201)?;
    assert_eq!((&image.config.env["HELLO"][..], &image.config.labels["a"][..]), ("you", "b"));
    let recipe = image.recipe.ok_or("no recipe")?;
    assert_eq!((recipe.vcpus, recipe.ready.and_then(|ready| ready.port)), (Some(2), Some(80)));
    let again: Image = world.upload("", build, &context)?.parsed(201)?;
    assert_eq!(again.summary.id, image.summary.id);
    let first: Image = world.upload("", &format!("{build}&target=first"), &context)?.parsed(201)?;
    assert!(first.config.labels.is_empty());
    world.upload("", &build.replace("WHO=", "WHI="), &context)?.error(ErrorCode::BuildFailed)?;
    // What is apart is read, and is nothing that can be copied.
    let aside = tar(&[
        ("outside/Dockerfile", FILE, b"FROM scratch\nCOPY outside /\n"),
        ("outside/forkd.toml", FILE, b""),
        ("a", FILE, b"x"),
    ]);
    let outside = "POST /v1/images/build?dockerfile=outside%2FDockerfile&apart=outside";
    let error = world.upload("", outside, &aside)?.error(ErrorCode::BuildFailed)?;
    assert!(error.error.contains("\"outside\" is not in the build context"), "{error:?}");
    world.upload("", "POST /v1/images/build?apart=", &aside)?.error(ErrorCode::Malformed)?;
    // What nobody names any more goes, and what has a name stays.
    let pruned: PrunedImages = world.tell("POST /v1/images/prune", json!({ "images": true }))?.parsed(200)?;
    assert!(pruned.images >= 1 && pruned.freed_bytes > 0, "{pruned:?}");
    assert_eq!(images(&world)?, ["built:latest"]);
    assert!(is_clean(&world.library()));
    Ok(())
}

#[test]
fn a_registry_s_image_is_pulled_once_for_a_key_and_with_a_password() -> Result<(), Failure> {
    if !is_root() {
        return Ok(());
    }
    let world = World::with(&["--log", "trace"])?;
    let registry = Registry::start(&tar(&[("a", FILE, b"x")]))?;
    let reference = format!("{}/app:latest", registry.address);
    let pull = "POST /v1/images/pull";
    let mut body = json!({ "reference": &reference, "name": "pulled" });
    world.tell(pull, body.clone())?.error(ErrorCode::UpstreamFailed)?;
    body["credentials"] = json!({ "username": USER, "password": PASSWORD });
    let key = "idempotency-key: one\r\n";
    let image: Image = world.tell_with(key, pull, body.clone())?.parsed(201)?;
    assert_eq!(
        (&image.summary.names[..], &image.config.cmd[..]),
        (&["pulled:latest".to_owned()][..], &["run".to_owned()][..])
    );
    let asked = registry.asked.load(Ordering::Relaxed);
    let again = world.tell_with(key, pull, body.clone())?;
    assert!(again.head.contains("idempotency-replayed"), "{again:?}");
    assert_eq!(again.parsed::<Image>(201)?.summary.id, image.summary.id);
    assert_eq!(registry.asked.load(Ordering::Relaxed), asked);
    world.refuses(ErrorCode::Malformed, pull, json!({ "reference": "a b" }))?;
    world.refuses(ErrorCode::UpstreamFailed, pull, json!({ "reference": "127.0.0.1:9/none:latest" }))?;
    assert!(!world.log().contains(PASSWORD), "a password is in the log");
    assert!(is_clean(&world.library()));
    Ok(())
}

#[test]
fn whoever_goes_away_ends_what_is_being_pulled_and_so_does_the_daemon() -> Result<(), Failure> {
    if !is_root() {
        return Ok(());
    }
    let mut world = World::new()?;
    let registry = Registry::start(b"")?;
    let body = json!({
        "reference": format!("{}/app:stuck", registry.address),
        "credentials": { "username": USER, "password": PASSWORD },
    });
    let stuck = |world: &World| -> Result<_, Failure> {
        let mut lines = world.lines_of(STREAM, "POST /v1/images/pull", &body)?;
        while !lines.next()?.ok_or("the stream has ended")?.to_string().contains("layer 1 of 1") {}
        assert!(!is_clean(&world.library()));
        Ok(lines)
    };
    drop(stuck(&world)?);
    world.until("nothing is left of the stream", |world| Ok(is_clean(&world.library())))?;
    world.abandon("POST /v1/images/pull", &body, std::time::Duration::from_millis(300))?;
    world.until("nothing is left", |world| Ok(is_clean(&world.library())))?;
    let _lines = stuck(&world)?;
    world.end(Signal::TERM)?;
    assert!(is_clean(&world.library()), "{}", world.log());
    Ok(())
}

/// The guest of the step has no agent, so it never gets anywhere.
#[test]
fn whoever_goes_away_ends_a_build_and_its_guest() -> Result<(), Failure> {
    if !is_root() {
        return Ok(());
    }
    // It is never run.
    let world = World::with(&["--agent", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")])?;
    fill(&world.library())?;
    let context = tar(&[("Dockerfile", FILE, b"FROM scratch\nCOPY Dockerfile /\n")]);
    let build = "POST /v1/images/build?memory_mib=64&name=never";
    std::thread::scope(|scope| -> Result<(), Failure> {
        // Half a minute at most: it goes away by itself.
        scope.spawn(|| world.break_off(build, context.len(), &context));
        Ok(())
    })?;
    world.until("its VM ends and nothing is left", |world| {
        Ok(tiny::vms(&world.root()).is_empty() && is_clean(&world.library()))
    })?;
    assert_eq!(tiny::names(&world.root(), "passing"), [""; 0]);
    assert!(!images(&world)?.contains(&"never:latest".to_owned()));
    Ok(())
}

#[test]
fn an_image_that_a_snapshot_needs_stays() -> Result<(), Failure> {
    let id = Digest::of(b"image");
    let world = World::with_base(&[], |world, base| {
        // The engine that makes the snapshot has a library of its own.
        fill(&world.root())?;
        fill(&world.library())?;
        base.shape.image = Some(id);
        if let Some(disk) = base.shape.devices.disks.first_mut() {
            disk.base = true;
        }
        Ok(())
    })?;
    let error = world.ask("DELETE /v1/images/empty")?.error(ErrorCode::HasDependents)?;
    assert!(error.error.contains("snapshot base"), "{error:?}");
    world.ask(&format!("DELETE /v1/images/{}", id.hex()))?.error(ErrorCode::HasDependents)?;
    assert_eq!(images(&world)?, ["empty:latest"]);
    // A sandbox needs it as well, when its snapshot is gone.
    let sandbox = world.fork("base", 1)?.remove(0).id;
    world.ask("DELETE /v1/snapshots/base")?.parsed::<Value>(200)?;
    let error = world.ask("DELETE /v1/images/empty")?.error(ErrorCode::HasDependents)?;
    assert!(error.error.contains(&format!("sandbox {sandbox}")), "{error:?}");
    world.ask(&format!("DELETE /v1/sandboxes/{sandbox}"))?;
    let removed: RemovedImage = world.ask("DELETE /v1/images/empty")?.parsed(200)?;
    assert!(removed.removed);
    Ok(())
}

#[test]
fn kernels_are_sent_chosen_and_removed() -> Result<(), Failure> {
    if !is_root() {
        return Ok(());
    }
    let world = World::new()?;
    let kernel =
        |version: &str| [guest::elf(100), format!("Linux version {version} (x)\0").into_bytes()].concat();
    let send = |query: &str, entries: &[(&str, EntryType, &[u8])]| {
        world.upload("", &format!("POST /v1/kernels/import{query}"), &tar(entries))
    };
    let one: Kernel = send("", &[("kernel", FILE, &kernel("6.1.2"))])?.parsed(201)?;
    assert!(one.default && one.version == "6.1.2" && one.name.starts_with("6.1.2-"), "{one:?}");
    let two: Kernel = send("?default=true", &[("kernel", FILE, &kernel("6.1.3"))])?.parsed(201)?;
    let list: KernelList = world.ask("GET /v1/kernels")?.parsed(200)?;
    let defaults: Vec<bool> = list.kernels.iter().map(|kernel| kernel.default).collect();
    assert_eq!(defaults, [false, true]);

    for entries in [
        &[("kernel", FILE, &b"text"[..])][..],
        &[("kernel", LINK, b"/etc/passwd")],
        &[("../kernel", FILE, b"x")],
        &[],
    ] {
        send("", entries)?.error(ErrorCode::Malformed)?;
    }
    for path in ["/boot/vmlinuz", "../../x"] {
        let body = json!({ "path": path });
        world.refuses(ErrorCode::Malformed, "POST /v1/kernels", body)?;
        let body = json!({ "source": "host", "version": path });
        world.refuses(ErrorCode::NotFound, "POST /v1/kernels", body)?;
    }
    let delete = format!("DELETE /v1/kernels/{}", two.name);
    world.ask(&delete)?.error(ErrorCode::WrongState)?;
    let chosen: Kernel = world.tell("PUT /v1/kernels/default", json!({ "kernel": "6.1.2" }))?.parsed(200)?;
    assert!(chosen.default && chosen.name == one.name);
    world.refuses(ErrorCode::Malformed, "PUT /v1/kernels/default", json!({ "kernel": "6.1" }))?;
    world.refuses(ErrorCode::NotFound, "PUT /v1/kernels/default", json!({ "kernel": "7" }))?;
    for _ in 0..2 {
        assert_eq!(world.ask(&delete)?.parsed::<Kernel>(200)?.name, two.name);
    }
    world.ask("DELETE /v1/kernels/none")?.error(ErrorCode::NotFound)?;
    world.ask(&format!("DELETE /v1/kernels/{}?force=true", one.name))?.parsed::<Kernel>(200)?;
    assert!(world.ask("GET /v1/kernels")?.parsed::<KernelList>(200)?.kernels.is_empty());
    assert!(is_clean(&world.library()));
    Ok(())
}

#[test]
fn a_shared_library_is_used_and_never_changed() -> Result<(), Failure> {
    let shared = tempfile::tempdir()?;
    fill(shared.path())?;
    let path = shared.path().to_str().ok_or("no path")?;
    // It is never run.
    let agent = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let world = World::with(&["--agent", agent, "--shared-library", path])?;
    let before = everything(shared.path());
    let image: Image = world.ask("GET /v1/images/empty")?.parsed(200)?;
    assert!(image.summary.shared);
    let kernels = world.ask("GET /v1/kernels")?.parsed::<KernelList>(200)?.kernels;
    assert!(kernels.len() == 1 && kernels[0].shared && kernels[0].default);
    world.ask("DELETE /v1/images/empty")?.error(ErrorCode::WrongState)?;
    world.ask("DELETE /v1/kernels/tiny?force=true")?.error(ErrorCode::WrongState)?;
    let body = json!({ "tag": "t", "image": "empty", "network": false, "memory_mib": 64 });
    let mut lines = world.lines_of(STREAM, "POST /v1/snapshots", &body)?;
    while lines.next()?.ok_or("the stream has ended")?["step"] != "boot" {}
    drop(lines);
    world.until("its VM ends", |world| Ok(tiny::vms(&world.root()).is_empty()))?;
    assert_eq!(everything(shared.path()), before);
    Ok(())
}

fn everything(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            found.extend(everything(&entry.path()));
        }
        found.push(entry.path().display().to_string());
    }
    found.sort();
    found
}
