use std::io::Write;

use super::*;
use crate::progress::Silent;

fn elf(version: &str) -> Vec<u8> {
    let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
    elf.resize(64, 0);
    elf[18] = 62;
    elf.extend_from_slice(format!("Linux version {version} (x)\0").as_bytes());
    elf
}

fn module(depends: &str) -> Vec<u8> {
    format!("\x7fELF\0license=GPL\0depends={depends}\0name=x\0").into_bytes()
}

fn xz(data: &[u8]) -> Vec<u8> {
    let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 0);
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

/// A system with a kernel, as an unpacked package leaves it: without `modules.dep`.
fn system(version: &str) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let modules = root.path().join("lib/modules").join(version).join("kernel/drivers");
    fs::create_dir_all(&modules).unwrap();
    fs::create_dir_all(root.path().join("boot")).unwrap();
    fs::write(root.path().join(format!("boot/vmlinuz-{version}")), elf(version)).unwrap();
    let write = |name: &str, content: &[u8]| fs::write(modules.join(name), content).unwrap();
    write("virtio_mmio.ko", &module("virtio,virtio_ring"));
    write("virtio_blk.ko.xz", &xz(&module("virtio_ring,virtio")));
    write("virtio_ring.ko.zst", &zstd::encode_all(&module("virtio")[..], 1).unwrap());
    write("virtio.ko", &module(""));
    write("virtio-rng.ko", &module("virtio"));
    let builtin = root.path().join("lib/modules").join(version).join("modules.builtin");
    fs::write(builtin, "kernel/fs/ext4/ext4.ko\nkernel/net/vmw_vsock_virtio_transport.ko\n").unwrap();
    root
}

fn host(root: &Path) -> KernelSource {
    KernelSource::Host { root: root.into(), version: None }
}

#[test]
fn a_host_s_kernel_comes_with_its_modules_in_order() {
    let root = system("6.1.0-40-amd64");
    fs::write(root.path().join("boot/vmlinuz-6.1.0-9-amd64"), elf("old")).unwrap();
    let home = tempfile::tempdir().unwrap();
    let store = KernelStore::new(home.path());
    let kernel = store.add(&host(root.path()), &Silent).unwrap();
    assert!(kernel.metadata.id.starts_with("6.1.0-40-amd64-") && kernel.is_default);
    assert_eq!(
        kernel.metadata.modules,
        ["00-virtio.ko", "01-virtio_ring.ko", "02-virtio_mmio.ko", "03-virtio_blk.ko", "04-virtio_rng.ko"]
    );
    assert_eq!(
        kernel.metadata.missing,
        ["crc32c_generic", "crc32c_intel", "virtio_net", "pvpanic_mmio", "tcp_diag", "udp_diag"]
    );
    let blk = fs::read(kernel.path.join("modules/03-virtio_blk.ko")).unwrap();
    assert_eq!(blk, module("virtio_ring,virtio"));
    assert_eq!(fs::read(kernel.vmlinux()).unwrap(), elf("6.1.0-40-amd64"));
    // The same again is the same.
    assert_eq!(store.add(&host(root.path()), &Silent).unwrap().metadata.id, kernel.metadata.id);
    assert_eq!(store.list().unwrap().len(), 1);
}

#[test]
fn a_missing_module_is_named_and_nothing_is_left() {
    let root = system("6.1");
    fs::remove_file(root.path().join("lib/modules/6.1/kernel/drivers/virtio_blk.ko.xz")).unwrap();
    let home = tempfile::tempdir().unwrap();
    let store = KernelStore::new(home.path());
    let error = store.add(&host(root.path()), &Silent).unwrap_err().to_string();
    assert!(error.contains("no module virtio_blk"), "{error}");
    assert_eq!(fs::read_dir(home.path().join("kernels")).unwrap().count(), 0);
    let circle = root.path().join("lib/modules/6.1/kernel/drivers/virtio_blk.ko");
    fs::write(&circle, module("virtio_blk")).unwrap();
    let error = store.add(&host(root.path()), &Silent).unwrap_err().to_string();
    assert!(error.contains("depends on itself"), "{error}");
}

