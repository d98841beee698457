//! docs/reference/configuration.md: every environment variable and every key of forkd.toml, declared here once.
//!
//! The variables are compared with those that the sources name, the keys with those that the parsers accept.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use forkd_source::chain;
use forkd_source::recipe::Recipe;

use super::{cell, check, root};

type Row = (&'static str, &'static str);

/// Read by the command line, and by both clients as far as they find a daemon.
const CLIENTS: &[Row] = &[
    (
        "FORKD_ADDRESS",
        "address of the daemon: `unix:///path`, `http://host:port` or `https://host:port`, as `--address`",
    ),
    ("FORKD_URL", "the same, read if `FORKD_ADDRESS` is not set"),
    ("FORKD_TOKEN_FILE", "file with the API token, as `--token-file`"),
    ("FORKD_TOKEN", "the API token, read if there is no `FORKD_TOKEN_FILE`"),
    (
        "FORKD_SOCKET",
        "path of the daemon's Unix socket, for the daemon and for clients [default: `forkd.sock` in forkd's home]",
    ),
    ("FORKD_MACHINE", "name of the machine whose daemon is used if this host has none [default: `default`]"),
    (
        "FORKD_HOME",
        "forkd's home: the directory of its files [default: `$XDG_DATA_HOME/forkd`, else `~/.local/share/forkd`]",
    ),
    ("FORKD_LIBRARY", "directory of images and kernels [default: `library` in forkd's home]"),
    (
        "DOCKER_CONFIG",
        "directory of Docker's `config.json`, for credentials of registries [default: `~/.docker`]",
    ),
    ("SSL_CERT_FILE", "file with CA certificates that are trusted in addition to the system's"),
    ("TERM", "terminal type; passed to commands that run in a terminal of a sandbox"),
    (
        "TMPDIR",
        "directory of temporary files [default: `/tmp`; `/var/tmp` while a machine's disk image is built]",
    ),
    ("XDG_DATA_HOME", "see `FORKD_HOME`"),
    (
        "XDG_CONFIG_HOME",
        "where `forkd mcp install` finds configuration files of MCP clients [default: `~/.config`]",
    ),
];

/// Read, but not ours to explain.
const COMMON: &[&str] = &["HOME", "PATH"];

/// Read by `forkd serve`, and so by daemons that other commands start.
const DAEMON: &[Row] = &[
    (
        "FORKD_LOG",
        "log filter, as `--log`: a level, or levels by module (`info,forkd_daemon=debug`); `forkd mcp` reads it, too",
    ),
    ("FORKD_NETWORK", "`auto`, `required` or `none`, as `--network`"),
    ("FORKD_CGROUP", "the cgroup for sandboxes, or `none`, as `--cgroup`"),
    ("FORKD_PREFAULT", "`true` or `false`, as `--prefault`"),
    ("FORKD_SNAPSHOT_POLICY", "the policy of pulled snapshots, as `--snapshot-policy`"),
];

/// Read by the Python and TypeScript clients only.
const SDKS: &[Row] = &[
    (
        "FORKD_AUTOSTART",
        "`1`: start a private daemon if none is found; see [clients.md](../clients.md#a-private-daemon)",
    ),
    ("FORKD_BIN", "path of `forkd`, which starts that daemon [default: `forkd` in `PATH`]"),
    ("FORKD_TAG", "the snapshot of `Sandbox.create()` without arguments [default: `base`]"),
];

/// Set in a guest, for the hooks that run after a fork; see [forks.md](../forks.md).
const GUEST: &[Row] = &[
    ("FORKD_ID", "the sandbox's id"),
    ("FORKD_INDEX", "the sandbox's number among those of its request, from 0"),
    ("FORKD_GENERATION", "how many forks lie between the sandbox and the boot"),
];

/// Read by tests, and by what only debug builds have.
const TESTS: &[&str] = &[
    "FORKD_FAULT",
    "FORKD_FAULT_HANG",
    "FORKD_FAULT_READ",
    "FORKD_FAULT_SYNC",
    "FORKD_SOAK",
    "FORKD_STORE_TEST_KILLED_STEP",
    "FORKD_STORE_TEST_KILLED_STORE",
    "FORKD_TEST_VICTIM",
    "FORKD_TRACE_PASSES",
    "FORKD_UPDATE",
    "FORKD_WRITE_RECORDS",
    "FORKD_WRITE_SEEDS",
];

