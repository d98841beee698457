//! A kernel that sandboxes could boot.

use std::fs;

use super::Problem;

pub(super) fn check() -> Result<String, Problem> {
    let mut kernels: Vec<String> = fs::read_dir("/boot")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with("vmlinuz-"))
        .collect();
    kernels.sort();
    match kernels.last() {
        Some(newest) => Ok(format!("/boot/{newest}")),
        None => Err(Problem::warning(
            "no kernel in /boot",
            "nothing to do: the machine brings its own, from Debian's package linux-image-amd64",
        )),
    }
}
