//! Every page under docs is reachable by links from README.md or docs/README.md, and relative links of documents lead to existing
//! files and headings.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use super::phrases::files;
use super::root;

/// The pages that readers start from.
const STARTS: [&str; 2] = ["README.md", "docs/README.md"];

/// Documents, by their paths from the root.
fn pages() -> BTreeMap<PathBuf, String> {
    let mut paths: Vec<_> =
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(|name| root().join(name)).into();
    for directory in ["docs", "recipes", "packaging", "sdk"] {
        paths.extend(files(&root().join(directory), &["md"]));
    }
    let mut pages = BTreeMap::new();
    for path in paths {
        let text = std::fs::read_to_string(&path).expect("a page");
        pages.insert(path.strip_prefix(root()).expect("below the root").to_owned(), text);
    }
    pages
}

/// The lines of a page, without blocks of code.
fn lines(page: &str) -> Vec<&str> {
    let (mut found, mut code) = (Vec::new(), false);
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            code = !code;
        } else if !code {
            found.push(line);
        }
    }
    found
}

/// Targets of relative links and pictures.
fn targets(page: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for line in lines(page) {
        for (start, end) in [("](", ')'), ("src=\"", '"'), ("srcset=\"", '"')] {
            found.extend(line.split(start).skip(1).filter_map(|rest| rest.split(end).next()));
        }
    }
    found.retain(|target| !target.contains("://") && !target.starts_with("mailto:"));
    found
}

/// The path from the root of a file that a page links to.
fn resolved(page: &Path, target: &str) -> PathBuf {
    let mut path = page.parent().map(Path::to_owned).unwrap_or_default();
    for part in Path::new(target).components() {
        match part {
            Component::ParentDir => {
                path.pop();
            }
            Component::CurDir => {}
            part => path.push(part),
        }
    }
    path
}

/// The fragment that GitHub gives a heading: letters and digits in lower case, `-`, `_`, and `-` for each space.
fn slug(heading: &str) -> String {
    let text = heading.trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The fragments of a page. A heading that repeats gets a number.
fn fragments(page: &str) -> BTreeSet<String> {
    let (mut found, mut counts) = (BTreeSet::new(), BTreeMap::new());
    for line in lines(page) {
        let text = line.trim_start_matches('#');
        let level = line.len() - text.len();
        if !(1..=6).contains(&level) || !text.starts_with(' ') {
            continue;
        }
        let slug = slug(text);
        let count: &mut usize = counts.entry(slug.clone()).or_default();
        found.insert(match *count {
            0 => slug,
            number => format!("{slug}-{number}"),
        });
        *count += 1;
    }
    found
}

/// Whether a link of a page leads to a file and, with a fragment, to a heading.
fn leads(page: &Path, target: &str) -> bool {
    let (path, fragment) = target.split_once('#').unwrap_or((target, ""));
    let path = if path.is_empty() { page.to_owned() } else { resolved(page, path) };
    let file = root().join(path);
    match fragment {
        "" => file.exists(),
        fragment => std::fs::read_to_string(file).is_ok_and(|text| fragments(&text).contains(fragment)),
    }
}

#[test]
fn links_lead_to_files_and_headings() {
    let (mut checked, mut wrong) = (0, Vec::new());
    for (page, text) in &pages() {
        for target in targets(text) {
            checked += 1;
            if !leads(page, target) {
                wrong.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(checked > 100, "only {checked} links were found");
    assert!(wrong.is_empty(), "these links lead nowhere:\n{}", wrong.join("\n"));
}

#[test]
fn every_page_is_reachable() {
    let pages = pages();
    let mut reached = BTreeSet::new();
    let mut waiting: Vec<PathBuf> = STARTS.iter().map(PathBuf::from).collect();
    while let Some(page) = waiting.pop() {
        let Some(text) = pages.get(&page) else { continue };
        if reached.insert(page.clone()) {
            for target in targets(text) {
                let path = target.split('#').next().unwrap_or_default();
                waiting.push(resolved(&page, path));
            }
        }
    }
    let missing: Vec<_> =
        pages.keys().filter(|page| page.starts_with("docs") && !reached.contains(*page)).collect();
    assert!(missing.is_empty(), "no link leads to these pages: {missing:#?}");
}

#[test]
fn links_and_headings_are_found() {
    let page = "# One `two`, *three*\n[a](b.md#c) ![d](../e.svg)\n```\n# no\n[no](no.md)\n```\n## A\n## A\n#no\n\
                <img src=\"f.svg\"> [g](https://example.com)\n";
    assert_eq!(targets(page), ["b.md#c", "../e.svg", "f.svg"]);
    assert_eq!(Vec::from_iter(fragments(page)), ["a", "a-1", "one-two-three"]);
    assert_eq!(slug(r"\[image.NAME\]"), "imagename");
    assert_eq!(slug("PUT /v1/sandboxes/{id}/egress"), "put-v1sandboxesidegress");
    assert_eq!(resolved(Path::new("docs/a/b.md"), "../../c.md"), Path::new("c.md"));
    assert!(leads(Path::new("docs/README.md"), "../README.md#install"));
    assert!(
        !leads(Path::new("README.md"), "docs/no-such-page.md")
            && !leads(Path::new("README.md"), "#no-such-heading")
    );
}
