//! Dockerfiles that look at themselves: a command of the last stage fails if something is not as it should be.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;

use forkd_host::home;
use forkd_tests::host::machine_name;
use forkd_tests::suite::host;
use forkd_tests::{TestResult, binaries, check, library};
use serde_json::{Value, json};

pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// A user, files of the context and of another stage with their owners, and all that only changes the configuration.
const WHOLE: &str = r#"FROM debian:bookworm AS build
ENV MODE=fast
ARG VERSION=1
WORKDIR /made
COPY src ./src
RUN useradd --create-home app && \
    echo "$MODE $VERSION $(id -un) $(pwd)" > out.txt && ln src/tool out.link && ln -s /made/out.txt out.sym

FROM debian:bookworm
RUN groupadd --gid 700 team && useradd --uid 1701 --gid team --create-home app
WORKDIR /srv/app
COPY --from=build --chown=app:team /made ./
COPY --chown=1701 --chmod=640 src/note deep/er/
USER app
RUN test "$(id -un):$(id -gn):$PWD:$HOME" = app:team:/srv/app:/home/app && \
    test "$(cat out.txt)" = "fast 2 root /made" && test "$(stat -c %U:%G:%a out.txt)" = app:team:644 && \
    test "$(stat -c %a:%h src/tool)" = 755:2 && test "$(readlink out.sym)" = /made/out.txt && \
    test "$(stat -c %U:%G:%a:%Y deep/er/note)" = app:team:640:0 && test "$(stat -c %U deep)" = app && \
    test ! -e /made && echo kept > /home/app/mark
LABEL made=by-test
ENTRYPOINT ["/srv/app/src/tool"]
CMD ["--help"]
"#;

pub struct World {
    context: tempfile::TempDir,
    home: PathBuf,
}

impl World {
    pub fn new() -> Result<World, Error> {
        // The host is started with the first test.
        host()?;
        let context = tempfile::tempdir()?;
        let source = context.path().join("src");
        fs::create_dir(&source)?;
        // Another one in every run: what an earlier run has kept is none of this one's.
        let stamp = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
        fs::write(source.join("tool"), format!("#!/bin/sh\n# {stamp}\n"))?;
        fs::set_permissions(source.join("tool"), fs::Permissions::from_mode(0o755))?;
        fs::write(source.join("note"), "note")?;
        Ok(World { context, home: home::directory()? })
    }

    fn forkd(&self, arguments: &[&str]) -> Result<Output, Error> {
        let mut command = binaries::forkd(&self.home, arguments);
        // The machine sees no other library. A daemon of this user has another one, so it is not asked.
        command.env(home::LIBRARY_VARIABLE, library::directory()).env("FORKD_SOCKET", "/nonexistent");
        for variable in ["FORKD_ADDRESS", "FORKD_URL"] {
            command.env_remove(variable);
        }
        Ok(command.output()?)
    }

    pub fn build(&self, dockerfile: &str, tag: &str, more: &[&str]) -> Result<Output, Error> {
        let file = self.context.path().join("Dockerfile");
        fs::write(&file, dockerfile)?;
        let directory = self.context.path().to_string_lossy().into_owned();
        let machine = machine_name();
        let words = ["image", "build", &directory, "--tag", tag, "--machine", &machine, "--json"];
        self.forkd(&[&words, more].concat())
    }

    pub fn built(&self, dockerfile: &str, tag: &str, more: &[&str]) -> Result<(Value, String), Error> {
        let output = self.build(dockerfile, tag, more)?;
        check!(output.status.success(), "{}", binaries::transcript(&output));
        Ok((serde_json::from_slice(&output.stdout)?, String::from_utf8(output.stderr)?))
    }

    /// Removes what a test has made; steps stay, as after any build.
    pub fn remove(&self, tag: &str) -> TestResult {
        let output = self.forkd(&["image", "rm", tag])?;
        check!(output.status.success(), "{}", binaries::transcript(&output));
        Ok(())
    }
}

