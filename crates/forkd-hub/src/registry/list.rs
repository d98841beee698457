//! What a repository has: its tags, and what a reference means right now.

use forkd_source::digest::Digest;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use reqwest::Method;
use reqwest::header::LINK;
use serde::Deserialize;

use super::{RegistryError, Repository, body};
use crate::artifact::OpenError;
use crate::fetch::TRANSFERS;
use crate::manifest::{Annotations, MAX_MANIFEST};
use crate::progress::Progress;
use crate::role::ARTIFACT_TYPE;

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

/// What a list accepts: also what is no snapshot.
const LISTED: &str = "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, \
    application/vnd.docker.distribution.manifest.v2+json, application/vnd.docker.distribution.manifest.list.v2+json";
/// Characters of a type or an annotation that are kept.
const MAX_TEXT: usize = 120;

/// A tag of a repository, and what it names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tagged {
    pub tag: String,
    /// Of the manifest or index.
    pub digest: Digest,
    /// The type of the artifact, or of the config of what says no type.
    pub kind: Option<String>,
    pub is_snapshot: bool,
    /// Compressed bytes. An index does not say it.
    pub size: Option<u64>,
    /// `org.opencontainers.image.created`, as it is.
    pub created: Option<String>,
}

/// As much of any manifest or index as a list shows.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Summary {
    media_type: Option<String>,
    artifact_type: Option<String>,
    config: Option<Part>,
    layers: Option<Vec<Part>>,
    annotations: Option<Annotations>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Part {
    media_type: Option<String>,
    #[serde(default)]
    size: u64,
}

impl Tagged {
    fn new(tag: String, manifest: &[u8]) -> Tagged {
        let short =
            |text: &String| text.chars().filter(|letter| !letter.is_control()).take(MAX_TEXT).collect();
        let summary = serde_json::from_slice::<Summary>(manifest).ok();
        let summary = summary.as_ref();
        let config = summary.and_then(|summary| summary.config.as_ref());
        let kind = summary.and_then(|summary| summary.artifact_type.as_ref());
        let size = |layers: &Vec<Part>| {
            layers.iter().chain(config).map(|part| part.size).fold(0, u64::saturating_add)
        };
        let created =
            |annotations: &Annotations| annotations.get("org.opencontainers.image.created").map(short);
        Tagged {
            tag,
            digest: Digest::of(manifest),
            is_snapshot: kind.is_some_and(|kind| kind == ARTIFACT_TYPE),
            kind: kind
                .or_else(|| config?.media_type.as_ref())
                .or_else(|| summary?.media_type.as_ref())
                .map(short),
            size: summary.and_then(|summary| summary.layers.as_ref()).map(size),
            created: summary.and_then(|summary| summary.annotations.as_ref()).and_then(created),
        }
    }
}

impl Repository {
    /// What the tags name, at most `limit` of them, in the registry's order; and whether there are more. A tag that is removed
    /// meanwhile is left out.
    pub fn list(&self, limit: usize, progress: &dyn Progress) -> Result<(Vec<Tagged>, bool), RegistryError> {
        self.block_on(progress, RegistryError::Cancelled, |repository| async move {
            let mut tags = repository.list_tags().await?;
            let has_more = tags.len() > limit;
            tags.truncate(limit);
            let manifests = stream::iter(tags).map(|tag| async move {
                match repository.get_document(&format!("manifests/{tag}"), LISTED, MAX_MANIFEST).await {
                    Ok(bytes) => Ok(Some(Tagged::new(tag, &bytes))),
                    Err(error) if error.is_not_found() => Ok(None),
                    Err(error) => Err(error),
                }
            });
            let listed: Vec<Option<Tagged>> = manifests.buffered(TRANSFERS).try_collect().await?;
            Ok((listed.into_iter().flatten().collect(), has_more))
        })
    }

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
            let page = tags_of(&bytes).map_err(problem)?;
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

/// The tags of a page, which become parts of addresses.
pub fn tags_of(page: &[u8]) -> Result<Vec<String>, &'static str> {
    let page: Page = serde_json::from_slice(page).map_err(|_| "the list of tags is not valid JSON")?;
    let page = page.tags.unwrap_or_default();
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let is_tag = |tag: &String| {
        tag.len() <= 128 && tag.bytes().all(fits) && !tag.is_empty() && !tag.starts_with(['.', '-'])
    };
    if page.iter().all(is_tag) { Ok(page) } else { Err("the list of tags has one that is not a tag") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_tag_is_no_path() {
        assert_eq!(tags_of(br#"{"tags":["v1","_x","1.0-rc"]}"#).unwrap(), ["v1", "_x", "1.0-rc"]);
        assert_eq!(tags_of(br#"{"name":"a","tags":null}"#).unwrap(), [""; 0]);
        for bad in ["..", ".", "", "a/b", "a?b", "-a", "a b", "\\u0000", &"a".repeat(129)] {
            let page = format!(r#"{{"tags":["{bad}"]}}"#);
            assert!(tags_of(page.as_bytes()).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_page_is_tags_or_is_refused(text in r#"\{"tags":\[("[ -~]{0,6}",?){0,4}\]\}"#) {
            for tag in tags_of(text.as_bytes()).unwrap_or_default() {
                let url = reqwest::Url::parse(&format!("http://r.example/v2/a/manifests/{tag}")).unwrap();
                prop_assert_eq!(url.path(), format!("/v2/a/manifests/{tag}"));
            }
        }

        #[test]
        fn any_manifest_has_a_summary(manifest in any::<Vec<u8>>(), kind in ".{0,200}", size in any::<u64>()) {
            Tagged::new("v1".into(), &manifest);
            let manifest = serde_json::json!({"artifactType": kind, "config": {"size": size},
                "layers": [{"size": size}], "annotations": {"org.opencontainers.image.created": kind}});
            let tagged = Tagged::new("v1".into(), manifest.to_string().as_bytes());
            prop_assert_eq!(tagged.size, Some(size.saturating_mul(2)));
            let kind = tagged.kind.unwrap();
            prop_assert!(kind.chars().count() <= MAX_TEXT && !kind.contains(char::is_control));
        }
    }
}
