//! What clients note on a file: `X-Metadata-<key>: <value>` of an upload, kept as extended attributes `user.e2b.<key>`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::Path;

use axum::http::HeaderMap;
use rustix::fs::{XattrFlags, fsetxattr, getxattr, listxattr, listxattr_query};

const HEADER: &str = "x-metadata-";
const ATTRIBUTE: &str = "user.e2b.";
/// The kernel's own limits: 64 KiB for the list of names, and for one value.
const MAX_LIST: usize = 64 << 10;
const MAX_VALUE: usize = 64 << 10;

/// The notes in a request's headers, by key.
pub fn from_headers(headers: &HeaderMap) -> BTreeMap<String, String> {
    let notes = headers.iter().filter_map(|(name, value)| {
        let key = name.as_str().strip_prefix(HEADER).filter(|key| !key.is_empty())?;
        Some((key.to_owned(), value.to_str().ok()?.to_owned()))
    });
    notes.collect()
}

pub fn write(file: &File, notes: &BTreeMap<String, String>) -> io::Result<()> {
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
        headers.insert("x-metadata-author", HeaderValue::from_static("ann"));
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
        if write(file.as_file(), &notes).is_ok() {
            assert_eq!(read(file.path()), notes);
        }
    }
}
