//! `local.json`: what only this store knows of a snapshot, and no other host.
//!
//! ```text
//! b0a8…
//! {"format":"forkd snapshot here","version":1,"parent":"base","layers":["l4f…",…],"about":{…}}
//! ```
//!
//! It is written before the snapshot has its name, and is as durable. A snapshot whose `local.json` cannot be read is not used and not
//! removed: the layers of its disks would be unknown.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::manifest::About;
use crate::side_file;
use crate::snapshot::OpenError;
use crate::tag::Tag;

/// The largest `local.json`.
pub(crate) const MAX_LENGTH: u64 = 1 << 20;
const FORMAT: &str = "forkd snapshot here";
const VERSION: u32 = 1;

/// What a snapshot is called here, and what it uses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Local {
    /// Who has the parent's memory. Where that is not the parent any more, it is looked for by its digest.
    pub parent: Option<Tag>,
    /// The names of the disk layers, in the manifest's order. They have the syntax of tags.
    pub layers: Vec<Tag>,
    /// What the owner of the store wants to know again. It means nothing here.
    pub about: About,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    format: String,
    version: u32,
    parent: Option<Tag>,
    layers: Vec<Tag>,
    about: About,
}

/// The bytes are not a `local.json` that can be used.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    #[error("more than {MAX_LENGTH} bytes")]
    TooLarge,
    #[error("damaged: its first line is not the blake3 digest of the rest")]
    Damaged,
    #[error("invalid local metadata of a snapshot")]
    Syntax(#[source] serde_json::Error),
    #[error("the format is {found:?}, version {version}, expected {FORMAT:?}, version {VERSION}")]
    Format { found: String, version: u32 },
    #[error("the names of {found} disk layers, expected {expected}")]
    Layers { found: usize, expected: usize },
}

impl LocalError {
    pub(crate) fn at(self, path: PathBuf) -> OpenError {
        OpenError::Local { path, source: self }
    }
}

impl Local {
    pub(crate) fn encode(&self) -> Result<Vec<u8>, LocalError> {
        let Local { parent, layers, about } = self.clone();
        let fields = Fields { format: FORMAT.into(), version: VERSION, parent, layers, about };
        let file = side_file::encode(&fields)
            .map_err(|error| LocalError::Syntax(serde::ser::Error::custom(error)))?;
        if file.len() as u64 > MAX_LENGTH {
            return Err(LocalError::TooLarge);
        }
        Ok(file)
    }

    /// Checks a whole file that belongs to a manifest with `layers` disk layers.
    pub(crate) fn parse(file: &[u8], layers: usize) -> Result<Local, LocalError> {
        if file.len() as u64 > MAX_LENGTH {
            return Err(LocalError::TooLarge);
        }
        let text = side_file::decode(file).ok_or(LocalError::Damaged)?;
        let fields: Fields = serde_json::from_slice(text).map_err(LocalError::Syntax)?;
        if fields.format != FORMAT || fields.version != VERSION {
            let found = fields.format.chars().take(80).collect();
            return Err(LocalError::Format { found, version: fields.version });
        }
        if fields.layers.len() != layers {
            return Err(LocalError::Layers { found: fields.layers.len(), expected: layers });
        }
        Ok(Local { parent: fields.parent, layers: fields.layers, about: fields.about })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::testing::tag;

    fn local() -> Local {
        Local {
            parent: Some(tag("base")),
            layers: vec![tag("debian-12"), tag("l1")],
            about: About::from_iter([("project".to_owned(), "one".into())]),
        }
    }

    #[test]
    fn what_was_written_is_read() {
        let file = local().encode().unwrap();
        assert_eq!(Local::parse(&file, 2).unwrap(), local());
        let error = Local::parse(&file, 3).unwrap_err();
        assert_eq!(error.to_string(), "the names of 2 disk layers, expected 3");
        assert!(matches!(Local::parse(&file[1..], 2), Err(LocalError::Damaged)));
        assert!(matches!(Local::parse(&vec![b'x'; 2 << 20], 2), Err(LocalError::TooLarge)));
    }

    #[test]
    fn other_formats_are_refused() {
        let with = |text: &str| {
            side_file::encode(&serde_json::from_str::<serde_json::Value>(text).unwrap()).unwrap()
        };
        let newer =
            with(r#"{"format":"forkd snapshot here","version":2,"parent":null,"layers":[],"about":{}}"#);
        let error = Local::parse(&newer, 0).unwrap_err();
        assert!(error.to_string().contains("version 2, expected"), "{error}");
        let more = with(
            r#"{"format":"forkd snapshot here","version":1,"parent":null,"layers":[],"about":{},"x":1}"#,
        );
        assert!(matches!(Local::parse(&more, 0), Err(LocalError::Syntax(_))));
        let path =
            with(r#"{"format":"forkd snapshot here","version":1,"parent":"../x","layers":[],"about":{}}"#);
        assert!(matches!(Local::parse(&path, 0), Err(LocalError::Syntax(_))));
    }

    fn any_tag() -> impl Strategy<Value = Tag> {
        "[a-z0-9][a-z0-9._-]{0,63}".prop_map(|text| text.parse().unwrap())
    }

    proptest! {
        #[test]
        fn any_that_was_written_is_read_and_no_other(
            parent in prop::option::of(any_tag()),
            layers in prop::collection::vec(any_tag(), 0..10),
            about in prop::collection::btree_map(".{0,10}", any::<u64>(), 0..5),
            byte in any::<prop::sample::Index>(),
            bit in 0_u8..8,
        ) {
            let about = about.into_iter().map(|(name, value)| (name, value.into())).collect();
            let local = Local { parent, layers, about };
            let mut file = local.encode().unwrap();
            prop_assert_eq!(Local::parse(&file, local.layers.len()).unwrap(), local.clone());
            prop_assert!(Local::parse(&file, local.layers.len() + 1).is_err());
            let at = byte.index(file.len());
            file[at] ^= 1 << bit;
            let parsed = Local::parse(&file, local.layers.len());
            prop_assert!(matches!(parsed, Err(LocalError::Damaged)), "bit {bit} of byte {at}: {parsed:?}");
        }

        /// The digest of a file is no secret: its writer can put anything in it.
        #[test]
        fn any_file_with_a_right_digest_is_one_or_is_refused(
            field in prop::sample::select(vec!["format", "version", "parent", "layers", "about", "other"]),
            value in prop_oneof![
                Just(json!(null)), Just(json!({})), any::<i64>().prop_map(Into::into), ".{0,80}".prop_map(Into::into),
                prop::collection::vec(".{0,5}", 0..4).prop_map(Into::into),
            ],
            bytes in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut fields = json!({"format": FORMAT, "version": VERSION, "parent": null, "layers": [], "about": {}});
            fields[field] = value;
            let file = side_file::encode(&fields).unwrap();
            for layers in 0..4 {
                if let Ok(local) = Local::parse(&file, layers) {
                    prop_assert_eq!(local.layers.len(), layers);
                    prop_assert_eq!(Local::parse(&local.encode().unwrap(), layers).unwrap(), local);
                }
            }
            prop_assert!(Local::parse(&bytes, 0).is_err());
        }
    }
}