const ROOT: &[Row] = &[
    ("vcpus", "number of vCPUs, 1 to 32 [default: 1]"),
    ("memory", "guest memory: MiB, or text with a unit such as `\"2G\"` [default: 512]"),
    ("disk", "size of the guest's disk, likewise [default: `\"4G\"`]"),
    ("start", "the program to start after boot: text for `/bin/sh -c`, or an array of arguments"),
    ("user", "the user that `start` runs as [default: root]"),
    ("ready", "when the guest counts as ready; see `[ready]`"),
    (
        "warmup",
        "a table: code per language (`python`, `javascript`, `typescript`, `bash`, `r`, `java`) to run before the freeze",
    ),
    ("image", "tables `[image.NAME]`"),
    ("snapshot", "tables `[snapshot.NAME]`"),
];

const READY: &[Row] = &[
    ("port", "ready when something listens on this TCP port"),
    ("command", "or ready when this command exits with 0: text for `/bin/sh -c`, or an array of arguments"),
    ("timeout_seconds", "how long to wait, 1 to 3600 [default: 60]"),
];

const IMAGE: &[Row] = &[
    ("debian", "an array of packages to install beyond Debian's smallest system"),
    ("suite", "Debian's release, with `debian` only [default: `\"bookworm\"`]"),
    (
        "dockerfile",
        "instead of `debian`: a Dockerfile, relative to the directory of forkd.toml and inside it",
    ),
    ("context", "the build context of the Dockerfile [default: the directory of forkd.toml]"),
    ("from", "another `[image.NAME]`, whose name the Dockerfile gets as the build argument `BASE`"),
];

const SNAPSHOT: &[Row] = &[
    (
        "from",
        "base: a `[snapshot.X]` or `[image.X]` of this file, else an image, else a snapshot. The prefixes `image:`, `snapshot:`, `template:` select one kind",
    ),
    ("run", "an array of commands, run as root with `sh -c`"),
    ("warm_up", "an array of `LANGUAGE=CODE` or `LANGUAGE=@FILE`"),
    ("env", "a table: variables added to the environment of the guest and of its sandboxes"),
    (
        "kernel",
        "the guest kernel, by id or version [default: the library's default]. This key and those below are for snapshots of images",
    ),
    ("vcpus", "number of vCPUs, 1 to 32"),
    ("memory", "guest memory: MiB, or text with a unit"),
    ("memory_mib", "alias of `memory`"),
    ("disk", "size of the guest's disk, likewise"),
    ("disk_mib", "alias of `disk`"),
    ("cpu", "the CPU that guests see: `\"host\"`, `\"x86-64-v2\"` or `\"x86-64-v3\"` [default: `\"host\"`]"),
    ("network", "`false`: sandboxes have no network [default: true]"),
    ("host_certs", "`true`: guests trust the CA certificates of the daemon's host [default: false]"),
    ("e2b", "`true`: make what E2B's clients expect, such as the user `user` [default: false]"),
    ("start", "the program to start after boot"),
    ("ready", "when the guest counts as ready, as `[ready]`"),
];

