//! Builds with a runner that only notes what it was asked for.

use std::fs;
use std::os::unix::fs::symlink;

use proptest::prelude::*;

use super::*;
use crate::digest::Digest;
use crate::images::Config;
use crate::progress::Silent;
use std::collections::BTreeMap;

/// A disk is the list of what was done to it.
#[derive(Default)]
struct Fake {
    kept: BTreeMap<Digest, Vec<String>>,
    /// What was really done, in all builds.
    done: Vec<String>,
    env: BTreeMap<String, String>,
}

#[derive(Debug, thiserror::Error)]
#[error("refused")]
struct Refused;

impl Fake {
    fn act(&mut self, mut disk: Vec<String>, what: String) -> Result<Vec<String>, Refused> {
        if what.contains("false") {
            return Err(Refused);
        }
        self.done.push(what.clone());
        disk.push(what);
        Ok(disk)
    }
}

impl Runner for Fake {
    type Disk = Vec<String>;
    type Error = Refused;

    fn base(&mut self, base: &Base) -> Result<(Vec<String>, Config, Digest), Refused> {
        let text = format!("{base:?}");
        let env = [("PATH".to_owned(), "/bin".to_owned())].into();
        let config = Config { env, cmd: vec!["old".into()], ..Config::default() };
        Ok((vec![text.clone()], config, Digest::of(text.as_bytes())))
    }

    fn cached(&mut self, key: Digest) -> Result<Option<Vec<String>>, Refused> {
        Ok(self.kept.get(&key).cloned())
    }

    fn keep(&mut self, key: Digest, disk: &Vec<String>) -> Result<(), Refused> {
        self.kept.insert(key, disk.clone());
        Ok(())
    }

    fn settle(&mut self, key: Digest, disk: Vec<String>) -> Result<Vec<String>, Refused> {
        self.kept.insert(key, disk.clone());
        Ok(disk)
    }

    fn run(&mut self, disk: Vec<String>, step: &RunStep) -> Result<Vec<String>, Refused> {
        self.env = step.env.clone();
        let user = step.user.as_deref().unwrap_or("-");
        self.act(disk, format!("run {:?} as {user} in {}", step.arguments, step.workdir))
    }

    fn copy(
        &mut self,
        disk: Vec<String>,
        context: &Context,
        step: &CopyStep,
    ) -> Result<Vec<String>, Refused> {
        let mut tar = Vec::new();
        context.write_tar(&step.items, (0, 0), &mut tar).unwrap();
        let places: Vec<String> =
            step.items.iter().map(|item| format!("{}>{}", item.source, item.destination)).collect();
        self.act(disk, format!("copy {} {:?} {:?}", places.join(" "), step.owner, step.mode))
    }

    fn copy_from(
        &mut self,
        disk: Vec<String>,
        from: &Vec<String>,
        step: &CopyFromStep,
    ) -> Result<Vec<String>, Refused> {
        self.act(disk, format!("copy {:?} to {} from [{}]", step.sources, step.destination, from.join("; ")))
    }

    fn make_directory(
        &mut self,
        disk: Vec<String>,
        path: &str,
        owner: Option<&str>,
    ) -> Result<Vec<String>, Refused> {
        let owner = owner.map(|owner| format!(" for {owner}")).unwrap_or_default();
        self.act(disk, format!("mkdir {path}{owner}"))
    }
}

fn context() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::create_dir_all(path("src/deep")).unwrap();
    fs::write(path("a.txt"), "a").unwrap();
    fs::write(path("b.txt"), "b").unwrap();
    fs::write(path("src/main.py"), "print()").unwrap();
    fs::write(path("src/deep/x.log"), "log").unwrap();
    fs::write(path("secret"), "secret").unwrap();
    symlink("main.py", path("src/link")).unwrap();
    symlink("/etc/passwd", path("out")).unwrap();
    fs::write(path(".dockerignore"), "secret\n**/*.log\n").unwrap();
    directory
}

