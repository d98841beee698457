//! A number in a file that a driver looks at: it changes after a fork.
//!
//! For Node.js, where no handler of a signal runs before the code that runs has ended. The driver opens the file once; it has
//! no name after that.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::place;

#[derive(Debug)]
pub struct Epoch {
    file: File,
    number: u64,
}

/// The name, which goes with this.
#[derive(Debug)]
pub struct EpochName(PathBuf);

impl Epoch {
    pub fn new() -> io::Result<(Self, EpochName)> {
        let path = place::unused_path("epoch")?;
        let mut options = File::options();
        // Any user may read it: the driver's is not known here.
        let file = options.write(true).create_new(true).mode(0o644).open(&path)?;
        let mut epoch = Self { file, number: 0 };
        epoch.advance()?;
        Ok((epoch, EpochName(path)))
    }

    /// It is in memory: `/run` of a guest is.
    pub fn advance(&mut self) -> io::Result<()> {
        self.number += 1;
        self.file.write_all_at(&self.number.to_le_bytes(), 0)
    }
}

impl EpochName {
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for EpochName {
    fn drop(&mut self) {
        // The guest may have removed it.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Installs the generators with a kernel that gives 1, 1, … at first and 2, 2, … the next time.
    const LOOP: &str = r#"
        const [path, source] = process.argv.slice(1);
        const fs = require('fs');
        let seeds = 0;
        const readSync = (descriptor, view, offset, length, position) => {
            if (position !== null) return fs.readSync(descriptor, view, offset, length, position);
            seeds += 1;
            view.fill(seeds, offset, offset + length);
            return length;
        };
        const fake = (name) => name === 'fs' ? { openSync: fs.openSync, readSync } : require(name);
        require('vm').runInThisContext(source)(fake, path);
        fs.writeSync(1, `${seeds}\n`);
        const until = Date.now() + 20000;
        let numbers = [];
        // It never returns to the event loop.
        while (seeds === 1 && Date.now() < until) numbers = [Math.random(), ...numbers.slice(0, 3)];
        fs.writeSync(1, `${seeds} ${numbers.every((number) => number >= 0 && number < 1)}\n`);
    "#;

    #[test]
    fn a_loop_that_never_yields_gets_other_random_numbers() {
        let (mut epoch, name) = Epoch::new().unwrap();
        let path = name.path().to_str().unwrap().to_owned();
        let running = Arc::new(AtomicBool::new(true));
        let advance = std::thread::spawn({
            let running = Arc::clone(&running);
            // Again and again: on a busy host Node.js takes its time to look for the first time.
            move || {
                while running.load(Ordering::Relaxed) {
                    std::thread::sleep(std::time::Duration::from_millis(200));
                    epoch.advance().unwrap();
                }
            }
        });
        let source = include_str!("drivers/node/random.js");
        let (exit, printed) = crate::testing::run("node", &["-e", LOOP, &path, source]);
        running.store(false, Ordering::Relaxed);
        advance.join().unwrap();
        assert_eq!((exit, printed.as_str()), (forkd_envd::Exit::Code(0), "1\n2 true\n"));
        drop(name);
        assert!(!Path::new(&path).exists());
    }
}
