//! Images by way of a real registry on loopback (Debian's package docker-registry), and as whole archives.
//!
//! Needs root, as images do; for others there is nothing to see here.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends there")]

use std::fs;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use forkd_image::Silent;
use forkd_image::archive::Limits;
use forkd_image::digest::Digest;
use forkd_image::images::{Image, ImageError, ImageStore, Source};
use forkd_image::import::{Import, import};
use forkd_image::registry::{Pull, PullError, pull};
use oci_client::client::{ClientConfig, ClientProtocol};
use oci_client::secrets::RegistryAuth;
use oci_client::{Client, Reference, RegistryOperation};

/// A registry that ends with the test.
struct Registry {
    process: Child,
    address: String,
    directory: tempfile::TempDir,
}

impl Registry {
    fn start() -> Registry {
        let directory = tempfile::tempdir().unwrap();
        let storage = directory.path().join("storage");
        let config = directory.path().join("config.yml");
        // The port is free a moment before; should someone take it, the next one is tried.
        for _ in 0..5 {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let address = format!("127.0.0.1:{port}");
            let text = format!(
                "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: {address}\n",
                storage.display()
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
                    return Registry { process, address, directory };
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            let _ = process.kill();
            let _ = process.wait();
        }
        panic!("the registry did not start");
    }

    /// Where the registry keeps a blob.
    fn blob(&self, digest: Digest) -> PathBuf {
        let hex = digest.hex();
        let blobs = self.directory.path().join("storage/docker/registry/v2/blobs/sha256");
        blobs.join(&hex[..2]).join(&hex).join("data")
    }

    fn push(&self, name: &str, image: &OciImage) {
        let reference: Reference = format!("{}/{name}", self.address).parse().unwrap();
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            let _ = rustls::crypto::ring::default_provider().install_default();
            let client =
                Client::new(ClientConfig { protocol: ClientProtocol::Http, ..ClientConfig::default() });
            client.auth(&reference, &RegistryAuth::Anonymous, RegistryOperation::Push).await.unwrap();
            for blob in image.blobs.iter() {
                client.push_blob(&reference, blob.clone(), &Digest::of(blob).to_string()).await.unwrap();
            }
            for (manifest, kind) in &image.manifests {
                // All but the last are named by digest only.
                let tagged = std::ptr::eq(manifest, &image.manifests.last().unwrap().0);
                let target = if tagged {
                    reference.clone()
                } else {
                    reference.clone_with_digest(Digest::of(manifest).to_string())
                };
                client.push_manifest_raw(&target, manifest.clone(), kind.parse().unwrap()).await.unwrap();
            }
        });
    }

    fn pull(&self, store: &ImageStore, name: &str) -> Result<Image, PullError> {
        let reference = format!("{}/{name}", self.address);
        pull(
            store,
            &Pull { reference, name: None, min_mib: None, limits: Limits::default(), credentials: None },
            &Silent,
        )
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// An image as a registry has it.
struct OciImage {
    blobs: Vec<Vec<u8>>,
    manifests: Vec<(Vec<u8>, &'static str)>,
    layers: Vec<Digest>,
}

const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";

struct Tar(tar::Builder<Vec<u8>>);

impl Tar {
    fn new() -> Tar {
        Tar(tar::Builder::new(Vec::new()))
    }

    fn add(mut self, path: &str, kind: tar::EntryType, mode: u32, owner: u64, content: &[u8]) -> Tar {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(owner);
        header.set_gid(owner);
        header.set_mtime(1_000_000_000);
        header.set_size(content.len() as u64);
        self.0.append_data(&mut header, path, content).unwrap();
        self
    }

    fn file(self, path: &str, content: &[u8]) -> Tar {
        self.add(path, tar::EntryType::Regular, 0o644, 0, content)
    }

    fn link(mut self, kind: tar::EntryType, path: &str, target: &str) -> Tar {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(0o777);
        header.set_size(0);
        self.0.append_link(&mut header, path, target).unwrap();
        self
    }

    fn bytes(self) -> Vec<u8> {
        self.0.into_inner().unwrap()
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Three layers, one in each compression: users, a whiteout, links across layers.
fn layers() -> Vec<Vec<u8>> {
    use tar::EntryType;
    let lower = Tar::new()
        .file("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\napp:x:1001:1001::/home/app:/bin/sh\n")
        .add("home/app/", EntryType::Directory, 0o700, 1001, b"")
        .add("usr/bin/su", EntryType::Regular, 0o4755, 0, b"su")
        .link(EntryType::Symlink, "bin", "usr/bin")
        .file("data/old", b"old")
        .file("data/kept", b"kept")
        .file("cache/a", b"a");
    let middle = Tar::new()
        .file("data/.wh.old", b"")
        .link(EntryType::Link, "data/same", "data/kept")
        .file("cache/.wh..wh..opq", b"")
        .file("cache/b", b"b");
    let upper = Tar::new().file("app/main", b"#!").file("bin/tool", b"tool");
    vec![lower.bytes(), middle.bytes(), upper.bytes()]
}

fn config(architecture: &str, layers: &[Digest]) -> Vec<u8> {
    serde_json::json!({
        "architecture": architecture,
        "os": "linux",
        "config": {
            "Env": ["PATH=/usr/bin", "GREETING=hello=world"],
            "User": "app",
            "WorkingDir": "/app",
            "Entrypoint": ["/app/main"],
            "Cmd": ["--serve"],
            "Labels": {"org.example": "yes"},
        },
        "rootfs": {"type": "layers", "diff_ids": layers},
    })
    .to_string()
    .into_bytes()
}

fn descriptor(kind: &str, bytes: &[u8]) -> serde_json::Value {
    serde_json::json!({"mediaType": kind, "digest": Digest::of(bytes), "size": bytes.len()})
}

fn oci_image(architecture: &str) -> OciImage {
    let unpacked = layers();
    let layers: Vec<Digest> = unpacked.iter().map(|layer| Digest::of(layer)).collect();
    let blobs = vec![gzip(&unpacked[0]), zstd::encode_all(&unpacked[1][..], 1).unwrap(), unpacked[2].clone()];
    let kinds =
        ["tar+gzip", "tar+zstd", "tar"].map(|kind| format!("application/vnd.oci.image.layer.v1.{kind}"));
    let config = config(architecture, &layers);
    let manifest = serde_json::json!({
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
        "layers": kinds.iter().zip(&blobs).map(|(kind, blob)| descriptor(kind, blob)).collect::<Vec<_>>(),
    });
    let blobs = blobs.into_iter().chain([config]).collect();
    OciImage { blobs, manifests: vec![(manifest.to_string().into_bytes(), OCI_MANIFEST)], layers }
}

/// The image for two platforms behind an index; ours is not the first.
fn indexed_image() -> OciImage {
    let (ours, other) = (oci_image("amd64"), oci_image("arm64"));
    let entry = |image: &OciImage, architecture: &str| {
        let mut entry = descriptor(OCI_MANIFEST, &image.manifests[0].0);
        entry["platform"] = serde_json::json!({"os": "linux", "architecture": architecture});
        entry
    };
    let index = serde_json::json!({
        "schemaVersion": 2,
        "mediaType": OCI_INDEX,
        "manifests": [entry(&other, "arm64"), entry(&ours, "amd64")],
    });
    let blobs = ours.blobs.into_iter().chain(other.blobs).collect();
    let manifests = ours.manifests.into_iter().chain(other.manifests);
    let manifests = manifests.chain([(index.to_string().into_bytes(), OCI_INDEX)]).collect();
    OciImage { blobs, manifests, layers: ours.layers }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn debugfs(image: &Image, request: &str) -> String {
    let output = Command::new("/usr/sbin/debugfs").args(["-R", request]).arg(image.base()).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Everything that the layers and the configuration say.
fn check(image: &Image) {
    let config = &image.metadata.config;
    assert_eq!(config.env["GREETING"], "hello=world");
    assert_eq!((config.user.as_deref(), config.workdir.as_deref()), (Some("app"), Some("/app")));
    assert_eq!((&config.entrypoint[0][..], &config.cmd[0][..]), ("/app/main", "--serve"));
    assert_eq!((&config.labels["org.example"][..], &image.metadata.default_user[..]), ("yes", "app"));

    let has = |path: &str| debugfs(image, &format!("stat {path}")).contains("Inode:");
    assert!(!has("/data/old") && has("/data/kept") && !has("/data/.wh.old"));
    assert!(!has("/cache/a") && has("/cache/b") && !has("/cache/.wh..wh..opq"));
    let kept = debugfs(image, "stat /data/kept");
    assert!(kept.contains("Links: 2") && kept == debugfs(image, "stat /data/same"), "{kept}");
    assert!(debugfs(image, "stat /home/app").contains("User:  1001   Group:  1001"));
    assert!(debugfs(image, "stat /usr/bin/su").contains("Mode:  04755"));
    // Through the link that a lower layer brought.
    assert!(has("/usr/bin/tool") && debugfs(image, "stat /bin").contains("Fast link dest: \"usr/bin\""));
    assert!(debugfs(image, "cat /etc/passwd").contains("app:x:1001"));
}

#[test]
fn an_image_is_pulled_whole() {
    if !is_root() {
        return;
    }
    let registry = Registry::start();
    let home = tempfile::tempdir().unwrap();
    let store = ImageStore::new(home.path());
    let source = indexed_image();
    registry.push("team/app:v1", &source);
    let image = registry.pull(&store, "team/app:v1").unwrap();
    check(&image);
    assert_eq!(image.metadata.layers, source.layers);
    assert_eq!(image.names, [format!("{}/team/app:v1", registry.address)]);
    let manifest = Digest::of(&source.manifests[0].0).to_string();
    assert!(matches!(&image.metadata.source, Source::Registry { manifest: found, .. } if *found == manifest));

    // Again, and by digest: the same image, without its layers, which are gone.
    fs::remove_file(registry.blob(Digest::of(&source.blobs[0]))).unwrap();
    assert_eq!(registry.pull(&store, "team/app:v1").unwrap().id(), image.id());
    let by_digest = format!("team/app@{manifest}");
    assert_eq!(registry.pull(&store, &by_digest).unwrap().names.len(), 2);
    assert_eq!(store.list().unwrap().len(), 1);

    // Docker's own types mean the same.
    let mut docker = oci_image("amd64");
    docker.blobs[1] = gzip(&layers()[1]);
    let kind = "application/vnd.docker.image.rootfs.diff.tar.gzip";
    docker.blobs[2] = gzip(&layers()[2]);
    let manifest = serde_json::json!({
        "schemaVersion": 2,
        "mediaType": DOCKER_MANIFEST,
        "config": descriptor("application/vnd.docker.container.image.v1+json", &docker.blobs[3]),
        "layers": docker.blobs[..3].iter().map(|blob| descriptor(kind, blob)).collect::<Vec<_>>(),
    });
    docker.manifests = vec![(manifest.to_string().into_bytes(), DOCKER_MANIFEST)];
    registry.push("team/docker:v1", &docker);
    let other = ImageStore::new(&home.path().join("other"));
    let same = registry.pull(&other, "team/docker:v1").unwrap();
    assert_eq!((same.id(), same.metadata.digest), (image.id(), image.metadata.digest));
}

#[test]
fn what_was_tampered_with_is_refused_and_nothing_is_left() {
    if !is_root() {
        return;
    }
    let registry = Registry::start();
    let home = tempfile::tempdir().unwrap();
    let store = ImageStore::new(home.path());
    let is_empty = || fs::read_dir(store.directory()).unwrap().count() == 0;

    let image = oci_image("amd64");
    registry.push("app:bad", &image);
    let path = registry.blob(Digest::of(&image.blobs[0]));
    let mut blob = fs::read(&path).unwrap();
    let middle = blob.len() / 2;
    blob[middle] ^= 1;
    fs::write(&path, &blob).unwrap();
    let error = registry.pull(&store, "app:bad").unwrap_err();
    assert!(error.to_string().starts_with("cannot get layer 1 of 3"), "{error}");
    assert!(is_empty());

    // The digest of the layer is right, that of what is in it is not.
    let mut lying = oci_image("amd64");
    lying.layers.swap(0, 2);
    lying.blobs[3] = config("amd64", &lying.layers);
    let mut manifest: serde_json::Value = serde_json::from_slice(&lying.manifests[0].0).unwrap();
    manifest["config"] = descriptor("application/vnd.oci.image.config.v1+json", &lying.blobs[3]);
    lying.manifests[0].0 = manifest.to_string().into_bytes();
    // The blob above is damaged, and this image shares it.
    let registry = Registry::start();
    registry.push("app:lying", &lying);
    let error = registry.pull(&store, "app:lying").unwrap_err();
    assert!(matches!(error, PullError::Image(ImageError::WrongLayer { .. })), "{error}");
    assert!(is_empty());

    registry.push("app:arm", &oci_image("arm64"));
    let error = registry.pull(&store, "app:arm").unwrap_err();
    assert_eq!(error.to_string(), "the image is for linux/arm64, expected linux/amd64");
    let error = registry.pull(&store, "app:none").unwrap_err();
    assert!(error.to_string().contains("cannot get the manifest of"), "{error}");
    assert!(is_empty());
}

fn archive(files: &[(String, &[u8])]) -> Vec<u8> {
    files.iter().fold(Tar::new(), |tar, (path, content)| tar.file(path, content)).bytes()
}

fn import_bytes(store: &ImageStore, directory: &Path, bytes: &[u8]) -> Result<Image, String> {
    let file = directory.join("image.tar");
    fs::write(&file, bytes).unwrap();
    let wanted = Import { file, name: None, min_mib: None, limits: Limits::default() };
    import(store, &wanted, &Silent).map_err(|error| {
        let source = std::error::Error::source(&error).map(|source| format!(": {source}"));
        format!("{error}{}", source.unwrap_or_default())
    })
}

#[test]
fn whole_images_are_imported_from_archives() {
    if !is_root() {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let store = ImageStore::new(home.path());
    let image = indexed_image();
    let index = &image.manifests.last().unwrap().0;
    let blob = |bytes: &[u8]| format!("blobs/sha256/{}", Digest::of(bytes).hex());
    let mut files: Vec<(String, &[u8])> = image.blobs.iter().map(|bytes| (blob(bytes), &bytes[..])).collect();
    files.extend(image.manifests.iter().map(|(bytes, _)| (blob(bytes), &bytes[..])));
    let top =
        serde_json::json!({"schemaVersion": 2, "manifests": [descriptor(OCI_INDEX, index)]}).to_string();
    files.push(("index.json".into(), top.as_bytes()));
    files.push(("oci-layout".into(), b"{\"imageLayoutVersion\": \"1.0.0\"}"));
    let layout = archive(&files);
    let first = import_bytes(&store, home.path(), &gzip(&layout)).unwrap();
    check(&first);

    // As `docker save` has it: the same image.
    let docker = oci_image("amd64");
    let manifest = serde_json::json!([{
        "Config": "config.json", "RepoTags": ["app:v1"], "Layers": ["0/layer.tar", "1/layer.tar", "2/layer.tar"]
    }])
    .to_string();
    let files: Vec<(String, &[u8])> = vec![
        ("manifest.json".into(), manifest.as_bytes()),
        ("config.json".into(), &docker.blobs[3]),
        ("0/layer.tar".into(), &docker.blobs[0]),
        ("1/layer.tar".into(), &docker.blobs[1]),
        ("2/layer.tar".into(), &docker.blobs[2]),
    ];
    assert_eq!(import_bytes(&store, home.path(), &archive(&files)).unwrap().id(), first.id());

    // A layer that is somewhere else does not exist.
    let outside = manifest.replace("0/layer.tar", "../../../../etc/passwd");
    let files: Vec<(String, &[u8])> =
        vec![("manifest.json".into(), outside.as_bytes()), ("config.json".into(), &docker.blobs[3])];
    let error = import_bytes(&store, home.path(), &archive(&files)).unwrap_err();
    assert!(error.contains("\"../../../../etc/passwd\" is missing"), "{error}");
}

#[test]
fn a_root_file_system_is_imported_in_every_compression() {
    if !is_root() {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let store = ImageStore::new(home.path());
    let root = Tar::new().file("bin/sh", b"#!").file("etc/.wh.odd", b"a name like others").bytes();
    let first = import_bytes(&store, home.path(), &root).unwrap();
    assert!(debugfs(&first, "stat /etc/.wh.odd").contains("Inode:"));
    assert_eq!(import_bytes(&store, home.path(), &gzip(&root)).unwrap().id(), first.id());
    let zstd = zstd::encode_all(&root[..], 1).unwrap();
    assert_eq!(import_bytes(&store, home.path(), &zstd).unwrap().id(), first.id());
    assert!(import_bytes(&store, home.path(), b"no archive at all, but some text").is_err());
    assert_eq!(store.list().unwrap().len(), 1);
}
