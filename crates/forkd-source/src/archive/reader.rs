//! From the blocks of a tar archive to typed entries, within limits.
//!
//! The headers that only describe the next entry (long names, pax records) are put together here instead of by the tar
//! crate: it reads them whole, whatever size they claim, and takes a newline inside a value for its end.

use std::io::{self, Read};

use tar::EntryType;

use super::{ArchiveError, EntryPath, Limits, MAX_EXTENSION, Problem, Used, pax, shown};

/// The last second that ext4 can write with large inodes: in the year 2446.
const LAST_SECOND: i64 = 0x3_7fff_ffff;

/// One file of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveEntry {
    pub path: EntryPath,
    pub kind: Kind,
    /// Permissions with setuid, setgid and sticky.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Seconds and nanoseconds.
    pub mtime: (i64, u32),
    pub xattrs: Vec<(String, Vec<u8>)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    File {
        size: u64,
    },
    Directory,
    /// What the link says, which need not exist nor be inside: it means something in the guest only.
    Symlink(Vec<u8>),
    HardLink(EntryPath),
    Character {
        major: u32,
        minor: u32,
    },
    Block {
        major: u32,
        minor: u32,
    },
    Fifo,
}

/// What the extension headers before an entry said about it.
#[derive(Default)]
struct Extensions {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    pax: Option<Vec<u8>>,
}

/// Calls `each` with every entry and, for files, its content. `used` counts on from what it held before.
pub fn read_entries(
    archive: impl Read,
    limits: &Limits,
    used: &mut Used,
    mut each: impl FnMut(ArchiveEntry, &mut dyn Read) -> Result<(), ArchiveError>,
) -> Result<(), ArchiveError> {
    let mut archive = tar::Archive::new(archive);
    let mut last = String::new();
    let unreadable = |entry: &str, source| ArchiveError::Read { entry: entry.into(), source };
    let entries = archive.entries().map_err(|error| unreadable("", error))?;
    let mut extensions = Extensions::default();
    for entry in entries.raw(true) {
        let mut entry = entry.map_err(|error| unreadable(&last, error))?;
        let header = entry.header().clone();
        let name = extensions.path.as_deref().map_or_else(|| shown(&header.path_bytes()), shown);
        let refused = |problem| ArchiveError::Refused { entry: name.clone(), problem };
        used.entries += 1;
        if used.entries > limits.entries {
            return Err(refused(Problem::TooManyEntries(limits.entries)));
        }
        let extension = match header.entry_type() {
            EntryType::GNULongName => &mut extensions.path,
            EntryType::GNULongLink => &mut extensions.link,
            EntryType::XHeader => &mut extensions.pax,
            EntryType::XGlobalHeader => {
                let global = read_extension(&mut entry).map_err(refused)?;
                check_global(&global).map_err(refused)?;
                continue;
            }
            _ => {
                let said = std::mem::take(&mut extensions);
                let (entry_read, name) = typed(&header, said, limits)
                    .map_err(|(problem, name)| ArchiveError::Refused { entry: shown(&name), problem })?;
                last = shown(&name);
                let refused = |problem| ArchiveError::Refused { entry: last.clone(), problem };
                if let Kind::File { size } = entry_read.kind {
                    if size > limits.file {
                        return Err(refused(Problem::FileTooLarge(limits.file)));
                    }
                    used.bytes = used.bytes.saturating_add(size);
                    if used.bytes > limits.total {
                        return Err(refused(Problem::TotalTooLarge(limits.total)));
                    }
                }
                each(entry_read, &mut entry)?;
                continue;
            }
        };
        if extension.is_some() {
            return Err(refused(Problem::BadHeader("it is described twice")));
        }
        *extension = Some(read_extension(&mut entry).map_err(refused)?);
    }
    match extensions {
        Extensions { path: None, link: None, pax: None } => Ok(()),
        _ => Err(unreadable(&last, io::ErrorKind::UnexpectedEof.into())),
    }
}

fn read_extension<R: Read>(entry: &mut tar::Entry<'_, R>) -> Result<Vec<u8>, Problem> {
    let size = entry.size();
    if size > MAX_EXTENSION {
        return Err(Problem::PathTooLong);
    }
    let mut bytes = Vec::new();
    entry.read_to_end(&mut bytes).map_err(|_| Problem::Truncated)?;
    if bytes.len() as u64 == size { Ok(bytes) } else { Err(Problem::Truncated) }
}

/// Records for all entries that follow: comments are harmless; names and sizes of all files at once are nonsense.
fn check_global(bytes: &[u8]) -> Result<(), Problem> {
    let records = pax::records(bytes).ok_or(Problem::BadHeader("a malformed pax record"))?;
    let harmless =
        |key: &[u8]| key == b"comment" || key == b"hdrcharset" || key == b"mtime" || key == b"atime";
    if records.iter().all(|(key, _)| harmless(key)) {
        Ok(())
    } else {
        Err(Problem::BadHeader("global pax records other than comments"))
    }
}

