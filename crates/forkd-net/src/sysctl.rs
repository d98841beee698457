//! Settings of the calling thread's network namespace, under `/proc/sys/net`.

use std::fs;
use std::io;
use std::path::Path;

const ROOT: &str = "/proc/sys/net";

/// Whether this kernel has IPv6, and it is not switched off.
pub fn has_ipv6() -> bool {
    Path::new(ROOT).join("ipv6").exists()
}

pub fn read(name: &str) -> io::Result<String> {
    Ok(fs::read_to_string(Path::new(ROOT).join(name))?.trim().to_owned())
}

pub fn write(name: &str, value: &str) -> io::Result<()> {
    fs::write(Path::new(ROOT).join(name), value)
}

/// The interfaces that have settings of a family, without `all` and `default`.
pub fn interfaces(family: &str) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(Path::new(ROOT).join(family).join("conf"))? {
        names.extend(entry?.file_name().into_string().ok());
    }
    names.retain(|name| name != "all" && name != "default");
    Ok(names)
}
