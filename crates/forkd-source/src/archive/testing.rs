//! Archives for tests, also such as no tar program writes.

/// An archive under construction. Entries belong to the user that runs the test, so that others than root can unpack them.
#[derive(Debug, Default)]
pub struct Tar(Vec<u8>);

/// One header and its content.
#[derive(Debug)]
pub struct Item<'a> {
    pub name: &'a str,
    pub kind: u8,
    pub link: &'a str,
    pub mode: u32,
    pub owner: Option<(u32, u32)>,
    pub mtime: u64,
    pub device: (u32, u32),
    pub content: &'a [u8],
}

impl Default for Item<'_> {
    fn default() -> Self {
        Item {
            name: "",
            kind: b'0',
            link: "",
            mode: 0o644,
            owner: None,
            mtime: 1000,
            device: (0, 0),
            content: b"",
        }
    }
}

impl Tar {
    pub fn new() -> Tar {
        Tar::default()
    }

    pub fn item(mut self, item: Item<'_>) -> Tar {
        let mut header = tar::Header::new_gnu();
        // The setters refuse what the tests are about.
        let old = header.as_old_mut();
        old.name[..item.name.len()].copy_from_slice(item.name.as_bytes());
        old.linkname[..item.link.len()].copy_from_slice(item.link.as_bytes());
        header.set_entry_type(tar::EntryType::new(item.kind));
        header.set_mode(item.mode);
        let me = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        let (uid, gid) = item.owner.unwrap_or(me);
        header.set_uid(uid.into());
        header.set_gid(gid.into());
        header.set_mtime(item.mtime);
        header.set_device_major(item.device.0).unwrap();
        header.set_device_minor(item.device.1).unwrap();
        header.set_size(item.content.len() as u64);
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
        self.0.extend_from_slice(item.content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    pub fn file(self, name: &str, content: &[u8]) -> Tar {
        self.item(Item { name, content, ..Item::default() })
    }

    pub fn directory(self, name: &str) -> Tar {
        self.item(Item { name, kind: b'5', mode: 0o755, ..Item::default() })
    }

    pub fn symlink(self, name: &str, link: &str) -> Tar {
        self.item(Item { name, kind: b'2', link, mode: 0o777, ..Item::default() })
    }

    pub fn hard_link(self, name: &str, link: &str) -> Tar {
        self.item(Item { name, kind: b'1', link, ..Item::default() })
    }

    /// Pax records for the next entry.
    pub fn pax(self, records: &[(&str, &[u8])]) -> Tar {
        let content: Vec<u8> =
            records.iter().flat_map(|(key, value)| pax_record(key.as_bytes(), value)).collect();
        self.item(Item { name: "pax", kind: b'x', content: &content, ..Item::default() })
    }

    pub fn finish(mut self) -> Vec<u8> {
        self.0.extend_from_slice(&[0; 1024]);
        self.0
    }

    /// The blocks so far, without an end.
    pub fn unfinished(self) -> Vec<u8> {
        self.0
    }
}

/// One record as a writer makes it.
pub fn pax_record(key: &[u8], value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut length = rest;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    [length.to_string().as_bytes(), b" ", key, b"=", value, b"\n"].concat()
}
