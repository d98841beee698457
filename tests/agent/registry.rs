//! An OCI image that a registry on loopback serves: pulled, booted, looked at.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use forkd_image::archive::Limits;
use forkd_image::digest::Digest;
use forkd_image::images::ImageStore;
use forkd_image::registry::{Pull, pull};
use forkd_tests::TestResult;
use forkd_tests::library::{self, Report};
use serde_json::json;

use crate::guest;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const NAME: &str = "forkd-tests-container:latest";
const BUSYBOX: &str = "/bin/busybox";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const OWNER: u64 = 1234;

const ENTRY: &str = "#!/bin/sh
echo \"$(id -u) $(id -un) $GREETING $1 $PWD\" > /tmp/started
exec sleep 100000
";

pub fn an_image_from_a_registry_boots() -> TestResult {
    let blobs = image()?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let reference = format!("{}/app:latest", listener.local_addr()?);
    std::thread::spawn(move || serve(&listener, &Arc::new(blobs)));
    let (name, limits) = (Some(NAME.parse()?), Limits::default());
    let request = Pull { reference, name, min_mib: None, limits, credentials: None };
    pull(&ImageStore::new(&library::directory()), &request, &Report)?;
    guest::run(NAME, &["container"])
}

/// What a registry has of the image: blobs by digest, and the manifest by its tag.
fn image() -> Result<HashMap<String, Vec<u8>>, Failure> {
    let mut below = Tar::default();
    for directory in ["bin", "etc", "srv", "srv/app", "tmp"] {
        below.directory(directory, if directory == "srv/app" { OWNER } else { 0 })?;
    }
    below.file("bin/busybox", 0o755, 0, &std::fs::read(BUSYBOX)?)?;
    for name in ["sh", "id", "sleep", "cat", "ls", "stat", "true"] {
        below.link(tar::EntryType::Symlink, &format!("bin/{name}"), "busybox")?;
    }
    below.file("bin/entry", 0o755, 0, ENTRY.as_bytes())?;
    below.file("etc/passwd", 0o644, 0, b"root:x:0:0:root:/:/bin/sh\napp:x:1234:1234::/srv/app:/bin/sh\n")?;
    below.file("etc/group", 0o644, 0, b"root:x:0:\napp:x:1234:\n")?;
    below.file("srv/app/gone", 0o644, OWNER, b"gone\n")?;
    let mut above = Tar::default();
    above.file("srv/app/.wh.gone", 0o644, 0, b"")?;
    above.file("srv/app/kept", 0o644, OWNER, b"kept\n")?;
    above.link(tar::EntryType::Link, "srv/app/linked", "srv/app/kept")?;
    let layers = [below.0.into_inner()?, above.0.into_inner()?];

    let config = json!({
        "architecture": "amd64", "os": "linux",
        "config": {
            "User": "app", "WorkingDir": "/srv/app",
            "Env": ["PATH=/bin", "GREETING=hello"],
            "Entrypoint": ["/bin/entry"], "Cmd": ["argument"],
        },
        "rootfs": { "type": "layers", "diff_ids": layers.each_ref().map(|layer| Digest::of(layer).to_string()) },
    });
    let mut blobs = HashMap::new();
    let mut add = |kind: &str, bytes: Vec<u8>| {
        let digest = Digest::of(&bytes).to_string();
        let descriptor = json!({ "mediaType": kind, "digest": digest, "size": bytes.len() });
        blobs.insert(digest, bytes);
        descriptor
    };
    let config = add(CONFIG, config.to_string().into_bytes());
    let mut descriptors = Vec::new();
    for layer in layers {
        descriptors.push(add(LAYER, gzip(&layer)?));
    }
    let manifest =
        json!({ "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": descriptors });
    blobs.insert("latest".into(), manifest.to_string().into_bytes());
    Ok(blobs)
}

struct Tar(tar::Builder<Vec<u8>>);

impl Default for Tar {
    fn default() -> Tar {
        Tar(tar::Builder::new(Vec::new()))
    }
}

impl Tar {
    fn file(&mut self, path: &str, mode: u32, owner: u64, content: &[u8]) -> TestResult {
        self.add(path, tar::EntryType::Regular, mode, owner, content)
    }

    fn directory(&mut self, path: &str, owner: u64) -> TestResult {
        let mode = if path == "tmp" { 0o1777 } else { 0o755 };
        self.add(path, tar::EntryType::Directory, mode, owner, b"")
    }

    fn add(&mut self, path: &str, kind: tar::EntryType, mode: u32, owner: u64, content: &[u8]) -> TestResult {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(owner);
        header.set_gid(owner);
        header.set_size(content.len() as u64);
        Ok(self.0.append_data(&mut header, path, content)?)
    }

    fn link(&mut self, kind: tar::EntryType, path: &str, target: &str) -> TestResult {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(0o777);
        header.set_size(0);
        Ok(self.0.append_link(&mut header, path, target)?)
    }
}

fn gzip(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes)?;
    encoder.finish()
}

/// As much of a registry as a pull asks for. `crates/forkd-image/tests/registry.rs` has a real one.
fn serve(listener: &TcpListener, blobs: &Arc<HashMap<String, Vec<u8>>>) {
    while let Ok((stream, _)) = listener.accept() {
        let blobs = Arc::clone(blobs);
        // A client that breaks its connection off has its reasons.
        std::thread::spawn(move || drop(answer(&stream, &blobs)));
    }
}

fn answer(mut stream: &TcpStream, blobs: &HashMap<String, Vec<u8>>) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    while let Some(request) = lines.next().transpose()? {
        while lines.next().transpose()?.is_some_and(|header| !header.is_empty()) {}
        let path = request.split_whitespace().nth(1).unwrap_or_default();
        let name = path.rsplit('/').next().unwrap_or_default();
        let empty = Vec::new();
        let (status, body) = match blobs.get(name) {
            Some(blob) => ("200 OK", blob),
            None if path == "/v2/" => ("200 OK", &empty),
            None => ("404 Not Found", &empty),
        };
        let kind = if name == "latest" { MANIFEST } else { "application/octet-stream" };
        let (length, digest) = (body.len(), Digest::of(body));
        let headers =
            format!("Content-Type: {kind}\r\nContent-Length: {length}\r\nDocker-Content-Digest: {digest}");
        stream.write_all(format!("HTTP/1.1 {status}\r\n{headers}\r\n\r\n").as_bytes())?;
        if !request.starts_with("HEAD") {
            stream.write_all(body)?;
        }
    }
    Ok(())
}
