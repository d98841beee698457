//! What the image is made of. Its id is a hash over all of it, so a change here is a new image and an old machine keeps
//! the one it was made with.

use forkd_host::apt;

/// Debian 13.
pub(super) const SUITE: &str = "trixie";

/// The packages, each with its reason.
pub(super) const PACKAGES: [&str; 10] = [
    "linux-image-amd64", // the generic kernel: KVM, 9p and VMGENID, which the cloud kernel lacks
    "openssh-server",    // the way in
    "busybox-static",    // init, and everything in the initial RAM disk
    "iproute2",          // the network, and the daemon's taps by hand when one looks for a fault
    "nftables",          // egress rules
    "kmod",              // modprobe
    "e2fsprogs",         // growing the root file system; the daemon makes and checks file systems
    "procps",            // ps, free and sysctl for whoever looks inside
    "ca-certificates",   // the daemon pulls images over TLS
    "mmdebstrap",        // the daemon builds Debian images
];

/// Modules that reach the root disk; the rest is loaded from there.
pub(super) const BOOT_MODULES: [&str; 4] = ["virtio_mmio", "virtio_blk", "crc32c_generic", "ext4"];

/// The first process in the initial RAM disk.
pub(super) const INITRAMFS_INIT: &str = include_str!("../../guest/initramfs-init");

/// Turns the packages into a file system.
pub(super) const ASSEMBLE: &str = include_str!("../../guest/assemble");

/// What the image has beside Debian's packages: path, permissions, content.
pub(super) const OVERLAY: [(&str, u32, &str); 5] = [
    ("etc/inittab", 0o644, include_str!("../../guest/inittab")),
    ("usr/lib/forkd/boot", 0o755, include_str!("../../guest/boot")),
    ("usr/lib/forkd/control", 0o755, include_str!("../../guest/control")),
    ("usr/lib/forkd/shutdown", 0o755, include_str!("../../guest/shutdown")),
    ("usr/lib/forkd/sshd_config", 0o644, include_str!("../../guest/sshd_config")),
];

/// The image's name: the first half of a hash of everything above.
pub(crate) fn id() -> String {
    let mut hasher = blake3::Hasher::new();
    let mut add = |part: &str| {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    };
    for part in [SUITE, INITRAMFS_INIT, ASSEMBLE].into_iter().chain(PACKAGES).chain(BOOT_MODULES) {
        add(part);
    }
    for (path, permissions, content) in OVERLAY {
        add(path);
        add(&permissions.to_string());
        add(content);
    }
    add(&super::ROOT_MIB.to_string());
    add(&apt::kernel_preferences());
    let hash = hasher.finalize().to_hex();
    hash[..16].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_is_a_plain_name_and_stays_the_same() {
        assert_eq!(id(), id());
        assert!(id().len() == 16 && id().bytes().all(|byte| byte.is_ascii_hexdigit()));
    }
}
