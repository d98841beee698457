//! Images, through the daemon and without one. Images keep the owners of their files, so most of this needs root.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forkd_image::digest::Digest;
use forkd_tests::engine::process::Failure;
use forkd_tests::engine::tiny::PATIENCE;
use forkd_tests::registry::Registry;
use forkd_tests::tiny_library::fill;
use serde_json::{Value, json};
use snapbox::{assert_data_eq, str};

use crate::outcome::outcome;
use crate::stand_in::{self, StandIn};
use crate::world::{Home, World};

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// An archive of one file.
pub fn tar(name: &str, content: &[u8]) -> Result<Vec<u8>, Failure> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o644);
    header.set_size(content.len() as u64);
    archive.append_data(&mut header, name, content)?;
    Ok(archive.into_inner()?)
}

/// A file of a home, as text.
fn file(home: &Home, name: &str, content: impl AsRef<[u8]>) -> Result<String, Failure> {
    let path = home.path().join(name);
    fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
    fs::write(&path, content)?;
    Ok(path.to_string_lossy().into_owned())
}

#[test]
fn an_archive_becomes_an_image_and_goes_again() -> Result<(), Failure> {
    if !is_root() {
        return Ok(());
    }
    let world = World::new()?;
    let passwd = "root:x:0:0::/:/bin/sh\nuser:x:1:1::/:/bin/sh\n";
    let archive = file(&world, "tiny-1.tar", tar("etc/passwd", passwd.as_bytes())?)?;
    assert_data_eq!(
        world.run(&["image", "ls"])?,
        str![[r#"
exit: 0
--- stdout
NAME  ID  ON DISK  SIZE  USER  LIBRARY

"#]]
    );
    assert_data_eq!(
        world.run(&["images"])?,
        str![[r#"
exit: 0
--- stdout
NAME  ID  ON DISK  SIZE  USER  LIBRARY
--- stderr
note: forkd images used to list snapshots; these are listed by: forkd snapshot ls

"#]]
    );
    assert_data_eq!(
        world.run(&["image", "import", &archive])?,
        str![[r#"
exit: 0
--- stdout
[..]
--- stderr
forkd: sending HOME/tiny-1.tar
forkd: unpacking upload
forkd: making the file system

"#]]
    );
    assert_data_eq!(
        world.run(&["image", "import", &archive, "--name", "team/app:v1", "--json"])?,
        str![[r#"
exit: 0
--- stdout
{
  "id": "sha256:[..]",
  "names": [
    "team/app:v1",
    "tiny-1:latest"
  ],
  "shared": false,
  "created_at_unix": [..],
  "size_bytes": [..],
  "disk_bytes": [..],
  "default_user": "user",
  "projects": [
    "default"
  ],
  "public": false,
  "source": {
    "kind": "archive",
    "file": "upload"
  },
  "config": {
    "env": {},
    "entrypoint": [],
    "cmd": [],
    "labels": {}
  },
  "layers": [
    "sha256:[..]"
  ]
}
--- stderr
forkd: sending HOME/tiny-1.tar
forkd: unpacking upload

"#]]
    );
    assert_data_eq!(
        world.run(&["image", "ls"])?,
        str![[r#"
exit: 0
--- stdout
NAME           ID            ON DISK     SIZE  USER  LIBRARY
team/app:v1    [..]  1.0 GiB  user  own
tiny-1:latest  [..]  1.0 GiB  user  own

"#]]
    );
    assert_data_eq!(
        world.run(&["image", "ls", "--quiet"])?,
        str![[r#"
exit: 0
--- stdout
[..]

"#]]
    );
    assert_data_eq!(
        world.run(&["image", "ls", "--json"])?,
        str![[r#"
exit: 0
--- stdout
[
  {
    "id": "sha256:[..]",
    "names": [
      "team/app:v1",
      "tiny-1:latest"
    ],
    "shared": false,
    "created_at_unix": [..],
    "size_bytes": [..],
    "disk_bytes": [..],
    "default_user": "user",
    "projects": [
      "default"
    ],
    "public": false
  }
]

"#]]
    );
    assert_data_eq!(
        world.run(&["image", "inspect", "team/app:v1"])?,
        str![[r#"
exit: 0
--- stdout
{
  "id": "sha256:[..]",
  "names": [
    "team/app:v1",
    "tiny-1:latest"
  ],
  "shared": false,
  "created_at_unix": [..],
  "size_bytes": [..],
  "disk_bytes": [..],
  "default_user": "user",
  "projects": [
    "default"
  ],
  "public": false,
  "source": {
    "kind": "archive",
    "file": "upload"
  },
  "config": {
    "env": {},
    "entrypoint": [],
    "cmd": [],
    "labels": {}
  },
  "layers": [
    "sha256:[..]"
  ]
}

"#]]
    );
    assert_data_eq!(
        world.run(&["image", "rm", "tiny-1"])?,
        str![[r#"
exit: 0
--- stderr
The name tiny-1 is removed; the image has others.

"#]]
    );
    assert_data_eq!(
        world.run(&["rmi", "nothing", "team/app:v1"])?,
        str![[r#"
exit: 1
--- stderr
note: forkd rmi used to remove snapshots; these are removed by: forkd snapshot rm
forkd: there is no image "nothing"
hint: see forkd image ls
team/app:v1 is removed; freed [..].

"#]]
    );
    assert_data_eq!(
        world.run(&["image", "inspect", "team/app:v1"])?,
        str![[r#"
exit: 1
--- stderr
forkd: there is no image "team/app:v1"
hint: see forkd image ls

"#]]
    );
    assert_data_eq!(
        world.run(&["image", "rm", "nothing", "--json"])?,
        str![[r#"
exit: 1
--- stdout
[]
--- stderr
forkd: there is no image "nothing"
hint: see forkd image ls

"#]]
    );
    Ok(())
}

#[test]
fn archives_that_are_none_are_named() -> Result<(), Failure> {
    if !is_root() {
        return Ok(());
    }
    let world = World::new()?;
    let none = world.path().join("none.tar");
    assert_data_eq!(
        world.run(&["image", "import", &none.to_string_lossy()])?,
        str![[r#"
exit: 1
--- stderr
forkd: cannot read HOME/none.tar: No such file or directory (os error 2)

"#]]
    );
    let directory = world.path().to_string_lossy().into_owned();
    assert_data_eq!(
        world.run(&["image", "import", &directory, "--name", "x"])?,
        str![[r#"
exit: 1
--- stderr
forkd: cannot read HOME: is a directory

"#]]
    );
    let text = file(&world, "text.tar", "This is no archive, however long one looks at it. ".repeat(100))?;
    assert_data_eq!(
        world.run(&["image", "import", &text])?,
        str![[r#"
exit: 1
--- stderr
forkd: sending HOME/text.tar
forkd: unpacking upload
forkd: the archive cannot be read: numeric field was not a number: . This i when getting cksum for This is no archive, however long one looks at it. This is no archive, however long one looks at it. 

"#]]
    );
    let named = file(&world, "a b.tar", "")?;
    assert_data_eq!(
        world.run(&["image", "import", &named])?,
        str![[r#"
exit: 1
--- stderr
forkd: "a b" is not a valid image name; give one with --tag NAME

"#]]
    );
    Ok(())
}

#[test]
fn a_dockerfile_is_built_by_the_daemon() -> Result<(), Failure> {
    if !is_root() {
        return Ok(());
    }
    let world = World::new()?;
    let dockerfile = "FROM scratch AS first\nARG WHO\nENV HELLO=$WHO\nFROM first\nLABEL a=b\n";
    file(&world, "context/Dockerfile", dockerfile)?;
    file(&world, "context/.dockerignore", "*\n")?;
    file(&world, "context/forkd.toml", "vcpus = 2\n")?;
    let context = world.path().join("context").to_string_lossy().into_owned();
    let build = ["image", "build", &context, "--tag", "built", "--build-arg", "WHO=you"];
    assert_data_eq!(
        world.run(&build)?,
        str![[r#"
exit: 0
--- stdout
[..]
--- stderr
forkd: sending the build context
forkd: unpacking the build context
forkd: FROM scratch
forkd: making the file system
forkd: FROM first
forkd: making the image

"#]]
    );
    let built: Value = serde_json::from_str(&world.stdout(&[&build[..], &["--json"]].concat())?)?;
    assert_eq!((&built["config"]["env"]["HELLO"], &built["recipe"]["vcpus"]), (&json!("you"), &json!(2)));
    let first: Value =
        serde_json::from_str(&world.stdout(&[&build[..], &["--target", "first", "--json"]].concat())?)?;
    assert_eq!(first["config"]["labels"], json!({}));
    // From somewhere else, with a recipe of its own.
    let other = file(&world, "elsewhere/Dockerfile.dev", "FROM scratch\nLABEL from=elsewhere\n")?;
    file(&world, "elsewhere/forkd.toml", "vcpus = 3\n")?;
    let other = world.stdout(&["image", "build", &context, "-f", &other, "--tag", "other", "--json"])?;
    let other: Value = serde_json::from_str(&other)?;
    assert_eq!(
        (&other["config"]["labels"], &other["recipe"]["vcpus"]),
        (&json!({ "from": "elsewhere" }), &json!(3))
    );
    assert_data_eq!(
        world.run(&["image", "prune", "--images"])?,
        str![[r#"
exit: 0
--- stderr
0 steps and 2 images are removed; freed [..].

"#]]
    );
    assert_data_eq!(
        world.run(&["image", "prune", "--keep", "1G", "--json"])?,
        str![[r#"
exit: 0
--- stdout
{
  "steps": 0,
  "images": 0,
  "freed_bytes": 0
}

"#]]
    );
    Ok(())
}

#[test]
fn what_cannot_be_built_is_named() -> Result<(), Failure> {
    if !is_root() {
        return Ok(());
    }
    let world = World::new()?;
    let context = world.path().join("context");
    fs::create_dir(&context)?;
    let context = context.to_string_lossy().into_owned();
    let build = ["image", "build", &context];
    assert_data_eq!(
        world.run(&build)?,
        str![[r#"
exit: 1
--- stderr
forkd: the Dockerfile HOME/context/Dockerfile cannot be read: No such file or directory (os error 2)

"#]]
    );
    file(&world, "context/Dockerfile", "FROM scratch\nONBUILD RUN x\n")?;
    assert_data_eq!(
        world.run(&build)?,
        str![[r#"
exit: 1
--- stderr
forkd: sending the build context
forkd: unpacking the build context
forkd: line 2: ONBUILD is not supported

"#]]
    );
    file(&world, "context/Dockerfile", "FROM scratch\nCOPY none /\n")?;
    assert_data_eq!(
        world.run(&build)?,
        str![[r#"
exit: 1
--- stderr
forkd: sending the build context
forkd: unpacking the build context
forkd: FROM scratch
forkd: making the file system
forkd: Dockerfile: line 2: "none" is not in the build context, or .dockerignore excludes it

"#]]
    );
    file(&world, "context/Dockerfile", "FROM scratch\n")?;
    assert_data_eq!(
        world.run(&[&build[..], &["--target", "last"]].concat())?,
        str![[r#"
exit: 1
--- stderr
forkd: sending the build context
forkd: unpacking the build context
forkd: Dockerfile: there is no stage "last"

"#]]
    );
    file(&world, "context/forkd.toml", "vcpus = 'many'\n")?;
    assert_data_eq!(
        world.run(&build)?,
        str![[r#"
exit: 1
--- stderr
forkd: sending the build context
forkd: unpacking the build context
forkd: cannot parse forkd.toml: TOML parse error at line 1, column 9
  |
1 | vcpus = 'many'
  |         ^^^^^^
invalid type: string "many", expected u32

"#]]
    );
    let none = format!("{context}/none");
    assert_data_eq!(
        world.run(&["image", "build", &none])?,
        str![[r#"
exit: 1
--- stderr
forkd: cannot read "." of the build context HOME/context/none: No such file or directory (os error 2)

"#]]
    );
    Ok(())
}

/// What is sent, and what is shown of what comes back.
#[test]
fn a_context_is_sent_without_what_is_ignored_and_output_is_shown() -> Result<(), Failure> {
    let home = Home::new()?;
    file(&home, "context/Dockerfile", "FROM scratch\n")?;
    file(&home, "context/.dockerignore", "secret\nDockerfile\n")?;
    file(&home, "context/secret", "not to be sent")?;
    file(&home, "context/below/file", "to be sent")?;
    let bodies = Arc::new(Mutex::new(String::new()));
    let kept = Arc::clone(&bodies);
    let daemon = StandIn::start(home.path(), &[], move |request, body| {
        if !request.starts_with("POST /v1/images/build?") {
            return None;
        }
        *kept.lock().ok()? = body.as_str()?.to_owned();
        let lines = [
            json!({ "step": "RUN make" }),
            json!({ "detail": "half" }),
            json!({ "output": "made \u{1b}[2J" }),
            json!({ "warning": "slow" }),
            json!({ "image": stand_in::image("sha256:0123") }),
        ];
        Some((200, lines.map(|line| format!("{line}\n")).concat()))
    })?;
    let context = home.path().join("context").to_string_lossy().into_owned();
    let options =
        ["--no-cache", "--network", "none", "--host-certs", "--vcpus", "2", "--memory", "2G", "-t", "a/b"];
    let build = [&["image", "build", &context, "--build-arg", "A=x y"], &options[..]].concat();
    assert_data_eq!(
        home.run(&build)?,
        str![[r#"
exit: 0
--- stdout
0123
--- stderr
forkd: sending the build context
forkd: RUN make
  made �[2J
forkd: warning: slow

"#]]
    );
    assert_data_eq!(
        daemon.asked().join("\n"),
        str![
            "POST /v1/images/build?name=a%2Fb%3Alatest&dockerfile=Dockerfile&no_cache=true&no_network=true&host_certs=true&vcpus=2&memory_mib=2048&build_arg=A%3Dx%20y"
        ]
    );
    let body = bodies.lock().map_err(|_| "poisoned")?.clone();
    assert!(body.contains("below/file") && body.contains("to be sent") && body.contains("FROM scratch"));
    assert!(!body.contains("not to be sent"), "{body}");
    Ok(())
}

#[test]
fn debian_is_asked_for_as_it_is_said() -> Result<(), Failure> {
    let home = Home::new()?;
    let _daemon = StandIn::start(home.path(), &[], |request, body| {
        let wanted = json!({
            "suite": "trixie", "include": ["a", "b"], "mirror": "http://m.example", "name": "d:latest", "size_mib": 2048,
        });
        (request == "POST /v1/images/debian" && *body == wanted)
            .then(|| (200, format!("{}\n", json!({ "image": stand_in::image("sha256:0123") }))))
    })?;
    let words = ["--suite", "trixie", "--include", "a,b", "--mirror", "http://m.example"];
    let debian = [&["image", "debian", "--name", "d", "--size", "2G"], &words[..]].concat();
    assert_data_eq!(
        home.run(&debian)?,
        str![[r#"
exit: 0
--- stdout
0123

"#]]
    );
    Ok(())
}

#[test]
fn a_debian_that_is_none_is_named() -> Result<(), Failure> {
    let world = World::new()?;
    assert_data_eq!(
        world.run(&["image", "debian", "--suite", "a b"])?,
        str![[r#"
exit: 1
--- stderr
forkd: "a b" is not a suite: use a name such as bookworm

"#]]
    );
    Ok(())
}

#[test]
fn an_image_is_pulled_with_the_credentials_of_whoever_asks() -> Result<(), Failure> {
    if !is_root() {
        return Ok(());
    }
    let world = World::new()?;
    let registry = Registry::start(&tar("a", b"x")?)?;
    let reference = format!("{}/app:latest", registry.address);
    let pull = |config: &str| -> Result<String, Failure> {
        file(&world, "docker/config.json", config)?;
        let mut command = world.command(&["image", "pull", &reference, "--name", "pulled"]);
        let output = command.env("DOCKER_CONFIG", world.path().join("docker")).output()?;
        Ok(outcome(&output, world.path()).replace(&registry.address, "REGISTRY"))
    };
    assert_data_eq!(
        pull("{}")?,
        str![[r#"
exit: 1
--- stderr
forkd: pulling REGISTRY/app:latest
forkd: cannot get the manifest of REGISTRY/app:latest: Not authorized: url http://REGISTRY/v2/app/manifests/latest

"#]]
    );
    // "me:s3cret-of-the-registry"
    let auth = json!({ "auths": { &registry.address: { "auth": "bWU6czNjcmV0LW9mLXRoZS1yZWdpc3RyeQ==" } } });
    assert_data_eq!(
        pull(&auth.to_string())?,
        str![[r#"
exit: 0
--- stdout
[..]
--- stderr
forkd: pulling REGISTRY/app:latest
forkd: pulling REGISTRY/app:latest: layer 1 of 1
forkd: making the file system

"#]]
    );
    let helper = json!({ "credHelpers": { &registry.address: "other" } });
    assert_data_eq!(
        pull(&helper.to_string())?,
        str![[r#"
exit: 1
--- stderr
forkd: cannot get the credentials for REGISTRY from a credential helper (HOME/docker/config.json): cannot run docker-credential-other, which must be in PATH: No such file or directory (os error 2)

"#]]
    );
    assert_data_eq!(
        world.run(&["image", "pull", "a b"])?,
        str![[r#"
exit: 1
--- stderr
forkd: invalid image reference "a b": invalid reference format

"#]]
    );
    Ok(())
}

#[test]
fn an_image_that_is_needed_stays() -> Result<(), Failure> {
    let home = Home::new()?;
    // The engine that makes the snapshot has a library of its own.
    fill(&home.path().join("engine"))?;
    fill(&home.path().join("library"))?;
    let world = World::over(home, &["--listen", "none"], |base| {
        base.shape.image = Some(Digest::of(b"image"));
        if let Some(disk) = base.shape.devices.disks.first_mut() {
            disk.base = true;
        }
        Ok(())
    })?;
    assert_data_eq!(
        world.run(&["image", "rm", "empty"])?,
        str![[r#"
exit: 1
--- stderr
forkd: image empty is needed by snapshot base
hint: remove them first

"#]]
    );
    Ok(())
}

#[test]
fn a_daemon_that_is_not_there_is_named() -> Result<(), Failure> {
    let home = Home::new()?;
    let address = format!("unix://{}/none", home.path().display());
    let archive = file(&home, "a.tar", "")?;
    file(&home, "Dockerfile", "FROM scratch\n")?;
    let context = home.path().to_string_lossy().into_owned();
    for words in [
        &["image", "ls"][..],
        &["image", "inspect", "x"],
        &["image", "rm", "x"],
        &["image", "prune"],
        &["image", "pull", "x"],
        &["image", "debian"],
        &["image", "import", &archive],
        &["image", "build", &context],
        &["kernel", "ls"],
        &["kernel", "add"],
        &["kernel", "add", "--path", &archive],
        &["kernel", "default"],
        &["kernel", "default", "x"],
        &["kernel", "rm", "x"],
    ] {
        let said = home.run(&[words, &["--address", &address]].concat())?;
        let last = said.lines().rev().take(2).collect::<Vec<_>>();
        assert_eq!(
            last,
            [
                "hint: is it running? forkd serve starts one; --address or FORKD_ADDRESS names another",
                "forkd: cannot reach the daemon at unix://HOME/none: No such file or directory (os error 2)",
            ],
            "{words:?}: {said}"
        );
        assert!(said.starts_with("exit: 1\n"), "{words:?}: {said}");
    }
    assert!(!home.path().join("library").exists(), "nothing is done here instead");
    Ok(())
}

#[test]
fn who_may_read_may_look_and_no_more() -> Result<(), Failure> {
    let world = World::with(&["--listen", "127.0.0.1:0"])?;
    fill(&world.path().join("library"))?;
    let secret = world.stdout(&["token", "create", "reader", "--scope", "read"])?;
    let address = format!("http://{}", world.address()?);
    let runner = world.stdout(&["token", "create", "runner", "--scope", "run"])?;
    let with = |secret: &str, words: &[&str]| -> Result<String, Failure> {
        let mut command = world.command(words);
        command.env("FORKD_ADDRESS", &address).env("FORKD_TOKEN", secret);
        Ok(outcome(&command.output()?, world.path()))
    };
    assert_data_eq!(
        with(&secret, &["image", "ls"])?,
        str![[r#"
exit: 0
--- stdout
NAME          ID            ON DISK     SIZE  USER  LIBRARY
empty:latest  [..]  1.0 MiB  1.0 MiB  root  own

"#]]
    );
    assert_data_eq!(
        with(&secret, &["kernel", "ls"])?,
        str![[r#"
exit: 0
--- stdout
ID    VERSION  MODULES  LIBRARY  DEFAULT
tiny  0              0  own      yes

"#]]
    );
    assert_data_eq!(
        with(&secret, &["image", "rm", "empty"])?,
        str![[r#"
exit: 1
--- stderr
forkd: this needs the scope run, and the token has read
hint: make one on the daemon's host: forkd token create NAME --scope run

"#]]
    );
    let archive = file(&world, "a.tar", tar("a", &[b'x'; 3_000_000])?)?;
    file(&world, "context/Dockerfile", "FROM scratch\n")?;
    let context = world.path().join("context").to_string_lossy().into_owned();
    for words in [
        &["image", "prune"][..],
        &["image", "pull", "x"],
        &["image", "debian"],
        &["image", "import", &archive],
        &["image", "build", &context],
        &["kernel", "add"],
        &["kernel", "add", "--path", &archive],
        &["kernel", "default", "tiny"],
        &["kernel", "rm", "tiny"],
    ] {
        let said = with(&runner, words)?;
        assert!(said.starts_with("exit: 1\n"), "{words:?}: {said}");
        assert!(said.contains("this needs the scope admin, and the token has run\n"), "{words:?}: {said}");
    }
    Ok(())
}

/// Also when it is killed in the middle of something: here, while it waits for an archive.
#[test]
fn a_daemon_for_one_command_ends_with_it() -> Result<(), Failure> {
    let home = Home::new()?;
    let temporary = home.path().join("tmp");
    fs::create_dir(&temporary)?;
    let archive = home.path().join("pipe.tar");
    if !std::process::Command::new("mkfifo").arg(&archive).status()?.success() {
        return Err("no pipe".into());
    }
    let until = |what: &str, holds: &dyn Fn(&[std::path::PathBuf]) -> bool| -> Result<(), Failure> {
        let begun = Instant::now();
        loop {
            let entries = fs::read_dir(&temporary)?.map(|entry| Ok(entry?.path()));
            let entries: Vec<_> = entries.collect::<std::io::Result<_>>()?;
            if holds(&entries) {
                return Ok(());
            }
            if begun.elapsed() > PATIENCE {
                return Err(format!("{what}: {entries:?}").into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let mut command = home.command(&["image", "import", &archive.to_string_lossy()]);
    let mut command = command.env("TMPDIR", &temporary).stderr(Stdio::null()).spawn()?;
    until("no daemon was started", &|entries| {
        entries.iter().any(|directory| directory.join("forkd.sock").exists())
    })?;
    command.kill()?;
    command.wait()?;
    until("its files are left", &|entries| entries.is_empty())
}

/// Of a daemon that this user starts for itself: it may look, and is told what making an image takes.
#[test]
fn without_root_it_is_said_what_to_do() -> Result<(), Failure> {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;

    let home = Home::new()?;
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o777))?;
    let archive = file(&home, "tiny.tar", tar("a", b"x")?)?;
    let as_nobody = |words: &[&str]| -> Result<String, Failure> {
        let mut command = home.command(words);
        if is_root() {
            command.uid(65534).gid(65534);
        }
        Ok(outcome(&command.output()?, home.path()))
    };
    assert_data_eq!(
        as_nobody(&["image", "ls"])?,
        str![[r#"
exit: 0
--- stdout
NAME  ID  ON DISK  SIZE  USER  LIBRARY

"#]]
    );
    assert_data_eq!(
        as_nobody(&["image", "import", &archive])?,
        str![[r#"
exit: 1
--- stderr
forkd: sending HOME/tiny.tar
forkd: cannot make images: the daemon needs root to set the owners of their files
hint: start a daemon as root (sudo forkd serve); or, without a daemon, run this command as root (sudo forkd ...)

"#]]
    );
    Ok(())
}

/// What a daemon makes that is started for one command is what the next daemon then has, and says alike.
#[test]
fn without_a_daemon_one_is_started_for_the_command() -> Result<(), Failure> {
    if !is_root() {
        return Ok(());
    }
    let home = Home::new()?;
    assert_data_eq!(
        home.run(&["image", "ls"])?,
        str![[r#"
exit: 0
--- stdout
NAME  ID  ON DISK  SIZE  USER  LIBRARY

"#]]
    );
    let archive = file(&home, "tiny.tar", tar("a", b"x")?)?;
    assert_data_eq!(
        home.run(&["image", "import", &archive])?,
        str![[r#"
exit: 0
--- stdout
[..]
--- stderr
forkd: sending HOME/tiny.tar
forkd: unpacking upload
forkd: making the file system

"#]]
    );
    file(&home, "context/Dockerfile", "FROM scratch\nENV A=b\n")?;
    let context = home.path().join("context").to_string_lossy().into_owned();
    home.stdout(&["image", "build", &context, "-t", "built"])?;
    let looks = [
        &["image", "ls"][..],
        &["image", "ls", "--json"],
        &["image", "inspect", "tiny"],
        &["image", "inspect", "built"],
    ];
    let here: Vec<String> = looks.iter().map(|words| home.run(words)).collect::<Result<_, _>>()?;
    assert_data_eq!(
        home.run(&["image", "rm", "nothing"])?,
        str![[r#"
exit: 1
--- stderr
forkd: there is no image "nothing"
hint: see forkd image ls

"#]]
    );
    assert_eq!(
        home.entries()?,
        ["context", "library", "machines", "tiny.tar"],
        "it leaves nothing but what was asked for"
    );
    let world = World::over(home, &["--listen", "none"], |_| Ok(()))?;
    for (words, here) in looks.iter().zip(here) {
        assert_eq!(world.run(words)?, here, "{words:?}");
    }
    // The same files are the same image, whoever built them.
    let again = world.stdout(&["image", "build", &context, "-t", "again", "--json"])?;
    let again: Value = serde_json::from_str(&again)?;
    assert_eq!(again["names"], json!(["again:latest", "built:latest"]));
    Ok(())
}
