//! Recipes: those that come with forkd, and directories of the user's.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use forkd_tests::engine::process::Failure;
use serde_json::{Value, json};
use snapbox::{assert_data_eq, str};

use crate::stand_in::{StandIn, image, snapshot, usual};
use crate::world::Home;

const NAMES: [&str; 6] =
    ["code-interpreter", "coding-agent", "jupyter-kernel", "nodejs", "postgres-fixture", "python-numpy"];

#[test]
fn recipes_are_listed_with_what_was_built_of_them() -> Result<(), Failure> {
    let home = Home::new()?;
    // No daemon is needed, and none is started.
    let list = home.stdout(&["recipe", "ls"])?;
    let rows: Vec<Vec<&str>> = list.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["NAME", "SNAPSHOT", "SUMMARY"]);
    let listed: Vec<_> = rows[1..].iter().map(|row| (row[0], row[1])).collect();
    assert_eq!(listed, NAMES.map(|name| (name, "-")));

    let _daemon = StandIn::start(home.path(), &[], |request, body| match request {
        "GET /v1/snapshots" => {
            let with = |tag: &str, key: Option<&str>| {
                let mut built = snapshot(tag);
                built["names"] = json!([tag.split("-0123").next()]);
                built["build_key"] = json!(key);
                built
            };
            // One has the name of a recipe and was not built.
            let all = [with("nodejs-01234567", Some("0123")), with("python-numpy-0123", None)];
            Some((200, json!({ "snapshots": all }).to_string()))
        }
        _ => usual(request, body),
    })?;
    let list: Value = serde_json::from_str(&home.stdout(&["recipe", "ls", "--json"])?)?;
    let built = |name: &str| {
        let all = list.as_array().into_iter().flatten();
        all.filter(|one| one["name"] == name).map(|one| one["snapshot"].clone()).next()
    };
    assert_eq!(built("nodejs"), Some(json!("nodejs-01234567")));
    assert_eq!(built("python-numpy"), Some(Value::Null));
    Ok(())
}

