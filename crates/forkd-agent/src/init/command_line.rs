//! The kernel's command line: the few `forkd.` words that a guest needs before anybody can talk to it.
//!
//! | word | meaning | default |
//! |---|---|---|
//! | `forkd.root=DEVICE` | the root disk | `/dev/vda` |
//! | `forkd.rootfstype=TYPE` | its filesystem | `ext4` |
//! | `forkd.rootflags=OPTIONS` | mount options of the filesystem | none |
//! | `forkd.ro` | mounts it read-only | |

use std::path::PathBuf;

#[derive(Debug, PartialEq, Eq)]
pub struct BootOptions {
    pub root: PathBuf,
    pub filesystem: String,
    pub flags: String,
    pub read_only: bool,
}

impl Default for BootOptions {
    fn default() -> Self {
        Self { root: "/dev/vda".into(), filesystem: "ext4".into(), flags: String::new(), read_only: false }
    }
}

/// Words that are not ours are somebody else's. What follows ` -- ` is for other programs.
pub fn parse(line: &str) -> BootOptions {
    let mut options = BootOptions::default();
    for word in line.split_whitespace().take_while(|word| *word != "--") {
        let Some(word) = word.strip_prefix("forkd.") else { continue };
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        match name {
            "root" if value.starts_with("/dev/") => options.root = value.into(),
            "rootfstype" if !value.is_empty() => options.filesystem = value.into(),
            "rootflags" => options.flags = value.into(),
            "ro" => options.read_only = true,
            _ => {}
        }
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_words_count_and_others_do_not() {
        assert_eq!(parse("console=ttyS0 quiet root=/dev/sda"), BootOptions::default());
        let options = parse("quiet forkd.root=/dev/vdb forkd.rootflags=noatime,a=b forkd.ro forkd.new=1\n");
        let expected = BootOptions {
            root: "/dev/vdb".into(),
            flags: "noatime,a=b".into(),
            read_only: true,
            ..BootOptions::default()
        };
        assert_eq!(options, expected);
    }

    #[test]
    fn nonsense_changes_nothing() {
        for line in ["forkd.root=", "forkd.root=vda", "forkd.root", "forkd.rootfstype=", "-- forkd.ro", ""] {
            assert_eq!(parse(line), BootOptions::default(), "{line}");
        }
    }
}