/// The second time no command runs, and it is the same image; another argument makes another.
pub fn built_and_built_again() -> TestResult {
    let world = World::new()?;
    fs::write(world.context.path().join("forkd.toml"), "vcpus = 2\n[ready]\nport = 80\n")?;
    let tag = "forkd-tests/whole";
    let arguments = ["--build-arg", "VERSION=2"];
    let (image, _) = world.built(WHOLE, tag, &arguments)?;
    let config = &image["config"];
    check!(config["user"] == "app" && config["workdir"] == "/srv/app", "{config}");
    check!(
        config["entrypoint"] == json!(["/srv/app/src/tool"]) && config["cmd"] == json!(["--help"]),
        "{config}"
    );
    check!(config["labels"] == json!({ "made": "by-test" }) && config["env"]["MODE"].is_null(), "{config}");
    check!(image["default_user"] == "app" && image["recipe"]["vcpus"] == 2, "{image}");
    check_file_system(&directory(&image))?;

    let (again, said) = world.built(WHOLE, tag, &arguments)?;
    check!(again["id"] == image["id"], "{again}");
    check!(!said.contains("RUN") && !said.contains("COPY"), "steps were done again:\n{said}");
    let content = digest(&image)?;
    world.remove(tag)?;
    // Its steps are enough to make it again.
    let (again, said) = world.built(WHOLE, tag, &arguments)?;
    check!(again["id"] == image["id"] && digest(&again)? == content, "{again}");
    check!(!said.contains("RUN"), "{said}");
    world.remove(tag)
}

pub fn a_failing_command() -> TestResult {
    let world = World::new()?;
    let dockerfile = "FROM debian:bookworm\n\nRUN echo some output; exit 3\n";
    let tag = "forkd-tests/failing";
    let output = world.build(dockerfile, tag, &[])?;
    let said = String::from_utf8(output.stderr)?;
    check!(output.status.code() == Some(1), "{said}");
    check!(
        said.contains("line 3: the command ended with exit status 3; its last output:\nsome output\n"),
        "{said}"
    );
    check!(!world.forkd(&["image", "inspect", tag])?.status.success(), "there is an image");
    let builds = library::directory().join("builds");
    let left: Vec<String> = fs::read_dir(&builds)?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<std::io::Result<Vec<_>>>()?;
    check!(!left.iter().any(|name| name.starts_with(".tmp-")), "{left:?}");
    // What it was to be the next disk of is not kept either, so it fails again.
    check!(!world.build(dockerfile, tag, &[])?.status.success(), "the second time it was built");
    Ok(())
}

/// No shell, no users, no directories: the agent places files by itself.
pub fn an_image_from_nothing() -> TestResult {
    let world = World::new()?;
    let tag = "forkd-tests/nothing";
    let (image, _) = world.built("FROM scratch\nCOPY --chown=5:6 src/tool /bin/\n", tag, &[])?;
    check!(image["default_user"] == "root", "{image}");
    check_file_system(&directory(&image))?;
    let output = world.build("FROM scratch\nCOPY --chown=nobody src/tool /bin/\n", tag, &[])?;
    let said = String::from_utf8(output.stderr)?;
    check!(said.contains("line 2: cannot copy files into the guest: there is no user 'nobody'"), "{said}");
    world.remove(tag)
}

/// Where an image is.
fn directory(image: &Value) -> PathBuf {
    let id = image["id"].as_str().unwrap_or_default();
    library::directory().join("images").join(id.trim_start_matches("sha256:"))
}

/// The digest of an image's file system.
fn digest(image: &Value) -> Result<Value, Error> {
    let metadata: Value = serde_json::from_slice(&fs::read(directory(image).join("metadata.json"))?)?;
    Ok(metadata["digest"].clone())
}

/// Whatever the guest was doing, its file system is whole.
fn check_file_system(image: &Path) -> TestResult {
    let output = std::process::Command::new("e2fsck").arg("-fn").arg(image.join("base.ext4")).output()?;
    check!(output.status.success(), "{}", binaries::transcript(&output));
    Ok(())
}
