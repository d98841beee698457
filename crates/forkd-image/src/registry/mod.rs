//! Images from registries: OCI and Docker v2.
//!
//! ```text
//! reference ─▶ manifest (of a list: linux/amd64) ─▶ configuration ─▶ known already? done
//!                                                        └─▶ each layer: download, digest, unpack, digest
//! ```
//!
//! Every byte is checked against the digest that named it, up to the manifest, which the reference names by digest or the
//! registry by tag.

mod download;

pub use forkd_source::credentials::{AuthError, Credentials, own_credentials};

use std::fs::{self, File};
use std::time::Duration;

use forkd_source::registry_client;
use oci_client::errors::OciDistributionError;
use oci_client::manifest::OciDescriptor;
use oci_client::{Client, Reference};

use crate::archive::{ArchiveError, Limits, Whiteouts};
use crate::files::FileError;
use crate::images::{Draft, Finish, Image, ImageError, ImageStore, Name, Source, image_id};
use crate::oci::{self, ConfigError, MAX_CONFIG, MAX_LAYERS};
use crate::progress::Progress;
use download::Sink;

/// How often the caller is asked whether it still wants the image.
const ASK: Duration = Duration::from_millis(100);

#[derive(Debug, thiserror::Error)]
pub enum PullError {
    #[error("invalid image reference {text:?}: {reason}")]
    Reference { text: String, reason: String },
    #[error("cannot get {what} of {reference}")]
    Registry { what: String, reference: String, source: Box<OciDistributionError> },
    #[error("the image has a layer of the type {0:?}, which is not supported")]
    LayerType(String),
    #[error("{what} of {reference} has {size} bytes, expected at most {limit}")]
    TooLarge { what: String, reference: String, size: i64, limit: u64 },
    #[error("cannot start the network runtime")]
    Runtime(#[source] std::io::Error),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Auth(#[from] AuthError),
    #[error(transparent)]
    Image(#[from] ImageError),
}

/// What to pull, and how to keep it.
#[derive(Debug, Clone)]
pub struct Pull {
    /// As on Docker's command line: `python:3.12`, `registry.example/team/app@sha256:…`.
    pub reference: String,
    /// The name that the image gets; without one, the reference.
    pub name: Option<Name>,
    pub min_mib: Option<u64>,
    pub limits: Limits,
    /// Instead of those in the Docker config file.
    pub credentials: Option<Credentials>,
}

/// Pulls an image. Blocks; must not be called from an asynchronous task.
pub fn pull(store: &ImageStore, pull: &Pull, progress: &dyn Progress) -> Result<Image, PullError> {
    let bad =
        |reason: String| PullError::Reference { text: pull.reference.chars().take(200).collect(), reason };
    let reference: Reference = pull.reference.parse().map_err(|error| bad(format!("{error}")))?;
    let name = match &pull.name {
        Some(name) => name.clone(),
        None => pull.reference.parse().map_err(|error| bad(format!("{error}")))?,
    };
    let draft = Draft::new(store, pull.limits)?;
    let credentials = match &pull.credentials {
        Some(credentials) => Some(credentials.clone()),
        None => own_credentials(&pull.reference)?,
    };
    let auth = registry_client::auth(credentials.as_ref());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(PullError::Runtime)?;
    let session =
        Session { client: registry_client::client(reference.resolve_registry()), reference, progress };
    runtime.block_on(async {
        tokio::select! {
            done = session.pull(store, draft, &auth, name, pull) => done,
            // A registry that says nothing would be waited for otherwise.
            () = unwanted(progress) => Err(ImageError::from(ArchiveError::Cancelled).into()),
        }
    })
}

async fn unwanted(progress: &dyn Progress) {
    while !progress.is_cancelled() {
        tokio::time::sleep(ASK).await;
    }
}

/// One pull from one registry.
struct Session<'a> {
    client: Client,
    reference: Reference,
    progress: &'a dyn Progress,
}

impl Session<'_> {
    async fn pull(
        &self,
        store: &ImageStore,
        mut draft: Draft<'_>,
        auth: &oci_client::secrets::RegistryAuth,
        name: Name,
        pull: &Pull,
    ) -> Result<Image, PullError> {
        self.progress.step(&format!("pulling {}", self.reference));
        let manifest = self.client.pull_image_manifest(&self.reference, auth).await;
        let (manifest, digest) = manifest.map_err(|error| self.failed("the manifest", error))?;
        if manifest.layers.len() > MAX_LAYERS {
            return Err(ConfigError::TooManyLayers(manifest.layers.len()).into());
        }
        for layer in &manifest.layers {
            check_layer_type(&layer.media_type)?;
        }
        let mut config = Vec::new();
        self.blob(&manifest.config, "the configuration", MAX_CONFIG, &mut config).await?;
        let config = oci::parse(&config, manifest.layers.len())?;

        let id = image_id(&config.layers, &config.config, pull.min_mib).map_err(ImageError::from)?;
        if store.get(id)?.is_some() {
            store.name(&name, id)?;
            if let Some(image) = store.get(id)? {
                return Ok(image);
            }
        }
        let count = manifest.layers.len();
        for (number, (layer, unpacked)) in manifest.layers.iter().zip(&config.layers).enumerate() {
            let what = format!("layer {} of {count}", number + 1);
            let path = draft.scratch().join("layer");
            self.progress.step(&format!("pulling {}: {what}", self.reference));
            let failed = |verb, source| ImageError::from(FileError::at(verb, &path)(source));
            let mut file = File::create(&path).map_err(|error| failed("make", error))?;
            self.blob(layer, &what, pull.limits.total, &mut file).await?;
            let file = File::open(&path).map_err(|error| failed("read", error))?;
            self.progress.detail("unpacking");
            draft.layer(file, Whiteouts::Apply, Some(*unpacked), self.progress)?;
            fs::remove_file(&path).map_err(|error| failed("remove", error))?;
        }
        let source = Source::Registry { reference: self.reference.whole(), manifest: digest };
        let finish = Finish { config: config.config, source, min_mib: pull.min_mib, name: Some(name) };
        Ok(draft.finish(finish, self.progress)?)
    }

