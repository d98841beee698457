//! Reading from a registry: manifests, and parts of blobs.

use std::ops::Range;

use bytes::Bytes;
use forkd_source::digest::Digest;
use reqwest::header::{ACCEPT, CONTENT_RANGE, RANGE};
use reqwest::{Method, Response, StatusCode};

use super::transport::{body, chunk};
use super::{RegistryError, Repository};
use crate::artifact::{self, Artifact, BlobReader, BlobSource, OpenError, Selector, SourceError};
use crate::manifest::MAX_MANIFEST;

/// The kinds of manifests that are asked for.
const ACCEPTED: &str = "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json";

impl Repository {
    /// What the reference names now, or what has this digest: a manifest or an index.
    pub(super) async fn get_root(&self, digest: Option<Digest>) -> Result<Bytes, OpenError> {
        let failed = |source| OpenError::Read { what: "manifest", source: SourceError::Registry(source) };
        let expected = digest.or_else(|| self.digest());
        let name = match expected {
            Some(digest) => digest.to_string(),
            None => self.reference.tag().unwrap_or("latest").to_owned(),
        };
        let bytes = self.get_manifest(&name, MAX_MANIFEST).await.map_err(failed)?;
        let found = Digest::of(&bytes);
        match expected {
            Some(expected) if expected != found => {
                Err(OpenError::Digest { what: "manifest", found, expected })
            }
            _ => Ok(bytes),
        }
    }

    pub(super) async fn open_artifact(
        &self,
        digest: Option<Digest>,
        select: Selector<'_>,
    ) -> Result<Artifact, OpenError> {
        artifact::open(self, &self.get_root(digest).await?, select).await
    }

    /// The bytes of a manifest, which the registry may have made up.
    pub(crate) async fn get_manifest(&self, name: &str, limit: u64) -> Result<Bytes, RegistryError> {
        self.get_document(&format!("manifests/{name}"), ACCEPTED, limit).await
    }

    /// The index of what refers to a manifest, from a registry that keeps one.
    pub(crate) async fn get_referrers(&self, digest: Digest) -> Result<Bytes, RegistryError> {
        self.get_document(&format!("referrers/{digest}"), ACCEPTED, MAX_MANIFEST).await
    }

    pub(super) async fn get_document(
        &self,
        path: &str,
        accepted: &str,
        limit: u64,
    ) -> Result<Bytes, RegistryError> {
        let request = self.transport.request(Method::GET, self.repository(), path);
        let request = request.header(ACCEPT, accepted);
        let mut attempts = 0;
        loop {
            let answer = match self.transport.send(&request).await {
                Ok(response) => body(&request, response, limit).await,
                Err(error) => Err(error),
            };
            match answer {
                Ok(bytes) => return Ok(bytes),
                Err(error) => {
                    attempts += 1;
                    self.transport.wait(error, attempts).await?;
                }
            }
        }
    }
}

impl BlobSource for Repository {
    type Reader = HttpReader;

    async fn manifest(&self, digest: Digest, limit: u64) -> Result<Bytes, SourceError> {
        Ok(self.get_manifest(&digest.to_string(), limit.min(MAX_MANIFEST)).await?)
    }

    async fn read(&self, digest: Digest, size: u64, range: Range<u64>) -> Result<HttpReader, SourceError> {
        let request = self.transport.request(Method::GET, self.repository(), &format!("blobs/{digest}"));
        let is_whole = range == (0..size);
        let request = match is_whole {
            true => request,
            false => request.header(RANGE, format!("bytes={}-{}", range.start, range.end.saturating_sub(1))),
        };
        let response = self.transport.send(&request).await?;
        let begins = match response.status() {
            StatusCode::PARTIAL_CONTENT => {
                let header = response.headers().get(CONTENT_RANGE);
                let begins = header.and_then(|header| first_byte(header.to_str().ok()?));
                begins.filter(|begins| *begins <= range.start).ok_or_else(|| RegistryError::Protocol {
                    request: request.name(),
                    problem: format!("it sent another range than {}-{}", range.start, range.end),
                })?
            }
            // The whole blob: this registry knows no ranges.
            _ => 0,
        };
        Ok(HttpReader {
            request: request.name(),
            response,
            digest,
            skip: range.start - begins,
            left: range.end.saturating_sub(range.start),
        })
    }

    async fn wait(&self, error: SourceError, attempts: u32) -> Result<(), SourceError> {
        match error {
            SourceError::Registry(error) => Ok(self.transport.wait(error, attempts).await?),
            SourceError::Truncated { .. } if attempts < self.transport.retry.attempts => {
                tokio::time::sleep(self.transport.retry.first).await;
                Ok(())
            }
            other => Err(other),
        }
    }
}

/// Of a `Content-Range`.
pub fn first_byte(range: &str) -> Option<u64> {
    range.strip_prefix("bytes ")?.split('-').next()?.parse().ok()
}

/// A part of a blob that a registry sends.
pub(crate) struct HttpReader {
    request: String,
    response: Response,
    digest: Digest,
    /// Bytes before the part, which a registry without ranges sends too.
    skip: u64,
    left: u64,
}

impl BlobReader for HttpReader {
    async fn next(&mut self) -> Result<Option<Bytes>, SourceError> {
        while self.left > 0 {
            let Some(mut bytes) = chunk(&self.request, &mut self.response).await? else {
                return Err(SourceError::Truncated { digest: self.digest });
            };
            let skipped = usize::try_from(self.skip).unwrap_or(usize::MAX).min(bytes.len());
            self.skip -= skipped as u64;
            let _ = bytes.split_to(skipped);
            // What comes after the part is not looked at.
            bytes.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
            if !bytes.is_empty() {
                self.left -= bytes.len() as u64;
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_range_begins_where_it_says(first in any::<u64>(), last in any::<u64>(), other in ".{0,20}") {
            prop_assert_eq!(first_byte(&format!("bytes {first}-{last}/*")), Some(first));
            prop_assert_eq!(first_byte(&format!("bytes */{last}")), None);
            first_byte(&other);
            prop_assert_eq!(first_byte(&format!("bytes -{first}")), None);
        }
    }
}
