//! What the daemon keeps in small JSON files of its own: read when it starts, and replaced whole with each change.

use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use serde::de::{DeserializeOwned, Error as _};
use serde_json::{Map, Value};

use crate::whole_file;

const VERSION: u64 = 1;
const VERSION_FIELD: &str = "version";
/// Ten thousands of entries. A larger file is not ours.
const MAX_BYTES: u64 = 8 << 20;

/// Such a file cannot be used. What it says must not be forgotten with the next change, so the daemon does not start.
#[derive(Debug, thiserror::Error)]
pub enum KeptError {
    #[error("cannot {verb} {}", path.display())]
    Io { verb: &'static str, path: PathBuf, source: io::Error },
    #[error("{} is damaged; repair it, or remove it and lose what it records", path.display())]
    Damaged { path: PathBuf, source: serde_json::Error },
    #[error("{} has the unsupported version {found}, expected {VERSION}", path.display())]
    Version { path: PathBuf, found: Value },
    #[error("{} would have more than {MAX_BYTES} bytes", path.display())]
    TooLarge { path: PathBuf },
}

/// A file, and what it has.
#[derive(Debug)]
pub struct Kept<T> {
    path: PathBuf,
    content: Mutex<T>,
}

impl<T: Default + Clone + Serialize + DeserializeOwned> Kept<T> {
    /// No file is one with nothing in it.
    pub fn open(path: PathBuf) -> Result<Kept<T>, KeptError> {
        let content = match whole_file::read(&path, MAX_BYTES) {
            Err(source) => return Err(KeptError::Io { verb: "read", path, source }),
            Ok(None) => T::default(),
            Ok(Some(text)) if text.len() as u64 > MAX_BYTES => return Err(KeptError::TooLarge { path }),
            Ok(Some(text)) => {
                let damaged = |source| KeptError::Damaged { path: path.clone(), source };
                let mut object: Map<String, Value> = serde_json::from_slice(&text).map_err(damaged)?;
                match object.remove(VERSION_FIELD) {
                    Some(version) if version == VERSION => {}
                    Some(found) => return Err(KeptError::Version { path, found }),
                    None => return Err(damaged(serde_json::Error::missing_field(VERSION_FIELD))),
                }
                serde_json::from_value(object.into()).map_err(damaged)?
            }
        };
        Ok(Kept { path, content: Mutex::new(content) })
    }

    pub fn look(&self) -> MutexGuard<'_, T> {
        // It is replaced whole, or not at all.
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes it, and the file. Nothing has changed when the file could not be written. Blocks.
    pub fn change(&self, change: impl FnOnce(&mut T)) -> Result<(), KeptError> {
        let mut content = self.look();
        let mut changed = content.clone();
        change(&mut changed);
        let failed = |source| KeptError::Io { verb: "write", path: self.path.clone(), source };
        let text = to_text(&changed).map_err(|error| failed(error.into()))?;
        if text.len() as u64 > MAX_BYTES {
            return Err(KeptError::TooLarge { path: self.path.clone() });
        }
        whole_file::replace(&self.path, &text).map_err(failed)?;
        *content = changed;
        Ok(())
    }
}

fn to_text(content: &impl Serialize) -> Result<Vec<u8>, serde_json::Error> {
    let mut object: Map<String, Value> = serde_json::from_value(serde_json::to_value(content)?)?;
    object.insert(VERSION_FIELD.into(), VERSION.into());
    serde_json::to_vec_pretty(&object)
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Words {
        words: Vec<String>,
    }

    #[test]
    fn what_is_changed_is_there_for_the_next_daemon() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("words.json");
        let kept = Kept::<Words>::open(path.clone()).unwrap();
        assert!(kept.look().words.is_empty() && !path.exists());
        kept.change(|content| content.words.push("one".into())).unwrap();
        assert_eq!(*Kept::<Words>::open(path.clone()).unwrap().look(), *kept.look());
        // Nothing changes that cannot be written.
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(kept.change(|content| content.words.clear()).is_err());
        assert_eq!(kept.look().words, ["one"]);
        let long = |content: &mut Words| content.words.push("x".repeat(9 << 20));
        assert!(matches!(kept.change(long), Err(KeptError::TooLarge { .. })));
    }

    #[test]
    fn what_cannot_be_read_is_left_alone() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("words.json");
        for text in [
            "",
            "{",
            "[]",
            r#"{"words":[]}"#,
            r#"{"version":2,"words":[]}"#,
            r#"{"version":1,"words":[],"more":1}"#,
            r#"{"version":1,"words":7}"#,
            &" ".repeat(9 << 20),
        ] {
            std::fs::write(&path, text).unwrap();
            assert!(Kept::<Words>::open(path.clone()).is_err(), "{}", &text[..text.len().min(80)]);
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }
}