#[test]
fn a_kernel_by_path_needs_no_modules() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("vmlinux");
    fs::write(&path, elf("7.0.0-custom")).unwrap();
    let store = KernelStore::new(directory.path());
    let source = KernelSource::Path { kernel: path.clone(), modules: None };
    let kernel = store.add(&source, &Silent).unwrap();
    assert_eq!((&kernel.metadata.version[..], kernel.metadata.modules.len()), ("7.0.0-custom", 0));
    fs::write(&path, "no kernel").unwrap();
    let error = store.add(&source, &Silent).unwrap_err();
    let cause = std::error::Error::source(&error).map(ToString::to_string);
    assert_eq!(cause.as_deref(), Some("neither an ELF file nor a bzImage"), "{error}");
    let source = KernelSource::Path { kernel: directory.path().join("none"), modules: None };
    assert!(matches!(store.add(&source, &Silent), Err(KernelStoreError::File(_))));
}

#[test]
fn the_default_is_the_first_until_another_is_chosen() {
    let home = tempfile::tempdir().unwrap();
    let store = KernelStore::new(home.path());
    assert!(store.default_kernel().unwrap().is_none() && store.list().unwrap().is_empty());
    let (one, two) = (system("6.1.0-1"), system("6.1.0-2"));
    let first = store.add(&host(one.path()), &Silent).unwrap();
    let second = store.add(&host(two.path()), &Silent).unwrap();
    assert!(first.is_default && !second.is_default);
    assert!(matches!(store.find("6.1"), Err(KernelStoreError::Ambiguous(_))));
    assert!(matches!(store.find(""), Err(KernelStoreError::Unknown(_))));
    assert!(matches!(store.remove("6.1.0-1", false), Err(KernelStoreError::IsDefault(_))));
    store.set_default("6.1.0-2").unwrap();
    assert_eq!(store.ensure_default(&Silent).unwrap().metadata.id, second.metadata.id);
    store.remove("6.1.0-1", false).unwrap();
    store.remove("6.1.0-2", true).unwrap();
    assert!(store.list().unwrap().is_empty() && store.default_kernel().unwrap().is_none());
}

/// A host that boots from a machine's image has its kernel and all modules, and no package lists.
#[test]
fn the_running_kernel_becomes_the_default_without_a_download() {
    let root = system("6.1.0-40-amd64");
    let builtin = root.path().join("lib/modules/6.1.0-40-amd64/modules.builtin");
    let others = [
        "ext4",
        "crc32c_generic",
        "crc32c_intel",
        "virtio_net",
        "vmw_vsock_virtio_transport",
        "pvpanic-mmio",
        "tcp_diag",
        "udp_diag",
    ];
    fs::write(builtin, others.map(|name| format!("kernel/x/{name}.ko\n")).concat()).unwrap();
    let home = tempfile::tempdir().unwrap();
    let store = KernelStore::new(home.path());
    let running = KernelSource::Host { root: root.path().into(), version: Some("6.1.0-40-amd64".into()) };
    let kernel = store.add_default(&running, &Silent).unwrap();
    assert!(kernel.is_default && kernel.metadata.source == running, "{kernel:?}");
}

#[test]
fn the_initial_ram_disk_depends_on_nothing_but_its_inputs() {
    let root = system("6.1");
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let agent = one.path().join("agent");
    fs::write(&agent, "agent 1").unwrap();
    let kernels =
        [&one, &two].map(|home| KernelStore::new(home.path()).add(&host(root.path()), &Silent).unwrap());
    let [first, second] = kernels.each_ref().map(|kernel| kernel.initramfs(&agent, &Silent).unwrap());
    assert_eq!(first.file_name(), second.file_name());
    assert!(fs::read(&first).unwrap() == fs::read(&second).unwrap());
    let text = String::from_utf8_lossy(&fs::read(&first).unwrap()).into_owned();
    assert!(text.contains("modules/00-virtio.ko") && text.contains("agent 1"));
    // Kept, and made anew for another agent.
    fs::write(&first, "kept").unwrap();
    assert_eq!(fs::read(kernels[0].initramfs(&agent, &Silent).unwrap()).unwrap(), b"kept");
    fs::write(&agent, "agent 2").unwrap();
    assert_ne!(kernels[0].initramfs(&agent, &Silent).unwrap(), first);
}

