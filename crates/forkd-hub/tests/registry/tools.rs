//! The same as others see it: oras reads and copies artifacts, cosign makes and checks signatures.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use forkd_hub::layout::{self, Layout};
use forkd_hub::registry::{PushOptions, Repository};
use forkd_hub::trust::{PublicKey, SigningKey};
use forkd_hub::{About, Annotations, Artifact, Role, Silent, Snapshot, first_variant};

use super::{Registry, memory, outgoing, push, same};

/// Runs a tool, which must succeed; returns its standard output.
fn run(tool: &str, home: &Path, arguments: &[&dyn AsRef<OsStr>]) -> Vec<u8> {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("oci-tools");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/oci-tools");
    let set_up = Command::new(script).arg(&directory).output().unwrap();
    assert!(set_up.status.success(), "{}", String::from_utf8_lossy(&set_up.stderr));
    let output = Command::new(directory.join("bin").join(tool))
        .args(arguments.iter().map(|argument| (*argument).as_ref()))
        .env("HOME", home)
        .env("COSIGN_PASSWORD", "")
        .current_dir(home)
        .output()
        .unwrap();
    assert!(output.status.success(), "{tool}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn assert_fetches(artifact: &Artifact, sent: &[&File], fetch: impl Fn(&forkd_hub::Stream, &File)) {
    for (stream, sent) in artifact.streams().iter().zip(sent) {
        let file = tempfile::tempfile().unwrap();
        fetch(stream, &file);
        assert!(same(sent, &file), "{:?}", stream.role);
    }
}

fn fetch_all(repository: &Repository, artifact: &Artifact, sent: &[&File]) {
    assert_fetches(artifact, sent, |stream, file| {
        repository.fetch(stream, &|_| false, file, &Silent).unwrap();
    });
}

#[test]
fn oras_reads_and_copies_what_we_push() {
    let registry = Registry::start();
    let home = tempfile::tempdir().unwrap();
    let repository = registry.repository("team/base:v1");
    let (base, state) = (memory(70, 1), memory(1, 2));
    let streams = [outgoing(Role::Memory, "base", &base), outgoing(Role::State, "base", &state)];
    let pushed = push(&repository, &streams, &PushOptions::default());

    let manifest =
        run("oras", home.path(), &[&"manifest", &"fetch", &"--plain-http", &repository.reference()]);
    let manifest: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
    assert_eq!(manifest["artifactType"], "application/vnd.forkd.snapshot.v1");
    assert_eq!(manifest["config"]["mediaType"], "application/vnd.forkd.snapshot.config.v1+json");
    assert_eq!(manifest["layers"].as_array().unwrap().len(), 3);

    // To a directory and, as a tar, back to us.
    let directory = home.path().join("layout");
    let target = format!("{}:v1", directory.display());
    run(
        "oras",
        home.path(),
        &[&"cp", &"--from-plain-http", &repository.reference(), &"--to-oci-layout", &target],
    );
    let tar = home.path().join("layout.tar");
    let packed = Command::new("tar").arg("-cf").arg(&tar).arg("-C").arg(&directory).arg(".").status();
    assert!(packed.unwrap().success());
    let layout = Layout::unpack(File::open(&tar).unwrap(), home.path(), 1 << 30, &Silent).unwrap();
    let artifact = layout.open(&first_variant).unwrap();
    assert_eq!(artifact.digest(), pushed.digest);
    assert_fetches(&artifact, &[&base, &state], |stream, file| {
        layout.fetch(stream, &|_| false, file, &Silent).unwrap();
    });
}

#[test]
fn oras_copies_our_files_to_a_registry() {
    let registry = Registry::start();
    let home = tempfile::tempdir().unwrap();
    let state = memory(3, 2);
    let streams = [outgoing(Role::State, "base", &state)];
    let snapshot = Snapshot { streams: &streams, about: &About::new(), annotations: &Annotations::new() };
    let tar = home.path().join("snapshot.tar");
    let written = layout::write(File::create(&tar).unwrap(), snapshot, Some("v1"), &Silent).unwrap();

    let repository = registry.repository("team/copied:v1");
    let source = format!("{}:v1", tar.display());
    run(
        "oras",
        home.path(),
        &[&"cp", &"--from-oci-layout", &source, &"--to-plain-http", &repository.reference()],
    );
    let artifact = repository.open(&first_variant, &Silent).unwrap();
    assert_eq!(artifact.digest(), written.digest);
    fetch_all(&repository, &artifact, &[&state]);
}

#[test]
fn cosign_and_forkd_accept_each_other_s_signatures() {
    let registry = Registry::start();
    let home = tempfile::tempdir().unwrap();
    let repository = registry.repository("team/base:v1");
    let state = memory(1, 2);
    let digest = push(&repository, &[outgoing(Role::State, "base", &state)], &PushOptions::default()).digest;
    let reference = format!("{}@{digest}", repository.name());

    let ours = SigningKey::generate().unwrap();
    repository.sign(digest, &ours, &Silent).unwrap();
    let our_public = home.path().join("ours.pub");
    fs::write(&our_public, ours.public().to_pem()).unwrap();
    let cosign_accepts = |key: &Path| {
        let arguments: [&dyn AsRef<OsStr>; 6] = [
            &"verify",
            &"--key",
            &key,
            &"--insecure-ignore-tlog=true",
            &"--allow-http-registry=true",
            &reference,
        ];
        let payloads: serde_json::Value =
            serde_json::from_slice(&run("cosign", home.path(), &arguments)).unwrap();
        assert_eq!(payloads[0]["critical"]["image"]["docker-manifest-digest"], digest.to_string());
    };
    cosign_accepts(&our_public);

    // cosign's signature beside ours, with a key of cosign's.
    run("cosign", home.path(), &[&"generate-key-pair"]);
    run(
        "cosign",
        home.path(),
        &[
            &"sign",
            &"--key",
            &"cosign.key",
            &"--tlog-upload=false",
            &"--allow-http-registry=true",
            &"-y",
            &reference,
        ],
    );
    let theirs = PublicKey::from_pem(&fs::read_to_string(home.path().join("cosign.pub")).unwrap()).unwrap();
    let keys = [theirs, ours.public()];
    assert_eq!(repository.verify(digest, &keys[..1], &Silent).unwrap(), &keys[0]);
    assert_eq!(repository.verify(digest, &keys[1..], &Silent).unwrap(), &keys[1]);

    // Ours after cosign's keeps both.
    let third = SigningKey::generate().unwrap();
    repository.sign(digest, &third, &Silent).unwrap();
    let third_public = home.path().join("third.pub");
    fs::write(&third_public, third.public().to_pem()).unwrap();
    for key in [&third_public, &our_public, &home.path().join("cosign.pub")] {
        cosign_accepts(key);
    }
}
