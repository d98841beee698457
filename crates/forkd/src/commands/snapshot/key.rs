//! `forkd snapshot key …`, and keys in files.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use forkd_hub::trust::{KeyError, PublicKey, SigningKey};
use serde::Serialize;

use crate::arguments::SnapshotKeyNewOptions;
use crate::commands::{print_value, sheet};
use crate::error::CliError;
use crate::exit::Exit;

/// No file with a key is larger.
const MAX_KEY: u64 = 16 << 10;

#[derive(Serialize)]
struct NewKey {
    private: PathBuf,
    public: PathBuf,
    /// As refusals of pulls name it.
    fingerprint: String,
}

/// `forkd snapshot key new`.
pub fn new(options: &SnapshotKeyNewOptions) -> Result<Exit, CliError> {
    let (private, public) = (options.file.clone(), public_path(&options.file));
    let key = SigningKey::generate().map_err(|source| unusable(&private, source))?;
    write_pair(&key, &private, &public)?;
    let made = NewKey { private, public, fingerprint: key.public().fingerprint() };
    print_value(&options.output, &made, || {
        sheet(&[
            ("private key", Some(made.private.display().to_string())),
            ("public key", Some(made.public.display().to_string())),
            ("fingerprint", Some(made.fingerprint.clone())),
        ])
    })?;
    Ok(Exit::Success)
}

fn public_path(private: &Path) -> PathBuf {
    let mut name = private.as_os_str().to_owned();
    name.push(".pub");
    name.into()
}

/// Both files or neither. One that is there stays what it is.
fn write_pair(key: &SigningKey, private: &Path, public: &Path) -> Result<(), CliError> {
    write_new(private, 0o600, &key.to_pem())?;
    write_new(public, 0o644, &key.public().to_pem()).inspect_err(|_| {
        let _ = fs::remove_file(private);
    })
}

fn write_new(path: &Path, mode: u32, text: &str) -> Result<(), CliError> {
    let failed = |source| CliError::Save { path: path.into(), source };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path).map_err(failed)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    written.map_err(failed).inspect_err(|_| {
        let _ = fs::remove_file(path);
    })
}

/// A private key in a file.
pub fn signing_key(path: &Path) -> Result<SigningKey, CliError> {
    SigningKey::from_pem(&text(path)?).map_err(|source| unusable(path, source))
}

/// A public key in a file.
pub fn public_key(path: &Path) -> Result<PublicKey, CliError> {
    PublicKey::from_pem(&text(path)?).map_err(|source| unusable(path, source))
}

fn text(path: &Path) -> Result<String, CliError> {
    let failed = |source| CliError::Send { path: path.into(), source };
    let file = File::open(path).map_err(failed)?;
    let mut text = String::new();
    let read = file.take(MAX_KEY + 1).read_to_string(&mut text).map_err(failed)?;
    match read as u64 > MAX_KEY {
        true => Err(failed(io::Error::new(io::ErrorKind::FileTooLarge, "expected a key of at most 16 KiB"))),
        false => Ok(text),
    }
}

fn unusable(path: &Path, source: KeyError) -> CliError {
    CliError::Key { path: path.into(), source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_pair_is_written_once_and_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let private = directory.path().join("team.key");
        let public = public_path(&private);
        let (key, other) = (SigningKey::generate().unwrap(), SigningKey::generate().unwrap());
        write_pair(&key, &private, &public).unwrap();
        assert_eq!(public, directory.path().join("team.key.pub"));
        assert_eq!(fs::metadata(&private).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(signing_key(&private).unwrap().public(), key.public());
        assert_eq!(public_key(&public).unwrap(), key.public());
        assert!(matches!(public_key(&private), Err(CliError::Key { .. })));

        assert!(write_pair(&other, &private, &public).is_err());
        // Without the private half, the public one alone is left as it is, too.
        fs::remove_file(&private).unwrap();
        assert!(write_pair(&other, &private, &public).is_err());
        assert!(!private.exists());
        assert_eq!(public_key(&public).unwrap(), key.public());

        fs::write(&private, " ".repeat(20_000)).unwrap();
        assert!(matches!(signing_key(&private), Err(CliError::Send { .. })));
    }
}