#[test]
fn versions_stay_in_the_store() {
    assert_eq!(file_name("../../etc/x y"), "_.._etc_x_y");
    assert_eq!(file_name(".tmp-x"), "tmp-x");
    assert_eq!(file_name(&"9".repeat(100)).len(), 64);
}

#[test]
fn kernels_of_a_shared_library_are_used_and_not_touched() {
    let (own, shared) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let theirs = KernelStore::new(shared.path());
    let kernel = theirs.add(&host(system("6.1.0-40-amd64").path()), &Silent).unwrap();
    let directory = kernel.path.clone();
    let agent = own.path().join("agent");
    fs::write(&agent, "agent").unwrap();

    let store = KernelStore::new(own.path()).with_shared(shared.path());
    let found = store.ensure_default(&Silent).unwrap();
    assert!(found.shared && found.is_default && found.path == directory);
    let before = files::names(&directory).unwrap();
    let initramfs = found.initramfs(&agent, &Silent).unwrap();
    assert!(initramfs.starts_with(own.path()), "{}", initramfs.display());
    assert_eq!(found.initramfs(&agent, &Silent).unwrap(), initramfs);
    assert_eq!(files::names(&directory).unwrap(), before);
    assert_eq!(store.list().unwrap().len(), 1);
    assert!(
        matches!(store.remove("6.1.0", true), Err(KernelStoreError::Shared(id)) if id == found.metadata.id)
    );
    // One that was made there is used.
    fs::write(&agent, "another").unwrap();
    let made = kernel.initramfs(&agent, &Silent).unwrap();
    assert_eq!(found.initramfs(&agent, &Silent).unwrap(), made);

    // The store's own kernels and its own choice come first.
    let mine = store.add(&host(system("6.6.1-1-amd64").path()), &Silent).unwrap();
    assert!(!mine.is_default);
    assert!(store.set_default(&mine.metadata.id).unwrap().is_default);
    assert_eq!(theirs.default_kernel().unwrap().unwrap().metadata.id, found.metadata.id);
    assert!(matches!(store.remove("6.6.1", false), Err(KernelStoreError::IsDefault(_))));
    store.remove("6.6.1", true).unwrap();
    assert!(store.default_kernel().unwrap().unwrap().shared);
}

#[test]
fn a_kernel_comes_out_of_an_archive() {
    use crate::archive::testing::Tar;
    let home = tempfile::tempdir().unwrap();
    let store = KernelStore::new(home.path());
    let add = |tar: Tar| store.add_archive(&tar.finish()[..], &Silent);
    let needed = |tar: Tar, at: &str| {
        ["virtio_mmio", "virtio_blk", "ext4"]
            .iter()
            .fold(tar, |tar, name| tar.file(&format!("{at}/kernel/{name}.ko"), &module("")))
    };
    let plain = add(needed(Tar::new().file("kernel", &elf("6.1.2")), "modules")).unwrap();
    assert_eq!((&plain.metadata.version[..], plain.metadata.modules.len()), ("6.1.2", 3));
    assert_eq!(plain.metadata.source, KernelSource::Archive);
    let built_in = add(Tar::new().file("kernel", &elf("6.1.3"))).unwrap();
    assert_eq!(built_in.metadata.modules, [""; 0]);
    let root = add(needed(Tar::new().file("boot/vmlinuz-6.2.1", &elf("x")), "lib/modules/6.2.1")).unwrap();
    assert_eq!((&root.metadata.version[..], root.metadata.modules.len()), ("6.2.1", 3));

    let error = |tar: Tar| add(tar).unwrap_err().to_string();
    assert!(error(Tar::new()).contains("neither a file named kernel"));
    assert_eq!(error(Tar::new().file("kernel", b"text")), "kernel is not a bootable kernel");
    for link in [
        Tar::new().symlink("kernel", "/etc/passwd"),
        Tar::new().file("kernel", &elf("1")).symlink("modules", "/lib/modules"),
    ] {
        assert!(error(link).contains("is neither a file nor a directory"));
    }
    assert!(error(Tar::new().file("../kernel", &elf("1"))).contains("climbs out"));
    let kept: Vec<_> = fs::read_dir(home.path().join("kernels")).unwrap().collect();
    assert_eq!(kept.len(), 4, "three kernels and the default: {kept:?}");
}