/// Puts an entry together from its header and what came before it. Errors come with the name that the entry seems to have.
fn typed(
    header: &tar::Header,
    said: Extensions,
    limits: &Limits,
) -> Result<(ArchiveEntry, Vec<u8>), (Problem, Vec<u8>)> {
    let until_nul = |mut name: Vec<u8>| {
        // GNU's long names end with a NUL, which is not part of them.
        if name.last() == Some(&0) {
            name.pop();
        }
        name
    };
    let mut name = said.path.map_or_else(|| header.path_bytes().into_owned(), until_nul);
    let mut link =
        said.link.map(until_nul).or_else(|| header.link_name_bytes().map(|link| link.into_owned()));
    let seemingly = name.clone();
    let bad = |problem: Problem| (problem, seemingly.clone());
    let nonsense = |what| (Problem::BadHeader(what), seemingly.clone());

    let old = header.as_old();
    let mut uid = number(&old.uid, header.uid()).ok_or_else(|| nonsense("its owner"))?;
    let mut gid = number(&old.gid, header.gid()).ok_or_else(|| nonsense("its group"))?;
    let seconds = number(&old.mtime, header.mtime()).ok_or_else(|| nonsense("its time"))?;
    let mut mtime = (i64::try_from(seconds).unwrap_or(LAST_SECOND), 0);
    let size = header.entry_size().map_err(|_| nonsense("its size"))?;
    let mut xattrs = Vec::new();
    let records = said.pax.unwrap_or_default();
    for (key, value) in pax::records(&records).ok_or_else(|| nonsense("a malformed pax record"))? {
        match key {
            b"path" => name = value.to_vec(),
            b"linkpath" => link = Some(value.to_vec()),
            b"uid" => uid = pax::number(value).ok_or_else(|| nonsense("its owner"))?,
            b"gid" => gid = pax::number(value).ok_or_else(|| nonsense("its group"))?,
            b"mtime" => mtime = pax::time(value).ok_or_else(|| nonsense("its time"))?,
            // Where the next header is follows from the size, so two sizes are two archives in one.
            b"size" if pax::number(value) != Some(size) => {
                return Err(bad(if pax::number(value) > Some(limits.file) {
                    Problem::FileTooLarge(limits.file)
                } else {
                    Problem::BadHeader("two sizes")
                }));
            }
            key if key.starts_with(b"GNU.sparse.") => return Err(bad(Problem::Sparse)),
            key => {
                if let Some(attribute) = key.strip_prefix(b"SCHILY.xattr.") {
                    let attribute =
                        std::str::from_utf8(attribute).map_err(|_| nonsense("an attribute's name"))?;
                    xattrs.push((attribute.to_owned(), value.to_vec()));
                }
            }
        }
    }
    let id = |id: u64| u32::try_from(id).ok().filter(|id| *id != u32::MAX);
    let uid = id(uid).ok_or_else(|| nonsense("its owner"))?;
    let gid = id(gid).ok_or_else(|| nonsense("its group"))?;
    let mode = number(&old.mode, header.mode()).ok_or_else(|| nonsense("its mode"))? & 0o7777;

    let path = EntryPath::parse(&name, limits.path).map_err(|problem| (problem, name.clone()))?;
    let kind = kind(header, &name, link, size, limits).map_err(|problem| (problem, name.clone()))?;
    let mtime = (mtime.0.clamp(0, LAST_SECOND), if mtime.0 < 0 { 0 } else { mtime.1 });
    Ok((ArchiveEntry { path, kind, mode, uid, gid, mtime, xattrs }, name))
}

/// A field of a header. Some writers leave those empty that are zero.
fn number<T: From<u8>>(field: &[u8], parsed: io::Result<T>) -> Option<T> {
    let is_empty = field.iter().all(|byte| matches!(byte, 0 | b' '));
    if is_empty { Some(T::from(0)) } else { parsed.ok() }
}

fn kind(
    header: &tar::Header,
    name: &[u8],
    link: Option<Vec<u8>>,
    size: u64,
    limits: &Limits,
) -> Result<Kind, Problem> {
    let device = || match (header.device_major(), header.device_minor()) {
        (Ok(Some(major)), Ok(Some(minor))) => Ok((major, minor)),
        _ => Err(Problem::BadHeader("its device number")),
    };
    let link = || link.filter(|link| !link.is_empty()).ok_or(Problem::BadHeader("a link to nothing"));
    Ok(match header.entry_type() {
        // Before there was a type for directories, the slash told.
        EntryType::Regular if name.ends_with(b"/") && size == 0 => Kind::Directory,
        EntryType::Regular | EntryType::Continuous => Kind::File { size },
        EntryType::Directory => Kind::Directory,
        EntryType::Symlink => {
            let target = link()?;
            if target.contains(&0) {
                return Err(Problem::BadName);
            }
            if target.len() > limits.path {
                return Err(Problem::PathTooLong);
            }
            Kind::Symlink(target)
        }
        EntryType::Link => Kind::HardLink(EntryPath::parse(&link()?, limits.path)?),
        EntryType::Char => {
            let (major, minor) = device()?;
            Kind::Character { major, minor }
        }
        EntryType::Block => {
            let (major, minor) = device()?;
            Kind::Block { major, minor }
        }
        EntryType::Fifo => Kind::Fifo,
        EntryType::GNUSparse => return Err(Problem::Sparse),
        other => return Err(Problem::OddType(char::from(other.as_byte()))),
    })
}
