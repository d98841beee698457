//! Making directories and files that belong to a user.

use std::fs;
use std::io;
use std::os::unix::fs::lchown;
use std::path::Path;

use crate::users::User;

/// Gives an entry to the user. Without the right to, it stays whose it is: in development everything is one user's.
pub fn own(path: &Path, user: &User) -> io::Result<()> {
    match lchown(path, Some(user.uid), Some(user.gid)) {
        Err(error)
            if error.kind() == io::ErrorKind::PermissionDenied && !rustix::process::geteuid().is_root() =>
        {
            Ok(())
        }
        result => result,
    }
}

/// Makes a directory and those above it that are missing. Only the new ones change hands.
pub fn make_directories(path: &Path, user: &User) -> io::Result<()> {
    let mut missing = Vec::new();
    for ancestor in path.ancestors() {
        match fs::metadata(ancestor) {
            Ok(found) if found.is_dir() => break,
            Ok(_) => return Err(io::Error::from(io::ErrorKind::NotADirectory)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => missing.push(ancestor),
            Err(error) => return Err(error),
        }
    }
    for directory in missing.into_iter().rev() {
        match fs::create_dir(directory) {
            Ok(()) => own(directory, user)?,
            // Another process was faster and owns it.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && directory.is_dir() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The directories above a path.
pub fn make_parents(path: &Path, user: &User) -> io::Result<()> {
    path.parent().map_or(Ok(()), |parent| make_directories(parent, user))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_missing_is_made() {
        let directory = tempfile::tempdir().unwrap();
        let user = crate::users::current();
        let deep = directory.path().join("a/b/c");
        make_directories(&deep, &user).unwrap();
        make_directories(&deep, &user).unwrap();
        assert!(deep.is_dir());
        fs::write(directory.path().join("file"), "").unwrap();
        let through_a_file = make_parents(&directory.path().join("file/x/y"), &user).unwrap_err();
        assert_eq!(through_a_file.kind(), io::ErrorKind::NotADirectory);
    }
}