#[test]
fn the_page_of_the_configuration_is_current() {
    let mut text = "# Configuration

`make reference` writes this page from `crates/forkd/src/reference/configuration.rs`, which a test compares with the sources. The options
of each command are in [cli.md](cli.md); an option takes precedence over its variable.

## Environment variables
"
    .to_owned();
    for (title, rows) in [
        ("Of the command line and the clients", CLIENTS),
        ("Of the daemon", DAEMON),
        ("Of the Python and TypeScript clients only", SDKS),
        ("In guests, for hooks", GUEST),
    ] {
        write!(text, "\n### {title}\n\n{}", table("variable", rows)).unwrap();
    }
    text += "
Spans are configured with the standard variables of OpenTelemetry, listed in [operations.md](../operations.md#traces). `HTTP_PROXY`,
`HTTPS_PROXY` and `NO_PROXY` apply to registries and collectors.

## forkd.toml

Unknown keys are errors. A forkd.toml beside a Dockerfile says what its image needs; `forkd snapshot build` reads the tables `image` and
`snapshot` ([snapshots.md](../snapshots.md)).
";
    for (title, rows) in [
        ("Top level", ROOT),
        ("\\[ready\\]", READY),
        ("\\[image.NAME\\]", IMAGE),
        ("\\[snapshot.NAME\\]", SNAPSHOT),
    ] {
        write!(text, "\n### {title}\n\n{}", table("key", rows)).unwrap();
    }
    check("configuration.md", &text);
}

fn table(what: &str, rows: &[Row]) -> String {
    let mut text = format!("| {what} | |\n|---|---|\n");
    for (name, meaning) in rows {
        writeln!(text, "| `{name}` | {} |", cell(meaning)).unwrap();
    }
    text
}

/// No variable is read that is not declared, and none is declared that nothing reads.
#[test]
fn the_sources_name_the_declared_variables() {
    let mut named = BTreeSet::new();
    for directory in ["crates", "sdk/python/src", "sdk/typescript/src"] {
        names_below(&root().join(directory), &mut named);
    }
    let declared = [CLIENTS, DAEMON, SDKS, GUEST].concat();
    let declared = declared.iter().map(|(name, _)| *name).chain(TESTS.iter().copied());
    let declared: BTreeSet<String> =
        declared.filter(|name| name.starts_with("FORKD_")).map(str::to_owned).collect();
    let unknown: Vec<_> = named.difference(&declared).collect();
    let unread: Vec<_> = declared.difference(&named).collect();
    assert!(unknown.is_empty() && unread.is_empty(), "not declared: {unknown:?}, not read: {unread:?}");
}

/// The same for variables that other programs define: those that calls which read one name. Spans have their own page.
#[test]
fn common_variables_that_are_read_are_declared() {
    let operations = std::fs::read_to_string(root().join("docs/operations.md")).unwrap();
    let mut read = BTreeSet::new();
    reads_below(&root().join("crates"), &mut read);
    assert!(read.contains("SSL_CERT_FILE") && read.contains("OTEL_SERVICE_NAME"), "{read:?}");
    let declared: BTreeSet<_> = CLIENTS.iter().map(|(name, _)| *name).chain(COMMON.iter().copied()).collect();
    let is_declared = |name: &String| match name.starts_with("OTEL_") {
        true => operations.contains(&**name),
        false => name.starts_with("FORKD_") || declared.contains(&**name),
    };
    read.retain(|name| !is_declared(name));
    assert!(read.is_empty(), "not declared: {read:?}");
}

fn reads_below(directory: &Path, names: &mut BTreeSet<String>) {
    for path in std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() && !path.ends_with("src/reference") {
            reads_below(&path, names);
        } else if path.extension().is_some_and(|ending| ending == "rs") && !path.ends_with("build.rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            for call in ["var(\"", "var_os(\"", "variable(\"", "variables(\"", "directory(\"", "absolute(\""]
            {
                let calls = text.split(call).skip(1).filter_map(|rest| rest.split('"').next());
                let is_name = |name: &&str| {
                    !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c == '_')
                };
                names.extend(calls.filter(is_name).map(str::to_owned));
            }
        }
    }
}

/// Collects the literals that are names of variables.
fn names_below(directory: &Path, names: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            // This declaration itself proves nothing.
            if !path.ends_with("src/reference") && !path.ends_with("node_modules") {
                names_below(&path, names);
            }
            continue;
        }
        if !["rs", "py", "ts"].iter().any(|ending| path.extension().is_some_and(|is| is == *ending)) {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let words = text.split(|c: char| !(c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_'));
        // Python has one list of names without their beginning (`_autostart.py`); all of them are named elsewhere.
        names.extend(words.filter(|word| word.len() > 6 && word.starts_with("FORKD_")).map(str::to_owned));
    }
}

#[test]
fn the_parsers_accept_the_declared_keys() {
    let path = Path::new("forkd.toml");
    let recipe = |text: &str| Recipe::parse(text, path).unwrap_err().to_string();
    let chain = |text: &str| chain::parse(text, path).unwrap_err().to_string();
    assert_eq!(accepted(&recipe("bogus = 1")), keys(ROOT));
    assert_eq!(accepted(&recipe("[ready]\nbogus = 1")), keys(READY));
    assert_eq!(accepted(&chain("[image.a]\nbogus = 1")), keys(IMAGE));
    assert_eq!(accepted(&chain("[snapshot.a]\nbogus = 1")), keys(SNAPSHOT));
}

fn keys(rows: &[Row]) -> BTreeSet<String> {
    rows.iter().map(|(name, _)| (*name).to_owned()).collect()
}

/// The keys that the error about an unknown one lists.
fn accepted(message: &str) -> BTreeSet<String> {
    let (_, list) = message.split_once("expected").unwrap_or_else(|| panic!("{message}"));
    list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}
