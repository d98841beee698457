//! Which modules a request passes. A test compares that with the lists of ARCHITECTURE.md, so that they cannot mislead.
//!
//! The functions that the lists are about begin with [`passes!`](crate::passes!). It does nothing in the product: only tests build with the
//! feature `passes`, and only where the variable names a file is anything written.

/// Notes that a request passes this file.
#[macro_export]
macro_rules! passes {
    () => {
        $crate::passes::note(file!())
    };
}

/// The environment variable with the file that is written, a line for each pass.
pub const VARIABLE: &str = "FORKD_TRACE_PASSES";

#[cfg(not(feature = "passes"))]
#[inline(always)]
pub fn note(_: &str) {}

#[cfg(feature = "passes")]
pub fn note(file: &str) {
    use std::fs::File;
    use std::io::Write;
    use std::sync::OnceLock;

    // Opened once: a VM process cannot open anything later on, and its children have what it has.
    static LOG: OnceLock<Option<File>> = OnceLock::new();
    let log = LOG.get_or_init(|| {
        let path = std::env::var_os(VARIABLE)?;
        File::options().append(true).create(true).open(path).ok()
    });
    if let Some(mut log) = log.as_ref() {
        // A test that misses the line says so.
        let _ = log.write_all(format!("{file}\n").as_bytes());
    }
}
