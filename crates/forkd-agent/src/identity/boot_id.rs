//! The id of this boot. The kernel has one, which all that is forked have in common; so a file lies over it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

const KERNELS: &str = "/proc/sys/kernel/random/boot_id";
const OWN: &str = "/run/forkd/boot_id";

/// Lays the file over the kernel's. Before there is any other process: whatever those mount later, they see it.
pub fn cover() -> io::Result<()> {
    let own = Path::new(OWN);
    fs::create_dir_all(own.parent().unwrap_or(own))?;
    fs::write(own, fs::read(KERNELS)?)?;
    Ok(rustix::mount::mount_bind(own, KERNELS)?)
}

/// Makes it another one, in place: who has the file mounted somewhere sees it as well.
pub fn renew() -> io::Result<()> {
    let file = match File::options().write(true).open(OWN) {
        Ok(file) => file,
        // A guest that could not cover it has the kernel's.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)?;
    file.write_all_at(line(bytes).as_bytes(), 0)
}

/// A random UUID as the kernel writes it.
fn line(random: [u8; 16]) -> String {
    format!("{}\n", uuid::Builder::from_random_bytes(random).into_uuid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_as_the_kernel_writes_it() {
        assert_eq!(line([0xff; 16]), "ffffffff-ffff-4fff-bfff-ffffffffffff\n");
        assert_eq!(line([0; 16]), "00000000-0000-4000-8000-000000000000\n");
        assert_eq!(line([7; 16]).len(), fs::read(KERNELS).unwrap().len());
    }
}