fn build_with(
    fake: &mut Fake,
    directory: &std::path::Path,
    text: &str,
    arguments: &[(&str, &str)],
) -> Result<Built<Vec<String>>, String> {
    let dockerfile = parse(text).map_err(|error| error.to_string())?;
    let context = Context::open(directory).map_err(|error| error.to_string())?;
    let arguments = arguments.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    let options = BuildOptions { arguments, ..BuildOptions::default() };
    build(&dockerfile, &context, &options, fake, &Silent).map_err(|error| {
        let source = std::error::Error::source(&error).map(|source| format!(": {source}"));
        format!("{error}{}", source.unwrap_or_default())
    })
}

fn built(text: &str) -> Result<Built<Vec<String>>, String> {
    build_with(&mut Fake::default(), context().path(), text, &[])
}

#[test]
fn a_whole_dockerfile() {
    let text = r#"# comment
ARG VERSION=12
FROM debian:bookworm AS builder
ARG VERSION
ENV APP=/app MODE="fast mode"
WORKDIR $APP
COPY src ./src/
RUN make \
    # a comment between
    VERSION=$VERSION
FROM python:3.${VERSION:-11}
SHELL ["/bin/bash", "-c"]
USER app
WORKDIR /srv
COPY --from=builder --chown=app:app --chmod=755 /app/out bin/
RUN ["true", "$HOME"]
RUN echo hi
LABEL a=b "c d"="e f"
ENTRYPOINT ["/srv/bin/out"]
CMD ["--help"]
"#;
    let mut fake = Fake::default();
    let built = build_with(&mut fake, context().path(), text, &[]).unwrap();
    assert_eq!(
        fake.done,
        [
            "mkdir /app",
            "copy src>/app/src src/deep>/app/src/deep src/link>/app/src/link src/main.py>/app/src/main.py None None",
            "run [\"/bin/sh\", \"-c\", \"make     VERSION=$VERSION\"] as - in /app",
            "mkdir /srv",
            "copy [\"/app/out\"] to /srv/bin/ from [Debian(\"bookworm\"); mkdir /app; copy src>/app/src src/deep>/app/src/deep \
             src/link>/app/src/link src/main.py>/app/src/main.py None None; run [\"/bin/sh\", \"-c\", \"make     VERSION=$VERSION\"] as - in /app]",
            "run [\"true\", \"$HOME\"] as app in /srv",
            "run [\"/bin/bash\", \"-c\", \"echo hi\"] as app in /srv",
        ]
    );
    assert_eq!(built.disk[0], "Image(\"python:3.12\")");
    assert_eq!(built.config.entrypoint, ["/srv/bin/out"]);
    assert_eq!(built.config.cmd, ["--help"]);
    assert_eq!(built.config.labels["c d"], "e f");
    assert_eq!(built.config.env["PATH"], "/bin");
    assert!(!built.config.env.contains_key("APP"));
}

#[test]
fn what_is_not_supported_is_refused_by_name_and_line() {
    for (text, message) in [
        ("FROM a\n\nEXPOSE 80", "line 3: EXPOSE is not supported"),
        ("FROM a\nVOLUME /x", "line 2: VOLUME is not supported"),
        ("FROM a\nHEALTHCHECK NONE", "line 2: HEALTHCHECK is not supported"),
        ("FROM a\nONBUILD RUN x", "line 2: ONBUILD is not supported"),
        ("FROM a\nSTOPSIGNAL 9", "line 2: STOPSIGNAL is not supported"),
        ("FROM a\nRUN --mount=type=cache,target=/x y", "line 2: RUN --mount is not supported"),
        ("FROM a\nCOPY --link a b", "line 2: COPY --link is not supported"),
        ("FROM a\nADD https://x.example/y /y", "line 2: ADD of https://x.example/y is not supported"),
        ("FROM a\nADD --checksum=x a b", "line 2: ADD --checksum is not supported"),
        ("FROM --platform=linux/arm64 a", "line 1: FROM --platform=linux/arm64 is not supported"),
        ("FROM a\nRUN <<EOF\nx\nEOF", "line 2: a here-document is not supported"),
        ("FROM a AS x\nFROM b AS x", "line 2: "),
        ("RUN x", ""),
        ("", "cannot parse the Dockerfile: "),
        ("FROM a\nCOPY ../x /", "line 2: \"../x\" leads out of the build context"),
        ("FROM a\nCOPY none /", "line 2: \"none\" is not in the build context, or .dockerignore excludes it"),
        (
            "FROM a\nCOPY secret /",
            "line 2: \"secret\" is not in the build context, or .dockerignore excludes it",
        ),
        ("FROM a\nCOPY out /", "line 2: \"out\" leads out of the build context"),
        ("FROM a\nCOPY --chmod=rwx a.txt /", "line 2: --chmod takes an octal number such as 755"),
        ("FROM a\nENV A", "line 2: expected NAME=VALUE"),
        ("FROM a\nWORKDIR ${A", "line 2: a variable is not closed: '}' is missing"),
        ("FROM a\nRUN false", "line 2: refused"),
    ] {
        let error = built(text).err().unwrap_or_else(|| panic!("{text:?} was built"));
        assert!(
            error.starts_with(message) || (message.ends_with(": ") && error.contains("x")),
            "{text:?}: {error}"
        );
    }
}

