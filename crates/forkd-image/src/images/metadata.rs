//! What is known of an image beside its file system.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::digest::{Digest, Hasher};
use crate::recipe::Recipe;

/// Changes whenever the same inputs would make another file system, so that old images keep their ids.
pub(super) const FORMAT: u32 = 1;

/// How processes of the image are started, unless something else is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    pub env: BTreeMap<String, String>,
    /// What the image says: a name or a number, perhaps with a group after a colon. Often nothing.
    pub user: Option<String>,
    pub workdir: Option<String>,
    pub entrypoint: Vec<String>,
    pub cmd: Vec<String>,
    /// What `RUN` of a Dockerfile starts; empty for `/bin/sh -c`.
    pub shell: Vec<String>,
    pub labels: BTreeMap<String, String>,
}

/// Where an image came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Source {
    /// Pulled, by the manifest with this digest.
    Registry {
        reference: String,
        manifest: String,
    },
    /// Imported from a file.
    Archive {
        file: String,
    },
    Debian {
        suite: String,
        include: Vec<String>,
        mirror: Option<String>,
    },
    /// Built from a Dockerfile, whose last step has this key.
    Build {
        key: Digest,
    },
}

/// `metadata.json` in an image's directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metadata {
    pub format: u32,
    /// The digest of the inputs: layers, configuration, size.
    pub id: Digest,
    pub source: Source,
    /// Seconds since 1970.
    pub created: u64,
    /// Digests of the unpacked layers, the lowest first.
    pub layers: Vec<Digest>,
    pub config: Config,
    /// What a parent needs beyond the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recipe: Option<Recipe>,
    /// The default user of processes: the image's own user if it names one, else `user` if there is
    /// such a user, else root. The image itself is not changed.
    pub default_user: String,
    /// Bytes of the file system.
    pub size: u64,
    /// Bytes of its files, and their number.
    pub content: u64,
    pub inodes: u64,
    /// The digest of what is in `base.ext4`: its length and its blocks that are not zeroes, with their places.
    pub digest: Digest,
}

/// An image with the names that mean it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Image {
    pub names: Vec<String>,
    /// Bytes that it takes on the disk.
    pub disk: u64,
    pub path: std::path::PathBuf,
    /// Whether it is in a library that is only read.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
    #[serde(flatten)]
    pub metadata: Metadata,
}

impl Image {
    pub fn id(&self) -> Digest {
        self.metadata.id
    }

    /// The file system.
    pub fn base(&self) -> std::path::PathBuf {
        self.path.join(super::BASE)
    }
}

/// The id of the image that these inputs make.
pub fn image_id(
    layers: &[Digest],
    config: &Config,
    min_mib: Option<u64>,
) -> Result<Digest, serde_json::Error> {
    let hasher = Hasher::new("forkd image").part(&FORMAT.to_le_bytes()).part(&serde_json::to_vec(config)?);
    let hasher = hasher.part(&min_mib.unwrap_or(0).to_le_bytes());
    let hash = |hasher: Hasher, layer: &Digest| hasher.part(layer.hex().as_bytes());
    Ok(layers.iter().fold(hasher, hash).finish())
}

/// Chooses [`Metadata::default_user`], from the configuration and the image's `/etc/passwd`.
pub fn default_user(config: &Config, passwd: &str) -> String {
    if let Some(user) = config.user.as_deref().filter(|user| !user.is_empty()) {
        return user.to_owned();
    }
    let has_user = passwd.lines().any(|line| line.split(':').next() == Some("user"));
    if has_user { "user" } else { "root" }.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_input_changes_the_id() {
        let (a, b) = (Digest::of(b"a"), Digest::of(b"b"));
        let config = Config::default();
        let mut other = Config::default();
        other.env.insert("A".into(), "1".into());
        let ids = [
            image_id(&[], &config, None),
            image_id(&[a], &config, None),
            image_id(&[a, b], &config, None),
            image_id(&[b, a], &config, None),
            image_id(&[a], &other, None),
            image_id(&[a], &config, Some(100)),
        ]
        .map(Result::unwrap);
        assert_eq!(ids.iter().collect::<std::collections::BTreeSet<_>>().len(), ids.len());
        assert_eq!(ids[1], image_id(&[a], &config, None).unwrap());
    }

    #[test]
    fn the_default_user() {
        let passwd = "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/bash\n";
        let named = Config { user: Some("app:app".into()), ..Config::default() };
        assert_eq!(default_user(&named, passwd), "app:app");
        assert_eq!(default_user(&Config::default(), passwd), "user");
        assert_eq!(default_user(&Config::default(), "root:x:0:0\nusers:x:3:3\n"), "root");
        assert_eq!(default_user(&Config { user: Some(String::new()), ..Config::default() }, ""), "root");
    }
}
