//! Keeps ARCHITECTURE.md true: what it names exists, and crates depend only on crates below them in its table. docs/api.md is
//! kept true, too, and so are the licences and sources that deny.toml allows dependencies to have. Documents and messages are in
//! plain English (`phrases.rs`), and their links lead somewhere (`links.rs`).

mod links;
mod phrases;

use std::collections::BTreeSet;
use std::path::Path;

use cargo_metadata::{DependencyKind, MetadataCommand};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests are one directory below the root")
}

fn document() -> String {
    std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md is there")
}

/// What stands between backticks.
fn code_spans(document: &str) -> impl Iterator<Item = &str> {
    document
        .lines()
        .filter(|line| !line.starts_with("```"))
        .flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// A path names a file or directory of this repository: it has a slash inside, or an ending that source files have. Paths
/// that begin with a slash, `~` or `$` are the host's or the guest's.
fn is_path(span: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    let inside = span.trim_end_matches('/').contains('/') && !span.starts_with('/');
    let file = [".rs", ".md", ".toml", ".lock"].iter().any(|ending| span.ends_with(ending));
    span.chars().all(plain) && (inside || file)
}

/// The crates in the order of the table: a row begins with the crate's name between backticks.
fn table(document: &str) -> Vec<&str> {
    let rows = document.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    rows.map(|(name, _)| name).filter(|name| name.starts_with("forkd")).collect()
}

#[test]
fn every_path_exists() {
    let document = document();
    let paths: BTreeSet<&str> = code_spans(&document).filter(|span| is_path(span)).collect();
    assert!(paths.len() > 10, "the document names only {paths:?}");
    let missing: Vec<_> = paths.into_iter().filter(|path| !root().join(path).exists()).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md names what does not exist: {missing:#?}");
}

#[test]
fn the_page_of_the_api_is_current() {
    let check = std::process::Command::new(root().join("scripts/api-docs")).arg("--check").output();
    let check = check.expect("there is a Python");
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));
}

/// What `make build` builds has nothing with which a test lets guests take their processes over, or follows requests.
#[test]
fn the_product_has_no_way_in_for_tests() {
    let makefile = std::fs::read_to_string(root().join("Makefile")).expect("there is a Makefile");
    let product =
        makefile.lines().find_map(|line| line.strip_prefix("PRODUCT := ")).expect("it says what is built");
    assert!(makefile.contains("$(CARGO) build $(PRODUCT)"));
    let features = |packages: &str, name: &str| {
        let packages = packages.split_whitespace().filter(|word| *word != "--release");
        let tree = std::process::Command::new(env!("CARGO"))
            .args([
                "tree",
                "--offline",
                "--prefix",
                "none",
                "--edges",
                "normal,build",
                "--format",
                "{p} [{f}]",
            ])
            .args(packages)
            .current_dir(root())
            .output()
            .expect("cargo tree");
        assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
        let text = String::from_utf8_lossy(&tree.stdout).into_owned();
        let line =
            text.lines().find(|line| line.starts_with(&format!("{name} "))).expect("it is built").to_owned();
        line.rsplit_once(" [")
            .map(|(_, features)| features.trim_end_matches(" (*)").to_owned())
            .unwrap_or_default()
    };
    for (name, feature) in [("forkd-vmm", "attacks]"), ("forkd-proto", "passes]")] {
        assert_eq!(features(product, name), "]");
        assert_eq!(features("--locked --workspace", name), feature, "tests have it");
    }
}

