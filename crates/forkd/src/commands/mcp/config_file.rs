//! Configuration files of clients, in JSON: one member is set, and all else stays as it was written.
//!
//! Members are kept as text and in their order, so that numbers, escapes and duplicate names that this program would write differently
//! survive. A file that is not JSON, as with comments in it, is refused and not touched.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use tempfile::NamedTempFile;

/// Larger ones are not configuration.
const MAX_BYTES: u64 = 16 << 20;

/// A file that cannot be changed.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is larger than {} MiB", path.display(), MAX_BYTES >> 20)]
    TooLarge { path: PathBuf },
    #[error("{} is not a JSON object, and was not changed; add the entry by hand (--print shows it)", path.display())]
    NotJson { path: PathBuf, source: serde_json::Error },
    #[error(
        "{} has another entry {name:?}; replace it with --force, or give this one another name (--name)",
        path.display()
    )]
    Taken { path: PathBuf, name: String },
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
}

/// What setting an entry came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Written,
    /// It was there already.
    Unchanged,
}

/// Sets the entry `name` of the object `section` in a file, which is made if it is not there.
pub fn set_entry(
    path: &Path,
    section: &str,
    name: &str,
    entry: &Value,
    force: bool,
) -> Result<Change, ConfigError> {
    // A link stays one: its target is replaced.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let text = read(&target)?;
    let not_json = |source| ConfigError::NotJson { path: path.to_owned(), source };
    let mut whole = Members::parse(&text).map_err(not_json)?;
    let mut entries = match whole.get(section) {
        Some(raw) => Members::parse(raw.get()).map_err(not_json)?,
        None => Members::default(),
    };
    if let Some(present) = entries.get(name) {
        if serde_json::from_str::<Value>(present.get()).is_ok_and(|present| present == *entry) {
            return Ok(Change::Unchanged);
        }
        if !force {
            return Err(ConfigError::Taken { path: path.to_owned(), name: name.to_owned() });
        }
    }
    entries.set(name, indented(&pretty(entry), 2)).map_err(not_json)?;
    whole.set(section, entries.text(1)).map_err(not_json)?;
    let failed = |source| ConfigError::Write { path: path.to_owned(), source };
    replace(&target, &(whole.text(0) + "\n")).map_err(failed)?;
    Ok(Change::Written)
}

fn read(path: &Path) -> Result<String, ConfigError> {
    let failed = |source| ConfigError::Read { path: path.to_owned(), source };
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
        Err(error) => return Err(failed(error)),
        Ok(metadata) if metadata.len() > MAX_BYTES => {
            return Err(ConfigError::TooLarge { path: path.to_owned() });
        }
        Ok(_) => {}
    }
    fs::read_to_string(path).map_err(failed)
}

/// All at once, with the permissions that the file had. A new one is for its owner only: these files can have secrets.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(directory)?;
    let mut file = NamedTempFile::new_in(directory)?;
    file.write_all(text.as_bytes())?;
    if let Ok(metadata) = fs::metadata(path) {
        file.as_file().set_permissions(metadata.permissions())?;
    }
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

fn pretty(value: &Value) -> String {
    // Values can always be written.
    serde_json::to_string_pretty(value).unwrap_or_default()
}

/// Lines after the first one, so much further to the right. JSON has no line ends inside of strings.
fn indented(text: &str, levels: usize) -> String {
    text.replace('\n', &format!("\n{}", "  ".repeat(levels)))
}

/// The members of an object, in their order, as they are written.
#[derive(Debug, Default)]
struct Members(Vec<(String, Box<RawValue>)>);

impl Members {
    /// An empty text has none.
    fn parse(text: &str) -> Result<Members, serde_json::Error> {
        match text.trim_start_matches('\u{feff}').trim() {
            "" => Ok(Members::default()),
            text => serde_json::from_str(text),
        }
    }

    /// The last of this name, which is the one that counts.
    fn get(&self, name: &str) -> Option<&RawValue> {
        self.0.iter().rev().find(|(key, _)| key == name).map(|(_, value)| &**value)
    }