#[test]
fn sources_are_placed_as_docker_places_them() {
    let place = |copy: &str| built(&format!("FROM a\n{copy}")).unwrap().disk[1].clone();
    assert_eq!(place("COPY a.txt /x"), "copy a.txt>/x None None");
    assert_eq!(place("COPY a.txt /x/"), "copy a.txt>/x/a.txt None None");
    assert_eq!(place("COPY *.txt /x"), "copy a.txt>/x/a.txt b.txt>/x/b.txt None None");
    assert_eq!(place("COPY a.txt b.txt ./"), "copy a.txt>/a.txt b.txt>/b.txt None None");
    assert_eq!(place("COPY /src/main.py /"), "copy src/main.py>/main.py None None");
    assert_eq!(
        place("COPY --chown=1:2 --chmod=600 [\"a.txt\", \"/a b\"]"),
        "copy a.txt>/a b Some(\"1:2\") Some(384)"
    );
    let all = place("COPY . /app");
    assert!(all.contains("src/main.py>/app/src/main.py") && all.contains("out>/app/out"), "{all}");
    assert!(!all.contains("secret") && !all.contains(".log"), "{all}");
    assert_eq!(place("COPY src/link /l"), "copy src/link>/l None None");
}

#[test]
fn add_unpacks_archives_and_copies_the_rest() {
    let directory = context();
    let tar = crate::archive::testing::Tar::new().file("f", b"x").finish();
    fs::write(directory.path().join("root.tar"), &tar).unwrap();
    fs::write(directory.path().join("root.tar.zst"), zstd::encode_all(&tar[..], 1).unwrap()).unwrap();
    let context = Context::open(directory.path()).unwrap();
    for (name, unpacks) in [("root.tar", true), ("root.tar.zst", true), ("a.txt", false)] {
        let items = context.select(name, "/x", false, true).unwrap();
        assert_eq!((items[0].unpacks, &items[0].destination[..]), (unpacks, "/x"), "{name}");
        assert!(!context.select(name, "/x", false, false).unwrap()[0].unpacks);
    }
}

#[test]
fn steps_are_kept_and_done_again_only_after_a_change() {
    let directory = context();
    let text = "FROM a\nARG X=1\nRUN one\nCOPY a.txt /\nRUN two\n";
    let mut fake = Fake::default();
    let first = build_with(&mut fake, directory.path(), text, &[]).unwrap();
    assert_eq!(fake.done.len(), 3);
    let again = build_with(&mut fake, directory.path(), text, &[]).unwrap();
    assert_eq!((fake.done.len(), again.key, again.disk == first.disk), (3, first.key, true));
    // Times do not count, contents and modes do.
    fs::write(directory.path().join("a.txt"), "a").unwrap();
    build_with(&mut fake, directory.path(), text, &[]).unwrap();
    assert_eq!(fake.done.len(), 3);
    fs::write(directory.path().join("a.txt"), "other").unwrap();
    let other = build_with(&mut fake, directory.path(), text, &[]).unwrap();
    assert_eq!(fake.done.len(), 5);
    assert_ne!(other.key, first.key);
    // A command that is added at the end, and one that sees another value.
    build_with(&mut fake, directory.path(), &format!("{text}RUN three\n"), &[]).unwrap();
    assert_eq!(fake.done.len(), 6);
    build_with(&mut fake, directory.path(), text, &[("X", "2")]).unwrap();
    assert_eq!(fake.done.len(), 9);
    // What only changes the configuration changes no disk.
    let labelled =
        build_with(&mut fake, directory.path(), &format!("{text}LABEL a=b\nCMD x\n"), &[("X", "2")]).unwrap();
    assert_eq!(
        (fake.done.len(), &labelled.config.cmd[..]),
        (9, &["/bin/sh".to_owned(), "-c".into(), "x".into()][..])
    );
}

