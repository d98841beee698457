//! As much of a registry as a pull asks for, with one image: for those who know its password, and with a layer that never
//! comes for those who ask for the tag `stuck`.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forkd_image::digest::Digest;
use serde_json::json;

use crate::engine::process::Failure;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";

pub const USER: &str = "me";
pub const PASSWORD: &str = "s3cret-of-the-registry";
/// Both in base64, in lower case as all headers are compared here.
const AUTHORIZATION: &str = "authorization: basic bwu6cznjcmv0lw9mlxrozs1yzwdpc3ryeq==";

#[derive(Debug)]
pub struct Registry {
    pub address: String,
    /// How often the manifest was asked for.
    pub asked: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct Content {
    blobs: HashMap<String, Vec<u8>>,
    /// The layer that never comes.
    stuck: String,
    asked: Arc<AtomicUsize>,
}

impl Registry {
    /// It ends with the test's process.
    pub fn start(layer: &[u8]) -> Result<Registry, Failure> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?.to_string();
        let asked = Arc::new(AtomicUsize::new(0));
        let mut content = Content { blobs: HashMap::new(), stuck: String::new(), asked: Arc::clone(&asked) };
        content.add("latest", layer);
        content.stuck = content.add("stuck", b"no bytes of this layer ever come");
        let content = Arc::new(content);
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let content = Arc::clone(&content);
                // A client that breaks its connection off has its reasons.
                std::thread::spawn(move || drop(content.answer(&stream)));
            }
        });
        Ok(Registry { address, asked })
    }
}

impl Content {
    fn add(&mut self, tag: &str, layer: &[u8]) -> String {
        let config = json!({
            "architecture": "amd64", "os": "linux",
            "config": { "Env": ["GREETING=hello"], "Cmd": ["run"] },
            "rootfs": { "type": "layers", "diff_ids": [Digest::of(layer).to_string()] },
        });
        let mut blob = |kind: &str, bytes: Vec<u8>| {
            let digest = Digest::of(&bytes).to_string();
            let described = json!({ "mediaType": kind, "digest": digest, "size": bytes.len() });
            self.blobs.insert(digest, bytes);
            described
        };
        let config = blob(CONFIG, config.to_string().into_bytes());
        let layer = blob(LAYER, layer.to_vec());
        let manifest =
            json!({ "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [&layer] });
        self.blobs.insert(tag.into(), manifest.to_string().into_bytes());
        layer["digest"].as_str().unwrap_or_default().to_owned()
    }

    fn answer(&self, mut stream: &TcpStream) -> std::io::Result<()> {
        let mut lines = BufReader::new(stream).lines();
        while let Some(request) = lines.next().transpose()? {
            let mut known = false;
            while let Some(header) = lines.next().transpose()?.filter(|header| !header.is_empty()) {
                known |= header.to_ascii_lowercase() == AUTHORIZATION;
            }
            let path = request.split_whitespace().nth(1).unwrap_or_default();
            let name = path.rsplit('/').next().unwrap_or_default();
            if !known {
                let challenge = "www-authenticate: Basic realm=\"test\"";
                write!(stream, "HTTP/1.1 401 Unauthorized\r\n{challenge}\r\ncontent-length: 0\r\n\r\n")?;
                continue;
            }
            if path.contains("/manifests/") {
                self.asked.fetch_add(1, Ordering::Relaxed);
            }
            let empty = Vec::new();
            let (status, body) = match self.blobs.get(name) {
                Some(blob) => ("200 OK", blob),
                None if path == "/v2/" => ("200 OK", &empty),
                None => ("404 Not Found", &empty),
            };
            let digest = Digest::of(body);
            write!(
                stream,
                "HTTP/1.1 {status}\r\ncontent-type: {MANIFEST}\r\ndocker-content-digest: {digest}\r\n\
                 content-length: {}\r\n\r\n",
                body.len()
            )?;
            if name == self.stuck {
                std::thread::park();
            }
            if !request.starts_with("HEAD") {
                stream.write_all(body)?;
            }
        }
        Ok(())
    }
}
