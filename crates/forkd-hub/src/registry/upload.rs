//! One blob on its way to a registry.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use forkd_source::digest::Digest;
use reqwest::header::{CONTENT_LENGTH, CONTENT_TYPE};
use reqwest::{Method, StatusCode};

use super::{RegistryError, Repository, Request};

/// How often an upload's progress is looked at.
const LOOK: Duration = Duration::from_millis(100);

impl Repository {
    /// Whether a repository of this registry has a blob.
    pub(super) async fn has_blob(
        &self,
        repository: &str,
        digest: Digest,
        size: u64,
    ) -> Result<bool, RegistryError> {
        let request = self.transport.request(Method::HEAD, repository, &format!("blobs/{digest}"));
        match self.transport.send_patiently(&request).await {
            Ok(response) => {
                let length = response.headers().get(CONTENT_LENGTH);
                let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
                // A registry with another blob under this name has a damaged one.
                Ok(length.is_none_or(|length: u64| length == size))
            }
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Takes a blob over from another repository of this registry, without sending it.
    pub(super) async fn mount(
        &self,
        from: &[String],
        digest: Digest,
        size: u64,
    ) -> Result<bool, RegistryError> {
        for source in from.iter().filter(|source| source.as_str() != self.repository()) {
            // Whether this user may read there is the registry's business; one that says no has nothing to mount.
            if !self.has_blob(source, digest, size).await.unwrap_or(false) {
                continue;
            }
            let mut request = self.transport.request(Method::POST, self.repository(), "blobs/uploads/");
            request
                .url
                .query_pairs_mut()
                .append_pair("mount", &digest.to_string())
                .append_pair("from", source);
            request.mounts = Some(source);
            let response = match self.transport.send_patiently(&request).await {
                Ok(response) => response,
                Err(error) if error.is_transient() => return Err(error),
                // The registry may still take the blob itself.
                Err(_) => continue,
            };
            if response.status() == StatusCode::CREATED {
                return Ok(true);
            }
            // The registry began an upload instead, which is not wanted here.
            if let Ok(url) = self.transport.location(&response, &request.name()) {
                let abandon = Request { method: Method::DELETE, url, mounts: None, ..request };
                let _ = self.transport.send(&abandon).await;
            }
        }
        Ok(false)
    }

    /// Sends a blob, from the beginning again whenever that may help. `report` is told how many of its bytes are out.
    pub(super) async fn upload(
        &self,
        digest: Digest,
        bytes: &Bytes,
        report: impl Fn(u64),
    ) -> Result<(), RegistryError> {
        let sent = Arc::new(AtomicU64::new(0));
        let mut upload = std::pin::pin!(self.upload_patiently(digest, bytes, &sent));
        loop {
            match tokio::time::timeout(LOOK, &mut upload).await {
                Ok(done) => return done,
                Err(_) => report(sent.load(Ordering::Relaxed)),
            }
        }
    }

    async fn upload_patiently(
        &self,
        digest: Digest,
        bytes: &Bytes,
        sent: &Arc<AtomicU64>,
    ) -> Result<(), RegistryError> {
        let mut attempts = 0;
        loop {
            match self.upload_once(digest, bytes, sent).await {
                Ok(()) => return Ok(()),
                Err(error) => {
                    attempts += 1;
                    self.transport.wait(error, attempts).await?;
                    // The connection may have broken after the registry had everything.
                    if self.has_blob(self.repository(), digest, bytes.len() as u64).await? {
                        return Ok(());
                    }
                }
            }
        }
    }

    async fn upload_once(
        &self,
        digest: Digest,
        bytes: &Bytes,
        sent: &Arc<AtomicU64>,
    ) -> Result<(), RegistryError> {
        let begin = self.transport.request(Method::POST, self.repository(), "blobs/uploads/");
        let response = self.transport.send(&begin).await?;
        let mut url = self.transport.location(&response, &begin.name())?;
        url.query_pairs_mut().append_pair("digest", &digest.to_string());
        let body = Some((bytes.clone(), Arc::clone(sent)));
        let put = Request { method: Method::PUT, url, body, ..begin };
        let put = put.header(CONTENT_TYPE, "application/octet-stream");
        self.transport.send(&put).await?;
        Ok(())
    }

    /// Sends a small blob unless it is there.
    pub(crate) async fn upload_small(&self, bytes: &Bytes) -> Result<Digest, RegistryError> {
        let digest = Digest::of(bytes);
        if !self.has_blob(self.repository(), digest, bytes.len() as u64).await? {
            self.upload(digest, bytes, |_| {}).await?;
        }
        Ok(digest)
    }

    /// Stores a manifest under a tag or its digest.
    pub(crate) async fn put_manifest(
        &self,
        name: &str,
        media_type: &str,
        bytes: &[u8],
    ) -> Result<(), RegistryError> {
        let request = self.transport.request(Method::PUT, self.repository(), &format!("manifests/{name}"));
        let mut request = request.header(CONTENT_TYPE, media_type);
        request.body = Some((Bytes::copy_from_slice(bytes), Arc::default()));
        self.transport.send_patiently(&request).await?;
        Ok(())
    }
}