#[test]
fn a_stage_that_nobody_needs_is_not_built() {
    let mut fake = Fake::default();
    let text = "FROM a AS one\nRUN one\nFROM b AS two\nRUN two\nFROM one AS three\nRUN three\n";
    let built = build_with(&mut fake, context().path(), text, &[]).unwrap();
    assert_eq!(fake.done.len(), 2);
    assert!(
        built.disk[0].contains("\"a\"") && built.disk[1].contains("one") && built.disk[2].contains("three")
    );
}

#[test]
fn arguments_reach_commands_and_typing_errors_are_told() {
    let mut fake = Fake::default();
    let text = "ARG G=global\nFROM a\nARG G\nARG D=default\nARG N\nENV D=env\nRUN x\n";
    build_with(&mut fake, context().path(), text, &[("N", "given")]).unwrap();
    assert_eq!((&fake.env["G"][..], &fake.env["D"][..], &fake.env["N"][..]), ("global", "env", "given"));
    let error = build_with(&mut fake, context().path(), text, &[("NN", "x")]).unwrap_err();
    assert_eq!(error, "the build argument \"NN\" is not declared by any ARG");
}

#[test]
fn bases_are_told_apart() {
    assert_eq!(Base::parse("scratch"), Base::Scratch);
    assert_eq!(Base::parse("debian:bookworm"), Base::Debian("bookworm".into()));
    assert_eq!(Base::parse("debian:12-slim"), Base::Image("debian:12-slim".into()));
    assert_eq!(Base::parse("registry.example/debian:sid"), Base::Image("registry.example/debian:sid".into()));
}

proptest! {
    #[test]
    fn no_text_panics(text in "(FROM|RUN|COPY|ENV|ARG|ADD|CMD| |\n|a|\\$|\\{|\\}|\"|\\[|\\]|,|--from=|<<EOF|\\\\|=|/|\\.){0,40}") {
        let _ = built(&text);
    }
}

/// A context that comes as an archive is copied from in the same way.
#[test]
fn a_context_that_is_sent_is_the_same_context() {
    let here = tempfile::tempdir().unwrap();
    for (path, text) in [
        ("a/b/file", "x"),
        ("a/ignored", "x"),
        ("a/kept", "yy"),
        ("empty", ""),
        ("Dockerfile", "FROM scratch\n"),
        (".dockerignore", "a/*\n!a/kept\n!a/b\nDockerfile\n"),
    ] {
        let path = here.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    fs::set_permissions(here.path().join("empty"), std::os::unix::fs::PermissionsExt::from_mode(0o751))
        .unwrap();
    symlink("../nowhere", here.path().join("a/b/link")).unwrap();
    let context = Context::open(here.path()).unwrap();
    let ignore = fs::read(here.path().join(".dockerignore")).unwrap();
    let more = [("Dockerfile".to_owned(), b"FROM scratch\n".to_vec()), (".dockerignore".to_owned(), ignore)];
    let mut bytes = Vec::new();
    context.write_whole(&more, &mut bytes).unwrap();

    let there = tempfile::tempdir().unwrap();
    let mut archive = tar::Archive::new(&bytes[..]);
    archive.set_preserve_permissions(true);
    archive.set_preserve_ownerships(false);
    archive.unpack(there.path()).unwrap();
    let sent = Context::open(there.path()).unwrap();
    assert_eq!(sent.select(".", "/", true, false).unwrap(), context.select(".", "/", true, false).unwrap());
    assert!(!there.path().join("a/ignored").exists() && !sent.has("Dockerfile"));
    assert_eq!(sent.read("Dockerfile", 100).unwrap(), b"FROM scratch\n");
}
