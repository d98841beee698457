//! The file of certificates that a guest's programs trust by default. Many read nothing else, whatever the environment says.
//!
//! A snapshot keeps what was added. A step of a build does not: what was added is taken out again after the command, whatever
//! it has done to the file meanwhile. A bind mount would leave no trace at all, but then the file could not be replaced, and
//! that is how packages of certificates are installed.

use bytes::{Bytes, BytesMut};
use tokio::sync::mpsc;

use crate::agent::{Agent, AgentError};
use crate::small::{self, TarEntry};
use crate::transfer::{self, Pack, Piece};

/// Where Debian, Ubuntu, Alpine and their kind have it.
const FILE: &str = "/etc/ssl/certs/ca-certificates.crt";
/// A larger file is not touched.
const MAX: usize = 16 << 20;
const BEGIN: &[u8] = b"\n# forkd: certificates of the host\n";

/// Certificates that were added to a guest's file.
#[derive(Debug)]
pub struct Added {
    original: Found,
    block: Vec<u8>,
}

/// The file as it is in the guest.
#[derive(Debug, Clone)]
struct Found {
    header: tar::Header,
    content: Vec<u8>,
}

/// Adds certificates, in PEM, if the guest has the file.
pub async fn add(agent: &Agent, certificates: &[u8]) -> Result<Option<Added>, AgentError> {
    let Some(original) = find(agent).await? else { return Ok(None) };
    let block = [BEGIN, certificates, b"\n"].concat();
    let content = [&original.content[..], &block].concat();
    small::place(agent, &[TarEntry::Changed(&original.header, FILE, &content)]).await?;
    Ok(Some(Added { original, block }))
}

/// Takes out what was added, if it is there.
pub async fn take_out(agent: &Agent, added: &Added) -> Result<(), AgentError> {
    let Some(found) = find(agent).await? else { return Ok(()) };
    let Some(content) = without(&found.content, &added.block) else { return Ok(()) };
    // A file that was not changed gets its time back as well.
    let header = if content == added.original.content { &added.original.header } else { &found.header };
    small::place(agent, &[TarEntry::Changed(header, FILE, &content)]).await
}

/// The content without a block that is in it.
fn without(content: &[u8], block: &[u8]) -> Option<Vec<u8>> {
    let at = content.windows(block.len()).position(|window| window == block)?;
    let (before, rest) = content.split_at(at);
    Some([before, rest.get(block.len()..)?].concat())
}

/// A regular file that is not too large.
async fn find(agent: &Agent) -> Result<Option<Found>, AgentError> {
    let sources = [FILE.to_owned()];
    let what = Pack { sources: &sources, destination: FILE };
    let (sender, mut pieces) = mpsc::channel::<Piece>(4);
    let collect = async {
        let mut archive = BytesMut::new();
        while let Some(Ok(piece)) = pieces.recv().await {
            archive.extend_from_slice(&piece);
            if archive.len() > MAX {
                return None;
            }
        }
        Some(archive.freeze())
    };
    match tokio::join!(transfer::pack(agent, &what, sender), collect) {
        // It is not there.
        (Err(AgentError::Status { .. }), _) => Ok(None),
        (Err(error), _) => Err(error),
        (Ok(()), archive) => Ok(archive.and_then(first_file)),
    }
}

/// What a guest sends may be anything.
fn first_file(archive: Bytes) -> Option<Found> {
    let mut archive = tar::Archive::new(&archive[..]);
    let mut entry = archive.entries().ok()?.next()?.ok()?;
    let header = entry.header().clone();
    if header.entry_type() != tar::EntryType::Regular {
        return None;
    }
    let mut content = Vec::new();
    std::io::Read::read_to_end(&mut entry, &mut content).ok()?;
    Some(Found { header, content })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_added_is_taken_out_whatever_came_beside_it() {
        let block = [BEGIN, b"ours", b"\n"].concat();
        let with = |before: &str, after: &str| [before.as_bytes(), &block, after.as_bytes()].concat();
        assert_eq!(without(&with("own\n", ""), &block).unwrap(), b"own\n");
        assert_eq!(without(&with("own\n", "more\n"), &block).unwrap(), b"own\nmore\n");
        // Another process has replaced the file.
        assert_eq!(without(b"new\n", &block), None);
        assert_eq!(without(b"", &block), None);
    }

    #[test]
    fn only_a_file_is_one() {
        let bytes = small::archive(&[TarEntry::File(FILE, b"pem")]).unwrap();
        let found = first_file(bytes).unwrap();
        assert_eq!(found.content, b"pem");
        let changed = small::archive(&[TarEntry::Changed(&found.header, FILE, b"longer")]).unwrap();
        assert_eq!(first_file(changed).unwrap().content, b"longer");
        assert!(first_file(small::archive(&[TarEntry::Directory("/etc")]).unwrap()).is_none());
        assert!(first_file(Bytes::from_static(b"garbage")).is_none());
    }
}