    fn set(&mut self, name: &str, text: String) -> Result<(), serde_json::Error> {
        let value = RawValue::from_string(text)?;
        match self.0.iter_mut().rev().find(|(key, _)| key == name) {
            Some((_, present)) => *present = value,
            None => self.0.push((name.to_owned(), value)),
        }
        Ok(())
    }

    /// As it is written this far to the right. The members' own lines stay where they are.
    fn text(&self, level: usize) -> String {
        let margin = "  ".repeat(level);
        let member = |(name, value): &(String, Box<RawValue>)| {
            format!("{margin}  {}: {}", Value::from(name.as_str()), value.get())
        };
        match self.0.is_empty() {
            true => "{}".into(),
            false => format!("{{\n{}\n{margin}}}", self.0.iter().map(member).collect::<Vec<_>>().join(",\n")),
        }
    }
}

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Members, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Members;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use serde_json::json;

    use super::*;

    fn set(path: &Path, force: bool) -> Result<Change, ConfigError> {
        set_entry(path, "mcpServers", "forkd", &json!({ "command": "forkd", "args": ["mcp"] }), force)
    }

    #[test]
    fn a_new_file_has_the_entry_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new/config.json");
        assert_eq!(set(&path, false).unwrap(), Change::Written);
        let expected = "{\n  \"mcpServers\": {\n    \"forkd\": {\n      \"args\": [\n        \"mcp\"\n      ],\n      \"command\": \"forkd\"\n    }\n  }\n}\n";
        assert_eq!(fs::read_to_string(&path).unwrap(), expected);
        assert_eq!(set(&path, false).unwrap(), Change::Unchanged);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn everything_else_stays_as_it_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let (path, link) = (directory.path().join("config.json"), directory.path().join("link.json"));
        let before = "{ \"z\": 1.50e3, \"big\": 123456789012345678901234567890,\n \"mcpServers\": {\"other\": {\"b\": 1, \"a\": \"\\u00e9\"}}, \"a\": [1,\n  2] }";
        fs::write(&path, before).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        symlink(&path, &link).unwrap();
        set(&link, false).unwrap();
        let after = fs::read_to_string(&path).unwrap();
        for kept in
            ["\"z\": 1.50e3", "123456789012345678901234567890", "{\"b\": 1, \"a\": \"\\u00e9\"}", "[1,\n  2]"]
        {
            assert!(after.contains(kept), "{kept} is not in {after}");
        }
        assert!(
            after.find("\"z\"") < after.find("\"big\"") && after.find("\"big\"") < after.find("\"a\": [1")
        );
        let value: Value = serde_json::from_str(&after).unwrap();
        assert_eq!(value["mcpServers"]["forkd"]["args"], json!(["mcp"]));
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    }

    #[test]
    fn another_entry_is_replaced_only_by_force() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.json");
        let before = r#"{"mcpServers": {"forkd": {"command": "other"}}}"#;
        fs::write(&path, before).unwrap();
        assert!(matches!(set(&path, false), Err(ConfigError::Taken { .. })));
        assert_eq!(fs::read_to_string(&path).unwrap(), before);
        assert_eq!(set(&path, true).unwrap(), Change::Written);
        assert_eq!(set(&path, false).unwrap(), Change::Unchanged);
        // Others do not move, however often it is written.
        let add = |n: i32| set_entry(&path, "mcpServers", "more", &json!({ "n": [n] }), true).unwrap();
        add(1);
        let first = fs::read_to_string(&path).unwrap();
        add(2);
        assert_eq!(fs::read_to_string(&path).unwrap(), first.replace("1\n", "2\n"));
    }

    #[test]
    fn what_is_not_json_is_not_touched() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.json");
        for wrong in ["// comment\n{}", "[]", "{\"mcpServers\": []}", "{\"a\": }", "{} {}", "{\"a\": 1,}"] {
            fs::write(&path, wrong).unwrap();
            assert!(matches!(set(&path, true), Err(ConfigError::NotJson { .. })), "{wrong}");
            assert_eq!(fs::read_to_string(&path).unwrap(), wrong);
        }
        for empty in ["", "\n", "{}", "\u{feff}{}"] {
            fs::write(&path, empty).unwrap();
            assert_eq!(set(&path, false).unwrap(), Change::Written, "{empty:?}");
        }
    }
}
