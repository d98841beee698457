//! Initial RAM disks: the `newc` cpio archives that the kernel unpacks before its first process.

use std::io::{self, Write};

use cpio::newc::{Builder, ModeFileType, trailer};

/// An archive under construction, in memory: it holds a few megabytes.
#[derive(Debug, Default)]
pub struct Initramfs {
    archive: Vec<u8>,
    inode: u32,
}

impl Initramfs {
    pub fn new() -> Initramfs {
        Initramfs::default()
    }

    /// Adds a directory, `path` without a leading slash. Parents come first.
    pub fn directory(&mut self, path: &str) -> io::Result<()> {
        self.entry(path, ModeFileType::Directory, 0o755, &[])
    }

    /// Adds a file with these permissions.
    pub fn file(&mut self, path: &str, permissions: u32, content: &[u8]) -> io::Result<()> {
        self.entry(path, ModeFileType::Regular, permissions, content)
    }

    /// Adds a character device.
    pub fn device(&mut self, path: &str, permissions: u32, major: u32, minor: u32) -> io::Result<()> {
        self.inode += 1;
        let builder = Builder::new(path)
            .ino(self.inode)
            .nlink(1)
            .mode(permissions)
            .set_mode_file_type(ModeFileType::Char)
            .rdev_major(major)
            .rdev_minor(minor);
        builder.write(&mut self.archive, 0).finish()?;
        Ok(())
    }

    /// Ends the archive.
    pub fn finish(self) -> io::Result<Vec<u8>> {
        trailer(self.archive)
    }

    fn entry(&mut self, path: &str, kind: ModeFileType, permissions: u32, content: &[u8]) -> io::Result<()> {
        // The format counts in 32 bits.
        let size = u32::try_from(content.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
        self.inode += 1;
        let builder = Builder::new(path).ino(self.inode).nlink(1).mode(permissions).set_mode_file_type(kind);
        let mut writer = builder.write(&mut self.archive, size);
        writer.write_all(content)?;
        writer.finish()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out() {
        let mut initramfs = Initramfs::new();
        initramfs.directory("bin").unwrap();
        initramfs.file("bin/tool", 0o755, b"#!").unwrap();
        initramfs.file("init", 0o700, b"exec").unwrap();
        let archive = initramfs.finish().unwrap();

        let mut seen = Vec::new();
        let mut rest = &archive[..];
        loop {
            let mut reader = cpio::newc::Reader::new(rest).unwrap();
            let entry = reader.entry().clone();
            if entry.is_trailer() {
                break;
            }
            let mut content = Vec::new();
            io::copy(&mut reader, &mut content).unwrap();
            seen.push((entry.name().to_owned(), entry.mode(), content));
            rest = reader.finish().unwrap();
        }
        assert_eq!(
            seen,
            [
                ("bin".to_owned(), 0o040_755, vec![]),
                ("bin/tool".to_owned(), 0o100_755, b"#!".to_vec()),
                ("init".to_owned(), 0o100_700, b"exec".to_vec()),
            ]
        );
    }
}
