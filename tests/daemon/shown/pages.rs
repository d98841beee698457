//! What the pages of the documents need before their commands can be run, and the commands that cannot be run with tiny guests.

/// A page with commands.
pub struct Page {
    pub path: &'static str,
    /// Commands that are run before those of a section, by its heading; "" is the page's beginning.
    pub prepare: &'static [(&'static str, &'static str)],
}

const NOTHING: &[(&str, &str)] = &[];

pub const README: Page = Page {
    path: "README.md",
    prepare: &[
        ("", "forkd snapshot rm warm"),
        // It makes the same snapshot again, and the Dockerfile is the reader's.
        (
            "First fork",
            "forkd kill --all; forkd snapshot rm half warm; printf 'FROM numpy\\nENV MODE=fast\\n' > Dockerfile",
        ),
    ],
};

pub const QUICKSTART: Page = Page { path: "docs/quickstart.md", prepare: &[("", "forkd snapshot rm warm")] };

pub const IMAGES: Page = Page {
    path: "docs/images.md",
    prepare: &[
        (
            "",
            r"printf 'FROM scratch\nENV MODE=fast\n' > Dockerfile
              mkdir -p docker rootfs/etc lib/modules/6.12.1
              printf 'FROM scratch AS test\nARG VERSION\nENV VERSION=$VERSION\nFROM test\n' > docker/Dockerfile
              echo 'root:x:0:0::/root:/bin/sh' > rootfs/etc/passwd
              tar --create --zstd --file rootfs.tar.zst --directory rootfs .
              { cat $FORKD_HOME/kernel; printf 'Linux version 6.12.1 (x)\0'; } > vmlinux
              for module in virtio_mmio virtio_blk ext4; do echo kernel/$module.ko; done > lib/modules/6.12.1/modules.builtin",
        ),
        // The section before removes it.
        ("Try an image", "forkd image build . --tag app"),
    ],
};

pub const SNAPSHOTS: Page = Page { path: "docs/snapshots.md", prepare: NOTHING };

pub const NETWORKS: Page = Page {
    path: "docs/networks.md",
    prepare: &[(
        "",
        "id=$(forkd fork warm --deny 8.8.8.0/24); FORKD_TOKEN=$(forkd token create reader --scope run)",
    )],
};

pub const DEBUG: Page = Page {
    path: "docs/debug.md",
    prepare: &[
        ("", "id=$(forkd fork warm)"),
        (
            "Events",
            r#"forkd events --json > events & listener=$!
               until [ -s events ]; do forkd fork warm; sleep 0.1; done
               kill $listener
               cursor=$(sed -n '1s/.*"cursor":"\([^"]*\)".*/\1/p' events)"#,
        ),
    ],
};

pub const OPERATIONS: Page = Page { path: "docs/operations.md", prepare: NOTHING };
pub const MCP: Page = Page { path: "docs/mcp.md", prepare: NOTHING };
pub const E2B: Page = Page { path: "docs/e2b.md", prepare: NOTHING };
pub const CLIENTS: Page = Page { path: "docs/clients.md", prepare: NOTHING };
pub const FORKS: Page = Page { path: "docs/forks.md", prepare: &[("", "id=$(forkd fork warm)")] };
pub const INSTALL: Page = Page { path: "docs/install.md", prepare: NOTHING };

pub const UPGRADE: Page = Page {
    path: "docs/upgrade.md",
    prepare: &[(
        "",
        r#"printf '[snapshot.base]\nfrom = "numpy"\n' > forkd.toml; forkd snapshot numpy --tag code-interpreter-v1"#,
    )],
};

pub const SDK_PYTHON: Page = Page { path: "docs/sdk-python.md", prepare: NOTHING };
pub const SDK_TYPESCRIPT: Page = Page { path: "docs/sdk-typescript.md", prepare: NOTHING };

pub const PAGES: [&Page; 15] = [
    &README,
    &QUICKSTART,
    &IMAGES,
    &SNAPSHOTS,
    &NETWORKS,
    &DEBUG,
    &OPERATIONS,
    &MCP,
    &E2B,
    &CLIENTS,
    &FORKS,
    &INSTALL,
    &UPGRADE,
    &SDK_PYTHON,
    &SDK_TYPESCRIPT,
];

/// Commands that run until they are interrupted, and whether they print a line as soon as they are ready.
pub const BACKGROUND: [(&str, bool); 3] =
    [("forkd port-forward ", true), ("forkd events ", false), ("forkd process attach ", false)];

/// A command that is not run as it is shown.
pub struct Exception {
    /// The page; "" is any.
    pub page: &'static str,
    /// How the command begins.
    pub begins: &'static str,
    pub why: &'static str,
    /// The test or script that runs it, if there is one.
    pub by: &'static str,
    /// A command that is run in its place.
    pub instead: Option<&'static str>,
}

const fn left_to(by: &'static str, page: &'static str, begins: &'static str, why: &'static str) -> Exception {
    Exception { page, begins, why, by, instead: None }
}

const fn untested(page: &'static str, begins: &'static str, why: &'static str) -> Exception {
    left_to("", page, begins, why)
}

const fn replaced(
    page: &'static str,
    begins: &'static str,
    why: &'static str,
    instead: &'static str,
) -> Exception {
    Exception { page, begins, why, by: "", instead: Some(instead) }
}

