//! What a repository has: its tags, and what a reference means right now.

use forkd_source::digest::Digest;
use reqwest::Method;
use reqwest::header::LINK;
use serde::Deserialize;

use super::{RegistryError, Repository, body};
use crate::artifact::OpenError;
use crate::progress::Progress;

/// Tags that are asked for at once.
const PAGE: usize = 1000;
/// Tags of one repository that are listed.
const MAX_TAGS: usize = 100_000;
const MAX_PAGE: u64 = 4 << 20;

#[derive(Deserialize)]
struct Page {
    /// `null` in a repository without tags.
    tags: Option<Vec<String>>,
}

impl Repository {
    /// All tags, in the registry's order.
    pub fn tags(&self, progress: &dyn Progress) -> Result<Vec<String>, RegistryError> {
        self.block_on(progress, RegistryError::Cancelled, |repository| repository.list_tags())
    }

    /// The digest of what the reference names now, manifest or index.
    pub fn resolve(&self, progress: &dyn Progress) -> Result<Digest, OpenError> {
        self.block_on(progress, OpenError::Cancelled, |repository| async {
            Ok(Digest::of(&repository.get_root(None).await?))
        })
    }

    async fn list_tags(&self) -> Result<Vec<String>, RegistryError> {
        let mut tags: Vec<String> = Vec::new();
        loop {
            let mut request = self.transport.request(Method::GET, self.repository(), "tags/list");
            request.url.query_pairs_mut().append_pair("n", &PAGE.to_string());
            if let Some(last) = tags.last() {
                request.url.query_pairs_mut().append_pair("last", last);
            }
            let problem =
                |problem: &str| RegistryError::Protocol { request: request.name(), problem: problem.into() };
            let response = self.transport.send_patiently(&request).await?;
            let is_last = !response.headers().contains_key(LINK);
            let bytes = body(&request, response, MAX_PAGE).await?;
            let page: Page =
                serde_json::from_slice(&bytes).map_err(|_| problem("the list of tags is not valid JSON"))?;
            let page = page.tags.unwrap_or_default();
            let is_empty = page.is_empty();
            tags.extend(page);
            if tags.len() > MAX_TAGS {
                return Err(problem("it has more than 100000 tags"));
            }
            if is_last || is_empty {
                return Ok(tags);
            }
        }
    }
}
