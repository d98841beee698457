//! The id of this boot. The kernel has one, which all that is forked have in common; so a file lies over it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::rand::{GetRandomFlags, getrandom};

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
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    file.write_all_at(uuid(bytes).as_bytes(), 0)
}

/// A random UUID as the kernel writes it.
fn uuid(mut bytes: [u8; 16]) -> String {
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}\n", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_as_the_kernel_writes_it() {
        assert_eq!(uuid([0xff; 16]), "ffffffff-ffff-4fff-bfff-ffffffffffff\n");
        assert_eq!(uuid([0; 16]), "00000000-0000-4000-8000-000000000000\n");
        assert_eq!(uuid([7; 16]).len(), fs::read(KERNELS).unwrap().len());
    }
}