#[rustfmt::skip]
pub const EXCEPTIONS: &[Exception] = &[
    // Builds and packages of forkd itself.
    untested("", "make build", "compiles a release, which takes minutes"),
    left_to("tests/daemon/packaging.rs", "", "make install", "installs files on the host"),
    left_to("packaging/test-deb", "", "make deb", "compiles a release, which takes minutes"),
    left_to("tests/daemon/packaging.rs", "", "make tarball", "compiles a release, which takes minutes"),
    untested("", "make container", "compiles a release and downloads Debian packages"),
    left_to("tests/daemon/sdk.rs", "", "make sdk-python", "is the client's own build and tests"),
    left_to("tests/package/run", "", "apt install ./", "installs a package on the host"),
    untested("docs/install.md", "cd target && sha256sum", "needs the tarball of a release"),
    left_to("tests/daemon/packaging.rs", "docs/install.md", "tar --directory /usr/local", "installs files on the host"),
    untested("docs/install.md", "systemd-sysusers &&", "needs systemd, and adds accounts to the host"),
    untested("docs/install.md", "adduser ", "adds an account to the host"),
    untested("docs/install.md", "podman ", "needs podman and the container image of a release"),
    left_to("sdk/python/wheel", "", "pip install target/wheels", "needs the wheel of a release and a package registry"),
    left_to("sdk/python/wheel", "", "venv/bin/pip install target/wheels", "needs the wheel of a release and a package registry"),
    left_to("tests/daemon/sdk.rs", "", "npm install target/npm", "needs the package of a release"),
    // systemd.
    untested("", "systemctl status forkd", "needs systemd"),
    left_to("tests/package/run", "", "systemctl restart forkd", "needs systemd, whose stand-in restarts the daemon there"),
    untested("docs/debug.md", "systemctl edit forkd", "needs systemd, and opens an editor"),
    untested("docs/debug.md", "journalctl ", "needs systemd"),
    // The internet, and what is made with it. The images exist in the library under the names that the documents give them.
    left_to("tests/hub/run", "", "forkd image debian ", "downloads packages from Debian's mirror"),
    left_to("tests/daemon/library.rs", "docs/images.md", "forkd image pull python:3.12-slim", "pulls from a public registry"),
    replaced("docs/images.md", "forkd kernel add --default", "downloads a kernel from Debian's mirror; a file takes its place",
        "forkd kernel add --default --path vmlinux"),
    left_to("tests/package/run", "docs/images.md", "forkd kernel add --host", "needs a kernel in /boot"),
    left_to("tests/e2b/main.rs", "", "forkd e2b setup", "makes an image of Debian packages"),
    left_to("tests/e2b/main.rs", "docs/e2b.md", "python3 -c 'from e2b_code_interpreter", "needs E2B's client, from a package registry"),
    // Guests that tiny ones are not: with a disk and an agent of their own, and machines.
    left_to("tests/build/dockerfile.rs", "docs/quickstart.md", "forkd image build hello", "its RUN needs a guest that has the image as its disk"),
    left_to("tests/agent/sdk.rs", "docs/images.md", "forkd dev app", "boots a guest without a daemon, so this test cannot give it an agent"),
    left_to("tests/machine/starts.rs", "", "forkd machine ", "makes or needs a machine"),
    untested("docs/forks.md", "forkd exec SANDBOX -- pkill ", "the sandbox is this host, where pkill would also stop the command itself"),
    left_to("crates/forkd-agent/src/identity/hooks.rs", "docs/forks.md", "pkill -HUP ", "is the contents of a hook, not a command to type"),
    // Other programs.
    replaced("", "docker login registry.example", "docker may be missing; this leaves what it leaves",
        r#"mkdir -p ~/.docker; printf '{"auths":{"%s":{"auth":"%s"}}}' "$REGISTRY" "$REGISTRY_LOGIN" > ~/.docker/config.json"#),
    left_to("tests/daemon/trust.rs", "docs/snapshots.md", "cosign ", "needs cosign, which is downloaded"),
    replaced("docs/debug.md", "forkd shell ", "needs a terminal, and ends when that is typed",
        "while sleep 0.2; do echo exit; done | script --quiet --return --command \"forkd shell $id\" /dev/null"),
    left_to("tests/daemon/sdk.rs", "docs/clients.md", "sdk/scenarios/run", "installs and compiles what another test shares"),
    // Two hosts in one.
    replaced("docs/snapshots.md", "forkd snapshot pull registry.example", "is for a second host, which has no snapshot of this name",
        "forkd kill --all; forkd snapshot rm warm; forkd snapshot pull registry.example/team/app:warm"),
    replaced("docs/snapshots.md", "forkd snapshot load warm.tar", "is for a second host, which has no snapshot of this name",
        "forkd kill --all; forkd snapshot rm warm; forkd snapshot load warm.tar"),
];

/// Commands whose output is not compared with what is shown: the page, how the command begins, and why.
#[rustfmt::skip]
pub const OTHER_OUTPUT: &[(&str, &str, &str)] = &[
    ("README.md", "forkd eval \"$(forkd fork half)\" x", "all sandboxes share one interpreter here; tests/api/docs.rs compares it"),
    ("README.md", "forkd eval \"$id\" x", "all sandboxes share one interpreter here; tests/api/docs.rs compares it"),
];