#[test]
fn dependencies_point_downwards() {
    let document = document();
    let order = table(&document);
    let metadata = MetadataCommand::new().current_dir(root()).no_deps().exec().expect("cargo metadata");
    let mut wrong = Vec::new();
    for package in metadata.workspace_packages() {
        let Some(level) = order.iter().position(|name| *name == package.name.as_str()) else {
            wrong.push(format!("{} is not in the table", package.name));
            continue;
        };
        let ours = package.dependencies.iter().filter(|dependency| dependency.path.is_some());
        for dependency in ours.filter(|dependency| dependency.kind != DependencyKind::Development) {
            if order.iter().position(|name| *name == dependency.name).is_none_or(|below| below <= level) {
                wrong.push(format!("{} depends on {}, which is not below it", package.name, dependency.name));
            }
        }
    }
    for name in &order {
        if !metadata.workspace_packages().iter().any(|package| package.name.as_str() == *name) {
            wrong.push(format!("{name} is in the table and not in the workspace"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The crates that make sandboxes and images, and the files of the command line that may use them: a daemon, what boots a guest of
/// its own, and the guests of builds. Everything else asks a daemon.
const WORKERS: [&str; 6] =
    ["forkd_build", "forkd_daemon", "forkd_e2b", "forkd_engine", "forkd_image", "forkd_net"];
const WORK: [&str; 6] = [
    "arguments/serve.rs",
    "build/",
    "commands/build_guest.rs",
    "commands/dev.rs",
    "commands/serve.rs",
    "commands/serve/",
];
/// Tokens are lines of a file, which a daemon need not run for.
const TOKENS: [&str; 2] = ["arguments/token.rs", "commands/token/"];

#[test]
fn the_command_line_asks_daemons() {
    let sources = root().join("crates/forkd/src");
    let mut users = BTreeSet::new();
    let mut directories = vec![sources.clone()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).expect("sources").map(|entry| entry.expect("an entry")) {
            let path = entry.path();
            if path.is_dir() {
                directories.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("a source");
            let code: Vec<_> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
            for worker in WORKERS {
                if code.iter().any(|line| line.contains(&format!("{worker}::"))) {
                    let name = path.strip_prefix(&sources).expect("below").display().to_string();
                    users.insert((name, worker));
                }
            }
        }
    }
    let is_allowed = |(name, worker): &(String, &str)| {
        let tokens: &[&str] = if *worker == "forkd_daemon" { &TOKENS } else { &[] };
        WORK.iter().chain(tokens).any(|allowed| name.starts_with(allowed))
    };
    let others: Vec<_> = users.iter().filter(|user| !is_allowed(user)).collect();
    assert!(others.is_empty(), "these should ask a daemon: {others:#?}");
    for allowed in WORK.iter().chain(&TOKENS) {
        assert!(users.iter().any(|(name, _)| name.starts_with(allowed)), "{allowed} need not be listed");
    }
}

/// The part of deny.toml that `cargo deny` need not be built for.
#[derive(serde::Deserialize)]
struct Deny {
    licenses: Licenses,
}

#[derive(serde::Deserialize)]
struct Licenses {
    allow: Vec<String>,
}

/// Whether a package may be used under a licence of the list.
fn is_allowed(license: &str, allowed: &[String]) -> bool {
    let expression = spdx::Expression::parse_mode(license, spdx::ParseMode::LAX);
    expression.is_ok_and(|it| it.evaluate(|wanted| allowed.contains(&wanted.to_string())))
}

#[test]
fn dependencies_have_licences_and_sources_that_are_allowed() {
    let deny = std::fs::read_to_string(root().join("deny.toml")).expect("deny.toml is there");
    let allowed = toml::from_str::<Deny>(&deny).expect("deny.toml is read").licenses.allow;
    let linux = ["--locked", "--filter-platform", "x86_64-unknown-linux-gnu"].map(str::to_owned);
    let metadata = MetadataCommand::new().current_dir(root()).other_options(linux).exec();
    let metadata = metadata.expect("cargo metadata");
    // Others are of platforms that nothing is built for.
    let used: BTreeSet<_> =
        metadata.resolve.iter().flat_map(|graph| &graph.nodes).map(|node| &node.id).collect();
    let used: Vec<_> = metadata.packages.iter().filter(|package| used.contains(&package.id)).collect();
    assert!(used.len() > 100, "{} packages", used.len());
    let mut wrong = Vec::new();
    for package in used {
        if !is_allowed(package.license.as_deref().unwrap_or_default(), &allowed) {
            wrong.push(format!("{} has the licence {:?}", package.name, package.license));
        }
        if package.source.as_ref().is_some_and(|source| !source.is_crates_io()) {
            wrong.push(format!("{} comes from {:?}", package.name, package.source));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(is_allowed("MIT OR GPL-3.0-only", &allowed) && is_allowed("MIT/Apache-2.0", &allowed));
    assert!(!is_allowed("MIT AND GPL-3.0-only", &allowed) && !is_allowed("", &allowed));
}

/// The checks themselves, on a document that is wrong.
#[test]
fn the_checks_see_what_is_wrong() {
    let wrong =
        "See `crates/no-such/lib.rs`, `/dev/kvm`, `forkd machine`.\n| `forkd-b` | x |\n| `forkd-a` | y |\n";
    let paths: Vec<&str> = code_spans(wrong).filter(|span| is_path(span)).collect();
    assert_eq!(paths, ["crates/no-such/lib.rs"]);
    assert_eq!(table(wrong), ["forkd-b", "forkd-a"]);
}
