//! Kernels and images.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::error::ErrorBody;
use crate::snapshot::{PushedSnapshot, Snapshot};
use crate::snapshot::{ReadyProbe, WarmUp};

/// An image in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImageSummary {
    pub id: String,
    pub names: Vec<String>,
    /// Whether it is in the shared, read-only library.
    pub shared: bool,
    pub created_at_unix: u64,
    /// The size of its file system.
    pub size_bytes: u64,
    /// Its size on disk.
    pub disk_bytes: u64,
    /// The default user of its processes.
    pub default_user: String,
    /// The projects it belongs to that the caller may see.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub projects: Vec<String>,
    /// Whether every project can make snapshots of it.
    #[serde(default)]
    pub public: bool,
}

/// Makes something usable by every project, or only its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Publish {
    pub public: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImageList {
    pub images: Vec<ImageSummary>,
}

/// An image with its details.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Image {
    #[serde(flatten)]
    pub summary: ImageSummary,
    pub source: ImageSource,
    pub config: ImageConfig,
    /// Defaults for snapshots of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recipe: Option<ImageRecipe>,
    /// Digests of the unpacked layers, the lowest first.
    pub layers: Vec<String>,
}

/// Where an image came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ImageSource {
    Registry {
        reference: String,
        /// The digest of the manifest.
        manifest: String,
    },
    Archive {
        file: String,
    },
    Debian {
        suite: String,
        include: Vec<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mirror: Option<String>,
    },
    Build,
}

/// How processes of an image are started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImageConfig {
    pub env: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    pub entrypoint: Vec<String>,
    pub cmd: Vec<String>,
    pub labels: BTreeMap<String, String>,
}

/// The image's `forkd.toml`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImageRecipe {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpus: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_mib: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<ReadyProbe>,
    pub warm_up: Vec<WarmUp>,
}

/// Pulls an image from a registry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PullImage {
    /// A Docker reference: `python:3.12`, `registry.example/team/app@sha256:…`. Plain HTTP is used only with the daemon's own host.
    pub reference: String,
    /// The name of the image [default: the reference].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The minimum size of the file system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1048576)]
    pub size_mib: Option<u64>,
    /// Credentials for the registry [default: those of the daemon's Docker config file].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<Credentials>,
}

/// Credentials for a registry. They are neither stored nor logged.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Credentials {
    pub username: String,
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Credentials(…)")
    }
}

/// Makes a Debian image from Debian packages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DebianImage {
    #[serde(default = "bookworm")]
    #[schema(default = "bookworm")]
    pub suite: String,
    /// Packages to add to the minimal system.
    #[serde(default)]
    pub include: Vec<String>,
    /// The package mirror: an http:// or https:// address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror: Option<String>,
    /// The name of the image [default: derived from the suite and the packages].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The minimum size of the file system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1048576)]
    pub size_mib: Option<u64>,
}

fn bookworm() -> String {
    "bookworm".to_owned()
}

/// An archive that is sent as the body of a request.
#[derive(Debug, Clone, PartialEq, Eq, ToSchema)]
#[schema(value_type = String, format = Binary)]
pub struct Archive(pub Vec<u8>);

/// How an uploaded archive is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ImportImage {
    /// The name of the image.
    pub name: String,
    /// The minimum size of the file system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(minimum = 1, maximum = 1048576)]
    pub size_mib: Option<u64>,
}

/// How an uploaded context is built. In a query; `build_arg` may be there many times.
#[derive(Debug, Clone, Default, PartialEq, Eq, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct BuildImage {
    /// The name of the image.
    #[param(required = false)]
    pub name: Option<String>,
    /// The Dockerfile's path in the context [default: Dockerfile].
    #[param(required = false)]
    pub dockerfile: Option<String>,
    /// A directory of the archive to exclude from the context, for a Dockerfile outside the context and the forkd.toml beside it.
    #[param(required = false)]
    pub apart: Option<String>,
    /// The stage to build [default: the last].
    #[param(required = false)]
    pub target: Option<String>,
    /// Values for ARGs, each as NAME=VALUE.
    #[param(required = false, style = Form, explode)]
    pub build_arg: Vec<String>,
    /// Whether to ignore the build cache.
    #[param(required = false)]
    pub no_cache: bool,
    /// Whether to run the steps without a network.
    #[param(required = false)]
    pub no_network: bool,
    /// Whether to pass the CA certificates and proxy settings of the daemon's host to the steps.
    #[param(required = false)]
    pub host_certs: bool,
    /// vCPUs of the guests that commands run in [default: 1].
    #[param(required = false, minimum = 1, maximum = 32)]
    pub vcpus: Option<u8>,
    /// Memory of these guests [default: 1024].
    #[param(required = false, minimum = 64, maximum = 1048576)]
    pub memory_mib: Option<u64>,
}

impl BuildImage {
    /// As the query has it, to be encoded.
    pub fn pairs(&self) -> Vec<(&'static str, String)> {
        let yes = |name, value: bool| value.then(|| (name, "true".to_owned()));
        let text = |name, value: &Option<String>| value.clone().map(|value| (name, value));
        let mut pairs: Vec<_> = [
            text("name", &self.name),
            text("dockerfile", &self.dockerfile),
            text("apart", &self.apart),
            text("target", &self.target),
            yes("no_cache", self.no_cache),
            yes("no_network", self.no_network),
            yes("host_certs", self.host_certs),
            self.vcpus.map(|vcpus| ("vcpus", vcpus.to_string())),
            self.memory_mib.map(|mib| ("memory_mib", mib.to_string())),
        ]
        .into_iter()
        .flatten()
        .collect();
        pairs.extend(self.build_arg.iter().map(|argument| ("build_arg", argument.clone())));
        pairs
    }