#[test]
fn a_recipe_is_shown() -> Result<(), Failure> {
    let home = Home::new()?;
    let shown = home.run(&["recipe", "show", "python-numpy"])?;
    for part in [
        "--- stdout\n# python-numpy\n",
        "\n## forkd.toml\n\n```toml\n[image.python-numpy]\n",
        "\n```\n\nIts build writes its files to HOME/recipes/python-numpy.\n",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(home.entries()?.is_empty(), "{:?}", home.entries()?);
    assert_data_eq!(
        home.run(&["recipe", "show", "python"])?,
        str![[r#"
exit: 1
--- stderr
forkd: no recipe is named "python"
hint: forkd recipe ls lists the recipes; give a directory with a slash: ./python

"#]]
    );
    assert_data_eq!(
        home.run(&["recipe", "show", "./none"])?,
        str![[r#"
exit: 1
--- stderr
forkd: cannot read ./none/forkd.toml: No such file or directory (os error 2)

"#]]
    );
    let own = home.path().join("own");
    fs::create_dir(&own)?;
    fs::write(own.join("forkd.toml"), "[snapshot.a]\nfrom = \"x\" # \u{1b}[2J\n")?;
    assert_data_eq!(
        home.run(&["recipe", "show", own.to_str().ok_or("a path")?])?,
        str![[r#"
exit: 0
--- stdout
## forkd.toml

```toml
[snapshot.a]
from = "x" # �[2J
```

Its files are in HOME/own.

"#]]
    );
    Ok(())
}

/// Shows what was not expected.
fn refused(body: &Value) -> Option<(u16, String)> {
    Some((400, json!({ "error": body.to_string(), "code": "malformed" }).to_string()))
}

/// The answers of a daemon that makes images and snapshots, each once.
fn building() -> impl Fn(&str, &Value) -> Option<(u16, String)> + Send + Sync + 'static {
    let (has_image, has_snapshot) = (AtomicBool::new(false), AtomicBool::new(false));
    let name = std::sync::Mutex::new(Value::Null);
    move |request, body| {
        let mut made = image("sha256:12");
        made["names"] = json!([*name.lock().ok()?]);
        let answer = match request {
            "GET /v1/images" if has_image.load(Ordering::SeqCst) => json!({ "images": [made] }),
            "GET /v1/images" => json!({ "images": [] }),
            "POST /v1/images/debian" => {
                if *body
                    != json!({ "suite": "bookworm", "include": ["git", "python3"], "name": body["name"] })
                {
                    return refused(body);
                }
                has_image.store(true, Ordering::SeqCst);
                *name.lock().ok()? = body["name"].clone();
                made["names"] = json!([body["name"]]);
                return Some((200, format!("{{\"step\":\"building\"}}\n{}\n", json!({ "image": made }))));
            }
            "POST /v1/snapshots/build" => {
                let contents = &body["contents"];
                if body["name"] != "warm"
                    || contents["image"] != "sha256:12"
                    || contents["run"] != json!(["true"])
                {
                    return refused(body);
                }
                let is_made = !has_snapshot.swap(true, Ordering::SeqCst);
                let outcome = if is_made { "made" } else { "unchanged" };
                let steps = if is_made { "{\"step\":\"boot\"}\n{\"step\":\"freeze\"}\n" } else { "" };
                let built = json!({ "built": { "name": "warm", "outcome": outcome, "snapshot": snapshot("warm-01") } });
                return Some((200, format!("{steps}{built}\n")));
            }
            _ => return usual(request, body),
        };
        Some((200, answer.to_string()))
    }
}

#[test]
fn a_directory_is_built_once() -> Result<(), Failure> {
    let home = Home::new()?;
    let own = home.path().join("own");
    fs::create_dir(&own)?;
    fs::write(
        own.join("forkd.toml"),
        "[image.tools]\ndebian = [\"python3\", \"git\"]\n[image.unused]\ndebian = [\"x\"]\n\
         [snapshot.warm]\nfrom = \"tools\"\nrun = [\"true\"]\n",
    )?;
    let own = own.to_str().ok_or("a path")?;
    let daemon = StandIn::start(home.path(), &[], building())?;
    assert_data_eq!(
        home.run(&["recipe", "build", own, "--dry-run"])?,
        str![[r#"
exit: 0
--- stdout
NAME   WOULD BE  IMAGE
tools  made      forkd-debian:bookworm-[..]

NAME  WOULD BE  SNAPSHOT
warm  made      -

"#]]
    );
    assert_data_eq!(
        home.run(&["recipe", "build", own])?,
        str![[r#"
exit: 0
--- stdout
warm-01
--- stderr
forkd: building
forkd: snapshot warm: boot
forkd: snapshot warm: freeze
Snapshot warm was made: [..] s until it was warm (boot [..] s).
Fork it with: forkd fork warm. Its files are in HOME/own.

"#]]
    );
    assert_data_eq!(
        home.run(&["recipe", "build", own])?,
        str![[r#"
exit: 0
--- stdout
warm-01
--- stderr
Snapshot warm is unchanged.
Fork it with: forkd fork warm. Its files are in HOME/own.

"#]]
    );
    assert_data_eq!(
        home.run(&["snapshot", "build", "-f", &format!("{own}/forkd.toml")])?,
        str![[r#"
exit: 0
--- stdout
NAME   RESULT     IMAGE
tools  unchanged  forkd-debian:bookworm-[..]

NAME  RESULT     SNAPSHOT
warm  unchanged  warm-01

"#]]
    );
    let built: Value = serde_json::from_str(&home.stdout(&["recipe", "build", own, "--json"])?)?;
    assert_eq!((&built["directory"], &built["images"][0]["id"]), (&json!(own), &json!("sha256:12")));
    let asked = daemon.asked();
    assert_eq!(asked.iter().filter(|asked| *asked == "POST /v1/images/debian").count(), 1, "{asked:?}");
    Ok(())
}

#[test]
fn files_of_an_included_recipe_are_written_by_its_build() -> Result<(), Failure> {
    let home = Home::new()?;
    let _daemon = StandIn::start(home.path(), &[], |request, body| match request {
        "GET /v1/images" => Some((200, json!({ "images": [] }).to_string())),
        _ => usual(request, body),
    })?;
    let run = home.run(&["recipe", "build", "nodejs", "--dry-run"])?;
    assert!(run.contains("nodejs  made      forkd-debian:bookworm-"), "{run}");
    let at = home.path().join("recipes/nodejs");
    for name in ["README.md", "forkd.toml", "use.py", "warm.js"] {
        let original = format!("{}/../recipes/nodejs/{name}", env!("CARGO_MANIFEST_DIR"));
        assert_eq!(fs::read(at.join(name))?, fs::read(original)?, "{name}");
    }
    let shown = home.stdout(&["recipe", "show", "nodejs"])?;
    assert!(shown.ends_with(&format!("Its files are in {}.", at.display())), "{shown}");
    Ok(())
}