    /// Downloads a blob of at most `limit` bytes. The client checks its digest, and takes it from the registry only: the
    /// addresses that a manifest may name besides are not asked.
    async fn blob(
        &self,
        blob: &OciDescriptor,
        what: &str,
        limit: u64,
        to: &mut impl std::io::Write,
    ) -> Result<(), PullError> {
        let size = u64::try_from(blob.size).ok().filter(|size| *size <= limit);
        let size = size.ok_or_else(|| PullError::TooLarge {
            what: what.into(),
            reference: self.reference.whole(),
            size: blob.size,
            limit,
        })?;
        let sink = Sink::new(to, size, self.progress);
        match self.client.pull_blob(&self.reference, blob.digest.as_str(), sink).await {
            Err(_) if self.progress.is_cancelled() => Err(ImageError::from(ArchiveError::Cancelled).into()),
            result => result.map_err(|error| self.failed(what, error)),
        }
    }

    fn failed(&self, what: &str, error: OciDistributionError) -> PullError {
        PullError::Registry { what: what.into(), reference: self.reference.whole(), source: Box::new(error) }
    }
}

fn check_layer_type(media_type: &str) -> Result<(), PullError> {
    let known = [
        "application/vnd.oci.image.layer.v1.tar",
        "application/vnd.oci.image.layer.v1.tar+gzip",
        "application/vnd.oci.image.layer.v1.tar+zstd",
        "application/vnd.docker.image.rootfs.diff.tar",
        "application/vnd.docker.image.rootfs.diff.tar.gzip",
        "application/vnd.docker.image.rootfs.diff.tar.zstd",
    ];
    if known.contains(&media_type) {
        return Ok(());
    }
    Err(PullError::LayerType(media_type.chars().take(120).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_layers_are_refused() {
        assert!(check_layer_type("application/vnd.oci.image.layer.v1.tar+gzip").is_ok());
        let foreign = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip";
        assert!(check_layer_type(foreign).unwrap_err().to_string().contains(foreign));
    }
}
