//! A few small files for a guest, in one archive.

use std::io;

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::agent::{Agent, AgentError};
use crate::transfer::{self, Piece, Place};

/// One entry of a small archive.
#[derive(Debug)]
pub enum TarEntry<'a> {
    Directory(&'a str),
    File(&'a str, &'a [u8]),
    /// A file as it was packed, with another content.
    Changed(&'a tar::Header, &'a str, &'a [u8]),
}

/// An archive in memory, all of it root's.
pub fn archive(entries: &[TarEntry<'_>]) -> io::Result<Bytes> {
    let mut archive = tar::Builder::new(Vec::new());
    for entry in entries {
        let (mut header, path, content) = match entry {
            TarEntry::Directory(path) => (header(tar::EntryType::Directory, 0o755), path, &[][..]),
            TarEntry::File(path, content) => (header(tar::EntryType::Regular, 0o644), path, *content),
            TarEntry::Changed(header, path, content) => ((*header).clone(), path, *content),
        };
        header.set_size(content.len() as u64);
        let path = path.trim_matches('/');
        archive.append_data(&mut header, if path.is_empty() { "." } else { path }, content)?;
    }
    Ok(archive.into_inner()?.into())
}

fn header(kind: tar::EntryType, mode: u32) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

/// Places them. Paths are absolute.
pub async fn place(agent: &Agent, entries: &[TarEntry<'_>]) -> Result<(), AgentError> {
    place_for(agent, entries, None).await
}

/// The same, for users other than root.
pub async fn place_for(
    agent: &Agent,
    entries: &[TarEntry<'_>],
    owner: Option<&str>,
) -> Result<(), AgentError> {
    let archive = archive(entries).map_err(|error| AgentError::Answer(error.into()))?;
    let (sender, receiver) = mpsc::channel::<Piece>(1);
    let send = async move {
        // A receiver that does not take it reports why.
        let _ = sender.send(Ok(archive)).await;
    };
    let place = Place { into: "/", owner, mode: None };
    tokio::join!(transfer::place(agent, &place, receiver), send).0
}
