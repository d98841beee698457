//! The configuration of a container image, which OCI and Docker write alike.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::digest::Digest;
use crate::images::Config;

/// More layers than any builder makes.
pub(crate) const MAX_LAYERS: usize = 512;

/// Maximum size of a configuration.
pub(crate) const MAX_CONFIG: u64 = 8 << 20;

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot parse the image's configuration")]
    Json(#[from] serde_json::Error),
    #[error("the image is for {os}/{architecture}, expected linux/amd64")]
    Platform { os: String, architecture: String },
    #[error("the image has {found} layers, but its configuration lists {named}")]
    Layers { found: usize, named: usize },
    #[error("the image has {0} layers, expected at most {MAX_LAYERS}")]
    TooManyLayers(usize),
}

/// What is needed of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OciConfig {
    pub config: Config,
    /// Digests of the unpacked layers.
    pub layers: Vec<Digest>,
}

#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
    config: Option<Section>,
    rootfs: RootFs,
}

#[derive(Deserialize)]
struct RootFs {
    diff_ids: Vec<Digest>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
struct Section {
    env: Option<Vec<String>>,
    user: Option<String>,
    working_dir: Option<String>,
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    shell: Option<Vec<String>>,
    labels: Option<BTreeMap<String, String>>,
}

/// Reads the configuration of an image with so many layers.
pub(crate) fn parse(bytes: &[u8], found: usize) -> Result<OciConfig, ConfigError> {
    let document: Document = serde_json::from_slice(bytes)?;
    if (document.os.as_str(), document.architecture.as_str()) != ("linux", "amd64") {
        let shown = |text: String| if text.is_empty() { "?".into() } else { text.chars().take(40).collect() };
        let (os, architecture) = (shown(document.os), shown(document.architecture));
        return Err(ConfigError::Platform { os, architecture });
    }
    let layers = document.rootfs.diff_ids;
    if layers.len() > MAX_LAYERS {
        return Err(ConfigError::TooManyLayers(layers.len()));
    }
    if layers.len() != found {
        return Err(ConfigError::Layers { found, named: layers.len() });
    }
    let section = document.config.unwrap_or_default();
    let not_empty = |text: Option<String>| text.filter(|text| !text.is_empty());
    let pair = |entry: String| match entry.split_once('=') {
        Some((name, value)) => (name.to_owned(), value.to_owned()),
        None => (entry, String::new()),
    };
    let config = Config {
        env: section.env.unwrap_or_default().into_iter().map(pair).collect(),
        user: not_empty(section.user),
        workdir: not_empty(section.working_dir),
        entrypoint: section.entrypoint.unwrap_or_default(),
        cmd: section.cmd.unwrap_or_default(),
        shell: section.shell.unwrap_or_default(),
        labels: section.labels.unwrap_or_default(),
    };
    Ok(OciConfig { config, layers })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_configuration_is_kept() {
        let digest = Digest::of(b"layer");
        let text = format!(
            r#"{{"architecture":"amd64","os":"linux","config":{{"Env":["PATH=/bin","EMPTY"],"User":"app","WorkingDir":"",
            "Entrypoint":["/run"],"Cmd":null,"Labels":{{"a":"b"}}}},"rootfs":{{"type":"layers","diff_ids":["{digest}"]}}}}"#
        );
        let parsed = parse(text.as_bytes(), 1).unwrap();
        assert_eq!(parsed.layers, [digest]);
        assert_eq!(parsed.config.env["PATH"], "/bin");
        assert_eq!(parsed.config.env["EMPTY"], "");
        assert_eq!((parsed.config.user.as_deref(), parsed.config.workdir), (Some("app"), None));
        assert_eq!(parsed.config.entrypoint, ["/run"]);
        assert!(matches!(parse(text.as_bytes(), 2), Err(ConfigError::Layers { found: 2, named: 1 })));
        let arm = text.replace("amd64", "arm64");
        assert_eq!(
            parse(arm.as_bytes(), 1).unwrap_err().to_string(),
            "the image is for linux/arm64, expected linux/amd64"
        );
        let odd = text.replace("sha256:", "md5:");
        assert!(matches!(parse(odd.as_bytes(), 1), Err(ConfigError::Json(_))));
    }

    proptest! {
        #[test]
        fn nothing_panics(text in ".{0,200}") {
            let _ = parse(text.as_bytes(), 0);
        }
    }
}
