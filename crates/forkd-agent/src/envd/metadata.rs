//! What clients note on a file: `X-Metadata-<key>: <value>` of an upload, kept as extended attributes `user.e2b.<key>`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::Path;

use axum::http::HeaderMap;
use rustix::fs::{XattrFlags, fremovexattr, fsetxattr, getxattr, listxattr, listxattr_query};

const HEADER: &str = "x-metadata-";
const ATTRIBUTE: &str = "user.e2b.";
/// The kernel's own limits: 64 KiB for the list of names, and for one value.
const MAX_LIST: usize = 64 << 10;
const MAX_VALUE: usize = 64 << 10;

/// The notes in a request's headers, by key. Of a repeated one the first counts.
pub fn from_headers(headers: &HeaderMap) -> BTreeMap<String, String> {
    let notes = headers.keys().filter_map(|name| {
        let key = name.as_str().strip_prefix(HEADER).filter(|key| !key.is_empty())?;
        Some((key.to_owned(), headers.get(name)?.to_str().ok()?.to_owned()))
    });
    notes.collect()
}

/// Replaces the notes on a file: those of an earlier upload go.
pub fn write(file: &File, path: &Path, notes: &BTreeMap<String, String>) -> io::Result<()> {
    for key in read(path).keys().filter(|key| !notes.contains_key(*key)) {
        fremovexattr(file, format!("{ATTRIBUTE}{key}"))?;
    }
    for (key, value) in notes {
        fsetxattr(file, format!("{ATTRIBUTE}{key}"), value.as_bytes(), XattrFlags::empty())?;
    }
    Ok(())
}

/// The notes on what a path leads to. A filesystem without attributes has none.
pub fn read(path: &Path) -> BTreeMap<String, String> {
    // Most files have no attribute at all, and cost one call.
    let Ok(length @ 1..=MAX_LIST) = listxattr_query(path) else { return BTreeMap::new() };
    let mut list = vec![0; length];
    let Ok(length) = listxattr(path, &mut list[..]) else { return BTreeMap::new() };
    let names = list.get(..length).unwrap_or_default().split(|byte| *byte == 0);
    names.filter_map(|name| note(path, std::str::from_utf8(name).ok()?)).collect()
}

fn note(path: &Path, name: &str) -> Option<(String, String)> {
    let key = name.strip_prefix(ATTRIBUTE)?;
    let mut value = Vec::with_capacity(MAX_VALUE);
    getxattr(path, name, rustix::buffer::spare_capacity(&mut value)).ok()?;
    Some((key.to_owned(), String::from_utf8_lossy(&value).into_owned()))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn headers_become_notes() {
        let mut headers = HeaderMap::new();
        headers.append("x-metadata-author", HeaderValue::from_static("ann"));
        headers.append("x-metadata-author", HeaderValue::from_static("bob"));
        headers.insert("x-metadata-", HeaderValue::from_static("no key"));
        headers.insert("x-other", HeaderValue::from_static("no"));
        assert_eq!(from_headers(&headers), BTreeMap::from([("author".into(), "ann".into())]));
    }

    #[test]
    fn notes_are_kept_where_the_filesystem_can() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(read(file.path()), BTreeMap::new());
        let notes = BTreeMap::from([("a".to_owned(), "1".to_owned()), ("b".to_owned(), String::new())]);
        // tmpfs of older kernels has no user attributes.
        if write(file.as_file(), file.path(), &notes).is_ok() {
            assert_eq!(read(file.path()), notes);
            let others = BTreeMap::from([("b".to_owned(), "2".to_owned())]);
            write(file.as_file(), file.path(), &others).unwrap();
            assert_eq!(read(file.path()), others);
        }
    }
}
