//! Snapshots by way of a real registry on loopback: Debian's package docker-registry.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends there")]

#[path = "registry/tools.rs"]
mod tools;

use std::fs::{self, File};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use forkd_hub::registry::{PushOptions, Pushed, Repository};
use forkd_hub::trust::{SigningKey, VerifyError};
use forkd_hub::{
    About, Annotations, FRAME_SIZE, FrameTable, Outgoing, Role, Silent, Snapshot, Variant, first_variant,
};

/// A registry that ends with the test.
struct Registry {
    process: Child,
    address: String,
    _directory: tempfile::TempDir,
}

impl Registry {
    fn start() -> Registry {
        let directory = tempfile::tempdir().unwrap();
        let config = directory.path().join("config.yml");
        // The port is free a moment before; should someone take it, the next one is tried.
        for _ in 0..5 {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let address = format!("127.0.0.1:{port}");
            let text = format!(
                "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: {address}\n",
                directory.path().join("storage").display()
            );
            fs::write(&config, text).unwrap();
            let mut process = Command::new("docker-registry")
                .args(["serve", config.to_str().unwrap()])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("docker-registry starts; scripts/setup installs it");
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_secs(20) && process.try_wait().unwrap().is_none() {
                if TcpStream::connect(&address).is_ok() {
                    return Registry { process, address, _directory: directory };
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            let _ = process.kill();
            let _ = process.wait();
        }
        panic!("the registry did not start");
    }

    fn repository(&self, name: &str) -> Repository {
        Repository::new(&format!("{}/{name}", self.address), None).unwrap()
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A file with pages of noise and pages of one byte, like memory.
fn memory(mib: u64, seed: u8) -> File {
    let mut file = tempfile::tempfile().unwrap();
    for page in 0..mib * 256 {
        let mut bytes = [u8::try_from(page % 251).unwrap(); 4096];
        let mut output = blake3::Hasher::new().update(&[seed]).update(&page.to_le_bytes()).finalize_xof();
        output.fill(&mut bytes[..2048]);
        file.write_all(&bytes).unwrap();
    }
    file
}

fn same(one: &File, other: &File) -> bool {
    let length = one.metadata().unwrap().len();
    let digest = |file: &File| {
        let mut hash = blake3::Hasher::new();
        let mut buffer = vec![0; 1 << 20];
        for offset in (0..length).step_by(1 << 20) {
            let part = usize::try_from(length - offset).unwrap().min(1 << 20);
            file.read_exact_at(&mut buffer[..part], offset).unwrap();
            hash.update(&buffer[..part]);
        }
        hash.finalize()
    };
    other.metadata().unwrap().len() == length && digest(one) == digest(other)
}

fn outgoing<'a>(role: Role, name: &'a str, source: &'a File) -> Outgoing<'a> {
    Outgoing { role, name, source, known: None, remembered: None }
}

fn push(repository: &Repository, streams: &[Outgoing<'_>], options: &PushOptions) -> Pushed {
    let snapshot = Snapshot { streams, about: &About::new(), annotations: &Annotations::new() };
    repository.push(snapshot, options, &Silent).unwrap()
}

fn known(table: &FrameTable) -> Vec<blake3::Hash> {
    table.frame_digests().collect()
}

#[test]
fn a_snapshot_goes_to_a_registry_and_comes_back() {
    let registry = Registry::start();
    let repository = registry.repository("team/base:v1");
    let (base, state) = (memory(150, 1), memory(1, 2));
    let streams = [outgoing(Role::Memory, "base", &base), outgoing(Role::State, "base", &state)];
    let pushed = push(&repository, &streams, &PushOptions::default());
    assert_eq!(pushed.streams[0].table.blobs().len(), 3);
    assert_eq!(repository.tags(&Silent).unwrap(), ["v1"]);
    assert_eq!(repository.resolve(&Silent).unwrap(), pushed.digest);

    let artifact = repository.open(&first_variant, &Silent).unwrap();
    assert_eq!(artifact.digest(), pushed.digest);
    assert_eq!(artifact.compressed_size(), pushed.sent);
    for (stream, sent) in artifact.streams().iter().zip([&base, &state]) {
        let file = tempfile::tempfile().unwrap();
        repository.fetch(stream, &|_| false, &file, &Silent).unwrap();
        assert!(same(sent, &file));
        // The rest of a stream that is there up to its third frame: ranges.
        let fetched = repository.fetch(stream, &|frame| frame < 3, &file, &Silent).unwrap();
        assert_eq!(fetched.raw, stream.table.size().saturating_sub(3 * FRAME_SIZE));
        assert!(same(sent, &file));
    }

    // By its digest, and once more: nothing is sent.
    let by_digest = registry.repository(&format!("team/base@{}", pushed.digest));
    assert_eq!(by_digest.open(&first_variant, &Silent).unwrap(), artifact);
    let again = push(&repository, &streams, &PushOptions::default());
    assert_eq!((again.sent, again.digest), (0, pushed.digest));
}

#[test]
fn a_diff_sends_its_own_bytes_only() {
    let registry = Registry::start();
    let (base, diff) = (memory(80, 1), memory(4, 2));
    let first = push(
        &registry.repository("team/base:v1"),
        &[outgoing(Role::Memory, "base", &base)],
        &PushOptions::default(),
    );
    let table = &first.streams[0].table;
    let digests = known(table);
    // The whole chain, to another repository: the parent's blobs are mounted, and not even read.
    let parent =
        Outgoing { known: Some(&digests), remembered: Some(table), ..outgoing(Role::Memory, "base", &base) };
    let options = PushOptions { mount_from: vec!["team/base".into()], ..PushOptions::default() };
    let child = registry.repository("team/child:v1");
    let pushed = push(&child, &[parent, outgoing(Role::Memory, "child", &diff)], &options);
    assert_eq!(pushed.mounted, first.sent);
    assert_eq!(pushed.sent, pushed.streams[1].table.compressed_size());
    let artifact = child.open(&first_variant, &Silent).unwrap();
    for (stream, sent) in artifact.streams().iter().zip([&base, &diff]) {
        let file = tempfile::tempfile().unwrap();
        child.fetch(stream, &|_| false, &file, &Silent).unwrap();
        assert!(same(sent, &file));
    }
}

#[test]
fn variants_and_signatures_are_found() {
    let registry = Registry::start();
    let repository = registry.repository("team/base:v1");
    let variants = ["v2", "v3"].map(|cpu| {
        let state = memory(1, cpu.as_bytes()[1]);
        let options = PushOptions { variant: Some(cpu.into()), ..PushOptions::default() };
        push(&repository, &[outgoing(Role::State, "base", &state)], &options)
    });
    let index = variants[1].root;
    let select = |variants: &[Variant]| {
        let found = variants.iter().position(|variant| variant.name() == Some("v3"));
        found.ok_or_else(|| "there is no v3".to_owned())
    };
    let artifact = repository.open(&select, &Silent).unwrap();
    assert_eq!((artifact.digest(), artifact.root_digest()), (variants[1].digest, index));

    let (key, other) = (SigningKey::generate().unwrap(), SigningKey::generate().unwrap());
    let keys = [key.public()];
    assert!(matches!(repository.verify(index, &keys, &Silent), Err(VerifyError::Unsigned { .. })));
    repository.sign(index, &other, &Silent).unwrap();
    assert!(matches!(repository.verify(index, &keys, &Silent), Err(VerifyError::NotTrusted { .. })));
    repository.sign(index, &key, &Silent).unwrap();
    assert_eq!(repository.verify(index, &keys, &Silent).unwrap(), &keys[0]);
}