    /// What a query means, decoded; or what is wrong with it.
    pub fn of_pairs(pairs: Vec<(String, String)>) -> Result<BuildImage, String> {
        fn parsed<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, String> {
            value.parse().map_err(|_| format!("{name} cannot be {value:?}"))
        }
        let mut wanted = BuildImage::default();
        for (name, value) in pairs {
            match name.as_str() {
                "name" => wanted.name = Some(value),
                "dockerfile" => wanted.dockerfile = Some(value),
                "apart" => wanted.apart = Some(value),
                "target" => wanted.target = Some(value),
                "build_arg" => wanted.build_arg.push(value),
                "no_cache" => wanted.no_cache = parsed(&name, &value)?,
                "no_network" => wanted.no_network = parsed(&name, &value)?,
                "host_certs" => wanted.host_certs = parsed(&name, &value)?,
                "vcpus" => wanted.vcpus = Some(parsed(&name, &value)?),
                "memory_mib" => wanted.memory_mib = Some(parsed(&name, &value)?),
                _ => return Err(format!("there is no parameter {name:?}")),
            }
        }
        Ok(wanted)
    }
}

/// The progress of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Transfer {
    /// Bytes transferred so far, uncompressed.
    pub done_bytes: u64,
    /// Bytes to transfer in total, uncompressed. A pull excludes what the daemon already has; a push counts what the registry
    /// already has as done.
    pub total_bytes: u64,
}

/// A line of the streamed response (`Accept: application/x-ndjson`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LibraryProgress {
    /// The current step.
    Step(String),
    /// The progress of the step; replaces the previous one.
    Detail(String),
    /// The progress of a snapshot transfer; replaces the previous one.
    Transfer(Transfer),
    /// A line of output of a build step.
    Output(String),
    /// A warning.
    Warning(String),
    /// The last line: the result.
    Image(Box<Image>),
    /// The last line: the result.
    Kernel(Box<Kernel>),
    /// The last line: the result.
    Snapshot(Box<Snapshot>),
    /// The last line: the result.
    Pushed(PushedSnapshot),
    /// The last line: the error.
    Error(ErrorBody),
}

/// What was removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RemovedImage {
    pub id: String,
    /// The removed names.
    pub names: Vec<String>,
    /// Whether the image itself was removed: by its id or with its last name.
    pub removed: bool,
    /// Freed bytes on disk.
    pub freed_bytes: u64,
}

/// Which unused objects to remove: cached build steps, and images without a name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PruneImages {
    /// How much of the most recently used build steps to keep, in MiB.
    #[serde(default)]
    pub keep_mib: u64,
    /// Whether to also remove images without a name, unless snapshots or sandboxes need them.
    #[serde(default)]
    pub images: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PrunedImages {
    pub steps: u64,
    pub images: u64,
    pub freed_bytes: u64,
}

/// A kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Kernel {
    pub name: String,
    pub version: String,
    /// Whether it is the default kernel.
    pub default: bool,
    /// Whether it is in the shared, read-only library.
    pub shared: bool,
    pub created_at_unix: u64,
    /// Its modules, in loading order.
    pub modules: Vec<String>,
    /// Useful modules that it lacks.
    pub missing: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KernelList {
    pub kernels: Vec<Kernel>,
}

/// Adds a kernel of the daemon's host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddKernel {
    #[serde(default)]
    pub source: KernelSource,
    /// The version, for the host's own kernels [default: the newest].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Whether to make it the default.
    #[serde(default)]
    pub default: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum KernelSource {
    /// The package of the host's distribution: downloaded, not installed.
    #[default]
    Package,
    /// The host's own, of /boot and /lib/modules.
    Host,
}

/// How an uploaded kernel is kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ImportKernel {
    /// Whether to make it the default.
    #[serde(default)]
    pub default: bool,
}

/// Chooses the default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChooseKernel {
    /// A name or a unique prefix of one, such as a version.
    pub kernel: String,
}

/// How a kernel is removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct RemoveKernel {
    /// Whether to remove it even if it is the default.
    #[serde(default)]
    pub force: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_s_query_comes_back_as_it_was() {
        let wanted = BuildImage {
            name: Some("a/b:c".into()),
            dockerfile: Some("x/Dockerfile".into()),
            apart: Some("x".into()),
            target: Some("last".into()),
            build_arg: vec!["A=1".into(), "B=x=y".into()],
            no_cache: true,
            no_network: true,
            host_certs: false,
            vcpus: Some(2),
            memory_mib: Some(512),
        };
        let pairs = wanted.pairs().into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        assert_eq!(BuildImage::of_pairs(pairs).as_ref(), Ok(&wanted));
        assert_eq!(BuildImage::of_pairs(vec![]), Ok(BuildImage::default()));
        for (name, value) in [("nmae", "x"), ("vcpus", "many"), ("no_cache", "1")] {
            assert!(BuildImage::of_pairs(vec![(name.into(), value.into())]).unwrap_err().contains(name));
        }
    }

    #[test]
    fn credentials_are_not_shown() {
        let text = r#"{"reference": "x", "credentials": {"username": "me", "password": "s3cret"}}"#;
        let pull: PullImage = serde_json::from_str(text).unwrap();
        assert!(!format!("{pull:?}").contains("s3cret"));
    }
}
